// A list of any length that stays true: pages by cursor, the head read again, what is on screen looked up by name.
import { useCallback, useEffect, useRef, useState } from "react";
import { get, url } from "../api/client";
import { useChanges } from "../api/live";
import type { Page } from "../api/types";

const PAGE = 500;
const HEAD = 100; // also the first page: soon there
const ON_SCREEN = 100;

export interface Row {
  id: string;
}

type Params = Record<string, string | number | boolean | readonly string[] | null>;

/** Where a list comes from, and how it is ordered. */
export interface Source<T extends Row> {
  path: string;
  params: Params;
  page?: number; // the most that it gives at once
  /** Whether `row` stands below `last`: then the head cannot tell of it. Unsaid: rows move up, and none is lost. */
  below?: (row: T, last: T) => boolean;
  /** Rows by their ids, `?id=` on the same path; those that do not fit any more are left out. Unsaid: it has no such question. */
  fits?: (row: T) => boolean;
}

interface Listed<T> {
  rows: readonly T[];
  next: string | null;
}

export interface List<T extends Row> {
  rows: readonly T[];
  loaded: boolean;
  complete: boolean;
  error: Error | null;
  fresh: number; // that came since, above what is shown
  more: () => void;
  toTop: () => void;
  look: () => void; // once more, where one is
  watching: { top: boolean; ids: readonly string[] }; // what is on screen, kept up to date by whoever draws it
}

export function useList<T extends Row>(source: Source<T>): List<T> {
  const [list, setList] = useState<Listed<T> | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [fresh, setFresh] = useState(0);
  const watching = useRef<List<T>["watching"]>({ top: true, ids: [] });
  const key = JSON.stringify([source.path, source.params]);
  const now = useRef({ list, key, busy: false, again: false, further: false });
  now.current.list = list;
  now.current.key = key;

  const ask = useCallback(
    (more: Params): Promise<Page<T>> => get<Page<T>>(url(source.path, { ...source.params, ...more })),
    [key],
  );
  /** One request at a time; what comes in for another list is dropped. */
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
        } else if (now.current.further) {
          now.current.further = false;
          void extend.current();
        }
      }
    },
    [key],
  );
  const put = (made: Listed<T>): void => {
    if (now.current.key === key) setList(made);
  };

  const refresh = useRef<(changed?: readonly string[] | null, top?: boolean) => Promise<void>>(async () => {});
  refresh.current = async (changed = null, top = false) => {
    if (now.current.busy) {
      now.current.again = true;
      return;
    }
    await alone(async () => {
      const seen = watching.current;
      const before = now.current.list;
      const head = await ask({ limit: Math.min(HEAD, source.page ?? HEAD) });
      if (before === null || top || seen.top) {
        const merged =
          before === null || top ? { rows: head.items, next: head.next } : merge(before, head, source.below);
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

  const extend = useRef<() => Promise<void>>(async () => {});
  extend.current = async () => {
    if (now.current.busy) {
      now.current.further = true; // nobody asks twice: the reader is at the end already
      return;
    }
    const from = now.current.list?.next;
    if (!from) return;
    await alone(async () => {
      const page = await ask({ limit: source.page ?? PAGE, cursor: from });
      const before = now.current.list;
      if (before) put({ rows: distinct([...before.rows, ...page.items]), next: page.next });
    });
  };

  /** Rows on screen that the head did not tell of. */
  async function lookUp(
    shown: Listed<T>,
    head: Page<T>,
    changed: readonly string[] | null,
    ids: readonly string[],
  ): Promise<void> {
    if (!source.fits) return;
    const told = new Set(head.items.map((row) => row.id));
    const moved = changed && new Set(changed);
    const wanted = ids.filter((id) => !told.has(id) && (!moved || moved.has(id))).slice(0, ON_SCREEN);
    if (!wanted.length) return;
    const found = await get<Page<T>>(url(source.path, { id: wanted, brief: true }));
    const fits = new Map(found.items.filter(source.fits).map((row) => [row.id, row]));
    const asked = new Set(wanted);
    put({ ...shown, rows: shown.rows.flatMap((row) => (asked.has(row.id) ? (fits.get(row.id) ?? []) : row)) });
  }

  useEffect(() => {
    setList(null);
    setError(null);
    setFresh(0);
    now.current.list = null;
    now.current.busy = now.current.further = false;
    void refresh.current(null, true);
  }, [key]);
  useChanges((changed) => void refresh.current(changed));

  return {
    rows: list?.rows ?? [],
    loaded: list !== null,
    complete: list !== null && list.next === null,
    error,
    fresh,
    more: () => void extend.current(),
    toTop: () => void refresh.current(null, true),
    look: () => void refresh.current(),
    watching: watching.current,
  };
}

/** The newest page over what was there. Nothing in common means that more came than one page holds. */
function merge<T extends Row>(before: Listed<T>, head: Page<T>, below: Source<T>["below"]): Listed<T> {
  const last = head.items.at(-1);
  if (head.next === null || !last) return { rows: head.items, next: null };
  const told = new Set(head.items.map((row) => row.id));
  if (!before.rows.some((row) => told.has(row.id))) return { rows: head.items, next: head.next };
  const older = before.rows.filter((row) => !told.has(row.id) && (!below || below(row, last)));
  return { rows: [...head.items, ...older], next: older.length ? before.next : head.next };
}

/** A row that moved up between two pages is on both. */
function distinct<T extends Row>(rows: readonly T[]): readonly T[] {
  return [...new Map([...rows].reverse().map((row) => [row.id, row])).values()].reverse();
}

/** The order of tasks: newest first. */
export function older(row: { id: string; created_at: number }, last: { id: string; created_at: number }): boolean {
  return row.created_at < last.created_at || (row.created_at === last.created_at && row.id < last.id);
}
