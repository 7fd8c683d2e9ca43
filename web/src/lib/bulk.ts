// One thing done to many tasks, from the page: so many at a time, with a count, to be stopped at any moment.
// It belongs to the page, not to a view: whoever goes on to another view still sees it and can stop it.
import { get, post, url } from "../api/client";
import { refresh } from "../api/data";
import type { Page, Task } from "../api/types";
import { may } from "../words";
import { searchParams } from "./search";
import type { Search } from "./search";
import { watched } from "./watched";

export type BulkAct = "cancel" | "retry";

export interface BulkProgress {
  act: BulkAct;
  done: number;
  refused: number;
  total: number;
  running: boolean;
}

/** What a question is about: which tasks, some of them to look at, and how many are in no state for it. */
export interface Found {
  ids: string[];
  sample: Task[];
  skipped: number;
}

const AT_ONCE = 5; // a browser opens no more connections than six to one server
const SAMPLE = 5;

export function among(tasks: readonly Task[], act: BulkAct, found: Found = { ids: [], sample: [], skipped: 0 }): Found {
  const able = tasks.filter((task) => may(task, act));
  found.ids.push(...able.map((task) => task.id));
  found.sample.push(...able.slice(0, SAMPLE - found.sample.length));
  found.skipped += tasks.length - able.length;
  return found;
}

export async function matching(
  search: Search,
  act: BulkAct,
  stop: AbortSignal,
  counted: (count: number) => void,
): Promise<Found> {
  const found = among([], act);
  let cursor: string | null = null;
  do {
    const query = { ...searchParams(search), brief: true, limit: 1000, cursor };
    const page: Page<Task> = await get(url("/api/v2/tasks", query), stop);
    among(page.items, act, found);
    counted(found.ids.length);
    cursor = page.next;
  } while (cursor);
  return found;
}

let progress: BulkProgress | null = null;
let control = new AbortController();
const { tell, use } = watched();

function show(next: BulkProgress | null): void {
  progress = next;
  tell();
}

/** The browser asks before the tab is closed: what is left would not be done, without a word. */
function stay(event: BeforeUnloadEvent): void {
  event.preventDefault();
}

export async function startBulk(act: BulkAct, ids: readonly string[]): Promise<void> {
  const left = [...ids];
  const count: BulkProgress = { act, done: 0, refused: 0, total: left.length, running: true };
  const { signal } = (control = new AbortController());
  const worker = async (): Promise<void> => {
    for (let id = left.shift(); id && !signal.aborted; id = left.shift()) {
      try {
        await post(`/api/v2/tasks/${encodeURIComponent(id)}/${act}`);
        count.done += 1;
      } catch {
        count.refused += 1; // it ended meanwhile, or moved on
      }
      show({ ...count });
    }
  };
  show({ ...count });
  addEventListener("beforeunload", stay);
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  removeEventListener("beforeunload", stay);
  show({ ...count, running: false });
  refresh();
}

export const stopBulk = (): void => control.abort();
export const clearBulk = (): void => show(null);
export const useBulk = (): BulkProgress | null => use(() => progress);
