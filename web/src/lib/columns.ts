// The columns of the list of tasks: which there are, in which order they may be sorted, and how many tasks there are.
import type { Change, Task } from "../api/types";
import { isCounted } from "./search";
import type { Search } from "./search";

export interface Column {
  key: string;
  label: string;
  width: string;
  right?: boolean;
  usual: boolean; // shown unless somebody chose otherwise
  order?: (task: Task) => number | string;
}

const lasted = (task: Task): number =>
  task.started_at === null ? -1 : (task.finished_at ?? Date.now()) - task.started_at;

export const COLUMNS: readonly Column[] = [
  { key: "queue", label: "Queue", width: "minmax(0, 150px)", usual: true, order: (task) => task.queue },
  { key: "worker", label: "Worker", width: "minmax(0, 130px)", usual: false, order: (task) => task.worker ?? "" },
  { key: "session", label: "Session", width: "minmax(0, 130px)", usual: false, order: (task) => task.session_id ?? "" },
  { key: "priority", label: "Priority", width: "76px", usual: false, order: (task) => task.priority },
  { key: "attempt", label: "Attempt", width: "64px", right: true, usual: true, order: (task) => task.attempt },
  { key: "duration", label: "Duration", width: "84px", right: true, usual: true, order: lasted },
  { key: "created", label: "Created", width: "100px", right: true, usual: true, order: (task) => task.created_at },
];

/** "duration" or "-duration"; empty: as the server orders them, the newest first. */
export type Sort = string;

/** All rows must be there: of some, the order would be a lie. */
export function sorted(rows: readonly Task[], sort: Sort): readonly Task[] {
  const order = COLUMNS.find((column) => column.key === sort.replace(/^-/, ""))?.order;
  if (!order) return rows;
  const sign = sort.startsWith("-") ? -1 : 1;
  return [...rows].sort((one, other) => {
    const [a, b] = [order(one), order(other)];
    return a < b ? -sign : a > b ? sign : 0;
  });
}

/** How many tasks a search finds, where the live counts tell it. */
export function totalOf(search: Search, now: Change | null): number | undefined {
  if (!now || !isCounted(search)) return undefined;
  const counts = search.queue ? now.queues[search.queue] : now.states;
  if (!counts) return undefined;
  const states = search.states.length ? search.states : Object.keys(counts);
  return states.reduce((sum, state) => sum + (counts[state] ?? 0), 0);
}
