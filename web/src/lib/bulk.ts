// One thing done to many tasks, from the page: so many at a time, with a count, to be stopped at any moment.
import { useRef, useState } from "react";
import { get, post, url } from "../api/client";
import { refresh } from "../api/data";
import type { Page, Task } from "../api/types";
import { may } from "../words";
import { searchParams } from "./search";
import type { Search } from "./search";

export type BulkAct = "cancel" | "retry";

export interface BulkProgress {
  act: BulkAct;
  done: number;
  refused: number;
  total: number | null; // not known before all that match were found
  running: boolean;
}

const AT_ONCE = 5; // a browser opens no more connections than six to one server

export async function* matching(search: Search, stop: AbortSignal): AsyncGenerator<Task> {
  let cursor: string | null = null;
  do {
    const page: Page<Task> = await get(
      url("/api/v2/tasks", { ...searchParams(search), brief: true, limit: 1000, cursor }),
      stop,
    );
    yield* page.items;
    cursor = page.next;
  } while (cursor && !stop.aborted);
}

export function useBulk(): {
  progress: BulkProgress | null;
  start: (act: BulkAct, tasks: AsyncIterable<Task> | Iterable<Task>) => void;
  stop: () => void;
  clear: () => void;
  signal: () => AbortSignal;
} {
  const [progress, setProgress] = useState<BulkProgress | null>(null);
  const control = useRef(new AbortController());

  async function run(act: BulkAct, tasks: AsyncIterable<Task> | Iterable<Task>): Promise<void> {
    const { signal } = control.current;
    const count: BulkProgress = { act, done: 0, refused: 0, total: null, running: true };
    const show = (part: Partial<BulkProgress>): void => setProgress({ ...Object.assign(count, part) });
    show({});
    const ids: string[] = [];
    try {
      for await (const task of tasks) if (may(task, act)) ids.push(task.id);
    } catch {
      if (!signal.aborted) show({ refused: count.refused + 1 });
    }
    show({ total: ids.length });
    const worker = async (): Promise<void> => {
      for (let id = ids.shift(); id && !signal.aborted; id = ids.shift()) {
        try {
          await post(`/api/v2/tasks/${encodeURIComponent(id)}/${act}`);
          show({ done: count.done + 1 });
        } catch {
          show({ refused: count.refused + 1 }); // it ended meanwhile, or moved on
        }
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, worker));
    show({ running: false });
    refresh();
  }

  return {
    progress,
    start: (act, tasks) => {
      control.current = control.current.signal.aborted ? new AbortController() : control.current;
      void run(act, tasks);
    },
    stop: () => control.current.abort(),
    clear: () => setProgress(null),
    signal: () => {
      if (control.current.signal.aborted) control.current = new AbortController();
      return control.current.signal;
    },
  };
}
