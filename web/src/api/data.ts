// How a view reads and acts: `useData` for what it shows, `useAction` for what its buttons do.
// The live stream says which tasks changed; every query on screen whose `meta.concerns` accepts that is read again.
import { keepPreviousData, QueryClient, useMutation, useQuery } from "@tanstack/react-query";
import type { Query, UseQueryResult } from "@tanstack/react-query";
import { say } from "../components/toasts";
import { get, Problem } from "./client";
import { onChange } from "./live";

/** Whether a query shows anything of the tasks that changed; null: any may have changed. */
export type Concerns = (changed: readonly string[] | null) => boolean;
export const always: Concerns = () => true;
export const never: Concerns = () => false;
/** For what tasks do not change: read again only after a reconnect, or after something was done on this page. */
export const seldom: Concerns = (changed) => changed === null;

declare module "@tanstack/react-query" {
  interface Register {
    queryMeta: { concerns?: Concerns };
  }
}

export const queries = new QueryClient({
  defaultOptions: {
    queries: {
      retry: (count, error) => error instanceof Problem && error.status === 0 && count < 2,
      refetchOnWindowFocus: false,
      staleTime: 0,
    },
  },
});

const overtaken = new WeakSet<Query>();

function readAgain(changed: readonly string[] | null): void {
  void queries.invalidateQueries({
    type: "active",
    predicate: (query) => {
      if (!query.meta?.concerns?.(changed)) return false;
      // A read under way may be from before the change. To cancel it would starve a read that takes longer than
      // the second between two changes: it is let finish, and then read once more.
      const busy = query.state.fetchStatus !== "idle";
      if (busy) overtaken.add(query);
      return !busy;
    },
  });
}

/** Everything on screen, after something was done. */
export function refresh(): void {
  readAgain(null);
}

onChange(readAgain);
queries.getQueryCache().subscribe(({ type, query }) => {
  const read = query as Query;
  if (type !== "updated" || read.state.fetchStatus !== "idle" || !overtaken.delete(read)) return;
  queueMicrotask(() => void queries.invalidateQueries({ queryKey: read.queryKey, exact: true }));
});

/** What is at this path, kept up to date. Another `edition` is read anew, with the last one shown meanwhile. */
export function useData<T>(
  path: string | null,
  concerns: Concerns = always,
  edition?: number | string,
): UseQueryResult<T, Error> {
  return useQuery<T>({
    queryKey: [path, edition],
    queryFn: ({ signal }) => get<T>(path!, signal),
    enabled: path !== null,
    placeholderData: keepPreviousData,
    meta: { concerns },
  });
}

/** What the server returns for a text that is still being typed, asked once the typing pauses. null: nothing to ask.
 * `stale`: it is about the text before; shown it may be, acted upon not. */
export function useTyped<T>(
  name: string,
  text: string | null,
  pauseMs: number,
  read: (text: string, signal: AbortSignal) => Promise<T>,
): { data: T | undefined; stale: boolean } {
  const found = useQuery<T>({
    queryKey: [name, text],
    queryFn: async ({ signal }) => {
      await new Promise((done) => setTimeout(done, pauseMs));
      signal.throwIfAborted();
      return read(text!, signal);
    },
    enabled: text !== null,
    placeholderData: keepPreviousData,
    retry: false,
  });
  return { data: found.data, stale: found.isPlaceholderData };
}

/** Only news of this task. */
export function of(id: string): Concerns {
  return (changed) => changed === null || changed.includes(id);
}

export interface Action<In = void, Out = unknown> {
  run: (input: In, then?: () => void) => void; // `then` only if it was not refused
  busy: boolean;
  error: Error | null;
  reset: () => void;
  result: Out | undefined;
}

/** Something a button does. Its end is said in a toast; everything shown is read again.
 * `quiet`: a refusal is shown where the button is, by `<Refusal>`; anything else in a dialog would be behind it. */
export function useAction<In = void, Out = unknown>(
  work: (input: In) => Promise<Out>,
  {
    done,
    after,
    quiet = false,
    inTurn,
  }: {
    done?: string | ((out: Out) => string);
    after?: (out: Out) => void;
    quiet?: boolean;
    inTurn?: string; // one after the other: of two under way at once the older might be written last
  } = {},
): Action<In, Out> {
  const action = useMutation<Out, Error, In>({
    mutationFn: work,
    ...(inTurn !== undefined && { scope: { id: inTurn } }),
    onSuccess: (out) => {
      if (done) say(typeof done === "function" ? done(out) : done);
      refresh();
      after?.(out);
    },
    onError: (error) => {
      if (!quiet) say(error.message, { bad: true, hint: error instanceof Problem ? error.hint : null });
    },
  });
  const run = (input: In, then?: () => void): void => action.mutate(input, { onSuccess: () => then?.() });
  return { run, busy: action.isPending, error: action.error, reset: action.reset, result: action.data };
}
