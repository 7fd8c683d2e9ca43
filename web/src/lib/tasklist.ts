// A list of any length that stays true: pages by cursor, the head read again, what is on screen looked up by name.
import { useCallback, useEffect, useRef, useState } from "react";
import { get, url } from "../api/client";
import { useChanges } from "../api/live";
import type { Page, Task } from "../api/types";
import { searchParams } from "./search";
import type { Search } from "./search";

const PAGE = 500;
const HEAD = 100; // also the first page: soon there
const ON_SCREEN = 100;

interface Listed {
  rows: readonly Task[];
  next: string | null;
}

export interface TaskList {
  rows: readonly Task[];
  loaded: boolean;
  complete: boolean;
  error: Error | null;
  fresh: number; // that came since, above what is shown
  more: () => void;
  toTop: () => void;
  again: () => void;
}

export function useTaskList(search: Search, watching: () => { top: boolean; ids: readonly string[] }): TaskList {
  const [list, setList] = useState<Listed | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [fresh, setFresh] = useState(0);
  const key = JSON.stringify(searchParams(search));
  const now = useRef({ list, key, busy: false, again: false });
  now.current.list = list;
  now.current.key = key;

  const ask = useCallback(
    (more: Record<string, string | number | readonly string[] | null>): Promise<Page<Task>> =>
      get<Page<Task>>(url("/api/v2/tasks", { ...(JSON.parse(key) as Record<string, string>), brief: true, ...more })),
    [key],
  );
  /** One request at a time; what comes in for another search is dropped. */
  const alone = useCallback(
    async (work: () => Promise<void>): Promise<void> => {
      if (now.current.busy) return;
      now.current.busy = true;
      try {
        await work();
        if (now.current.key === key) setError(null);
      } catch (fault) {
        if (now.current.key === key) setError(fault as Error);
      } finally {
        now.current.busy = false;
        if (now.current.again) {
          now.current.again = false;
          void refresh.current();
        }
      }
    },
    [key],
  );
  const put = (made: Listed): void => {
    if (now.current.key === key) setList(made);
  };

  const refresh = useRef<(changed?: readonly string[] | null, top?: boolean) => Promise<void>>(async () => {});
  refresh.current = async (changed = null, top = false) => {
    if (now.current.busy) {
      now.current.again = true;
      return;
    }
    await alone(async () => {
      const seen = watching();
      const before = now.current.list;
      const head = await ask({ limit: HEAD });
      if (before === null || top || seen.top) {
        const merged = before === null || top ? { rows: head.items, next: head.next } : merge(before, head);
        setFresh(0);
        put(merged);
        await lookUp(merged, head, changed, seen.ids);
      } else {
        const known = new Set(before.rows.map((row) => row.id));
        setFresh(head.items.filter((row) => !known.has(row.id)).length);
        await lookUp(before, { items: [], next: null }, changed, seen.ids);
      }
    });
  };

  /** Rows on screen that the head did not tell of. */
  async function lookUp(shown: Listed, head: Page<Task>, changed: readonly string[] | null, ids: readonly string[]): Promise<void> {
    const told = new Set(head.items.map((row) => row.id));
    const moved = changed && new Set(changed);
    const wanted = ids.filter((id) => !told.has(id) && (!moved || moved.has(id))).slice(0, ON_SCREEN);
    if (!wanted.length) return;
    const found = await get<Page<Task>>(url("/api/v2/tasks", { id: wanted, brief: true }));
    const fits = new Map(found.items.filter((row) => !search.states.length || search.states.includes(row.state)).map((row) => [row.id, row]));
    const asked = new Set(wanted);
    put({ ...shown, rows: shown.rows.flatMap((row) => (asked.has(row.id) ? (fits.get(row.id) ?? []) : row)) });
  }

  useEffect(() => {
    setList(null);
    setError(null);
    setFresh(0);
    now.current.list = null;
    now.current.busy = false;
    void refresh.current(null, true);
  }, [key]);
  useChanges((changed) => void refresh.current(changed));

  return {
    rows: list?.rows ?? [],
    loaded: list !== null,
    complete: list !== null && list.next === null,
    error,
    fresh,
    more: () => {
      const from = now.current.list?.next;
      if (!from) return;
      void alone(async () => {
        const page = await ask({ limit: PAGE, cursor: from });
        const before = now.current.list;
        if (before) put({ rows: [...before.rows, ...page.items], next: page.next });
      });
    },
    toTop: () => void refresh.current(null, true),
    again: () => void refresh.current(null, true),
  };
}

/** The newest page over what was there. Nothing in common means that more came than one page holds. */
export function merge(before: Listed, head: Page<Task>): Listed {
  const last = head.items.at(-1);
  if (head.next === null || !last) return { rows: head.items, next: null };
  const told = new Set(head.items.map((row) => row.id));
  if (!before.rows.some((row) => told.has(row.id))) return { rows: head.items, next: head.next };
  const older = before.rows.filter(
    (row) => !told.has(row.id) && (row.created_at < last.created_at || (row.created_at === last.created_at && row.id < last.id)),
  );
  return { rows: [...head.items, ...older], next: older.length ? before.next : head.next };
}
