// Work on many tasks is an operation of the server: it goes on whatever becomes of this page, and every page sees it.
import type { UseQueryResult } from "@tanstack/react-query";
import { url } from "../api/client";
import { useData } from "../api/data";
import { useLive } from "../api/live";
import { useLack } from "../api/me";
import type { Operation, OperationFilter, Page, Task } from "../api/types";
import { may, phaseWord, STATES } from "../words";
import { formatSearch, searchParams } from "./search";
import type { Search } from "./search";
import { watched } from "./watched";
import { between } from "./within";

export type BulkAct = "cancel" | "retry" | "delete";

export const ACTS: Record<Operation["action"], { label: string; done: string }> = {
  cancel: { label: "Cancel", done: "canceled" },
  retry: { label: "Retry", done: "retried" },
  delete: { label: "Delete", done: "deleted" },
};
export const MOST_NAMED = 10_000; // more tasks are not named in one request

/** Of some tasks those that it can be done to, and how many others there are. */
export function among(tasks: readonly Task[], act: BulkAct): { able: Task[]; skipped: number } {
  const able = tasks.filter((task) => may(task, act));
  return { able, skipped: tasks.length - able.length };
}

/** The search, in the states in which it can be done: the others would only be refused, one by one. */
export function searchFor(search: Search, act: BulkAct): Search {
  const able = STATES.filter((state) => phaseWord(state).acts.includes(act));
  return { ...search, states: able.filter((state) => !search.states.length || search.states.includes(state)) };
}

/** What a list is asked, without what says nothing: an empty word would be refused. */
export function filterOf(search: Search): OperationFilter {
  const given = Object.entries(searchParams(search)).filter(
    ([name, value]) => name === "state" || (value !== null && value !== "" && !(Array.isArray(value) && !value.length)),
  );
  return Object.fromEntries(given);
}

const listed = <T>(value: T | readonly T[] | undefined): readonly T[] =>
  value === undefined ? [] : Array.isArray(value) ? (value as readonly T[]) : [value as T];

/** What an operation is about, as one would search for it; null: its tasks were named. */
export function searchOf({ filter }: Operation): string | null {
  if (!filter) return null;
  const { state, type, queue, session, tag, batch, partition, q } = filter;
  const { created_after, created_before, finished_after, finished_before } = filter;
  return formatSearch({
    states: listed(state),
    type: type ?? "",
    queue: queue ?? "",
    session: session ?? "",
    tags: listed(tag),
    batch: batch ?? "",
    partition: partition ?? "",
    created: between(created_after ?? null, created_before ?? null),
    finished: between(finished_after ?? null, finished_before ?? null),
    not: {
      type: listed(filter.not_type),
      queue: listed(filter.not_queue),
      session: listed(filter.not_session),
      batch: listed(filter.not_batch),
      partition: listed(filter.not_partition),
      tag: listed(filter.not_tag),
    },
    text: q ?? "",
  });
}

export const isUnderWay = ({ state }: Operation): boolean => phaseWord(state ?? "").live;

let followed: ReadonlySet<string> = new Set(); // ids of those under way since this page was opened
const { tell, use } = watched();

/** From now on it is shown, also when it is over. */
export function follow(operations: readonly Operation[]): void {
  const added = operations.flatMap(({ id }) => (id && !followed.has(id) ? [id] : []));
  if (!added.length) return;
  followed = new Set([...followed, ...added]);
  tell();
}

export function dismiss(id: string): void {
  followed = new Set([...followed].filter((one) => one !== id));
  tell();
}

export const useFollowed = (): ReadonlySet<string> => use(() => followed);

const SHOWN = 50;

/** The newest ones: read again when one begins or ends, and at each step of those under way. */
export function useOperations(): UseQueryResult<Page<Operation>> {
  const { now } = useLive();
  const lack = useLack("read");
  return useData<Page<Operation>>(
    lack ? null : url("/api/v2/operations", { limit: SHOWN }),
    (changed) => changed === null || changed.some((id) => followed.has(id)),
    now?.operations,
  );
}
