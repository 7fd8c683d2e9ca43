// How a view reads and acts: `useData` for what it shows, `useAction` for what its buttons do.
import { keepPreviousData, QueryClient, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import type { UseQueryResult } from "@tanstack/react-query";
import { useEffect, useRef } from "react";
import { say } from "../components/toasts";
import { get, Problem } from "./client";
import { useChanges } from "./live";

export const queries = new QueryClient({
  defaultOptions: {
    queries: {
      retry: (count, error) => error instanceof Problem && error.status === 0 && count < 2,
      refetchOnWindowFocus: false,
      staleTime: 0,
    },
  },
});

type Concerns = (changed: readonly string[] | null) => boolean;
const ANY: Concerns = () => true;
const REST_MS = 900;

/** What is at this path, read again when the server says that something changed which concerns it, or with another edition. */
export function useData<T>(path: string | null, concerns: Concerns = ANY, edition?: number): UseQueryResult<T, Error> {
  const found = useQuery<T>({
    queryKey: [path, edition],
    queryFn: ({ signal }) => get<T>(path!, signal),
    enabled: path !== null,
    placeholderData: keepPreviousData,
  });
  const cache = useQueryClient();
  const asked = useRef(0);
  const later = useRef<number>(undefined);
  useEffect(() => () => clearTimeout(later.current), [path, edition]);
  const read = (after: number): void => {
    clearTimeout(later.current);
    later.current = window.setTimeout(() => {
      // What is under way may have been read before the change.
      if (cache.isFetching({ queryKey: [path, edition], exact: true })) return read(REST_MS);
      asked.current = performance.now();
      void found.refetch({ cancelRefetch: false });
    }, after);
  };
  useChanges((changed) => {
    if (path === null || !concerns(changed)) return;
    read(changed === null ? 0 : Math.max(0, asked.current + REST_MS - performance.now()));
  });
  return found;
}

/** Only news of this task. */
export function of(id: string): Concerns {
  return (changed) => changed === null || changed.includes(id);
}

interface Action<In, Out> {
  run: (input: In) => void;
  busy: boolean;
  error: Error | null;
  reset: () => void;
  result: Out | undefined;
}

/** Something a button does. Its end is said in a toast; everything shown is read again. */
export function useAction<In = void, Out = unknown>(
  work: (input: In) => Promise<Out>,
  {
    done,
    after,
    quiet = false,
  }: { done?: string | ((out: Out) => string); after?: (out: Out) => void; quiet?: boolean } = {},
): Action<In, Out> {
  const cache = useQueryClient();
  const action = useMutation<Out, Error, In>({
    mutationFn: work,
    onSuccess: (out) => {
      if (done) say(typeof done === "function" ? done(out) : done);
      void cache.invalidateQueries();
      after?.(out);
    },
    onError: (error) => {
      if (!quiet) say(error.message, { bad: true, hint: error instanceof Problem ? error.hint : null });
    },
  });
  return { run: action.mutate, busy: action.isPending, error: action.error, reset: action.reset, result: action.data };
}
