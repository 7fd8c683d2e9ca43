// A list of any length that stays true: pages by cursor, the newest rows read again, rows on screen looked up by id.
import { useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import type { InfiniteData, QueryClient, QueryKey } from "@tanstack/react-query";
import { useCallback, useRef } from "react";
import { get, url } from "../api/client";
import { always } from "../api/data";
import type { Page } from "../api/types";

const PAGE = 500;
const HEAD = 100; // also the first page: soon there
const ON_SCREEN = 100;
const KEPT_MS = 300_000; // a step back finds the rows that were there, and so its place
const TOP_PX = 400; // scrolled no further than this, new rows may be put above those on screen

export interface Row {
  id: string;
}

type Params = Record<string, string | number | boolean | readonly string[] | null>;
type Pages<T> = InfiniteData<Page<T>, string | null>;

/** Where a list comes from, and how it is ordered. */
export interface Source<T extends Row> {
  path: string;
  params: Params;
  page?: number; // the most that the server returns at once
  /** Whether `row` is ordered below `last`, so that the head cannot contain it. Without it: rows only move up. */
  below?: (row: T, last: T) => boolean;
  /** Whether a row, looked up with `?id=` on the same path, still belongs here. Without it: no row is looked up. */
  fits?: (row: T) => boolean;
}

export interface List<T extends Row> {
  rows: readonly T[];
  loaded: boolean;
  complete: boolean;
  error: Error | null;
  fresh: number; // rows that came since, above those shown
  canMore: boolean;
  more: () => void;
  refresh: () => void;
  setOnScreen: (ids: readonly string[]) => void;
}

/** Pages are read once. What changes is written into them by a query of its own, which the live stream invalidates:
 * to read every page again at each change would cost a request for each 500 rows that were scrolled through. */
export function useList<T extends Row>(source: Source<T>): List<T> {
  const client = useQueryClient();
  const onScreen = useRef<readonly string[]>([]);
  const key = [source.path, source.params];
  const ask = (more: Params, signal: AbortSignal): Promise<Page<T>> =>
    get<Page<T>>(url(source.path, { ...source.params, ...more }), signal);

  const pages = useInfiniteQuery({
    queryKey: key,
    queryFn: ({ pageParam, signal }) =>
      ask({ limit: Math.min(pageParam === null ? HEAD : PAGE, source.page ?? PAGE), cursor: pageParam }, signal),
    initialPageParam: null as string | null,
    getNextPageParam: (last) => last.next,
    select: rowsOf<T>,
    structuralSharing: false,
    staleTime: Infinity,
    gcTime: KEPT_MS,
    meta: { concerns: () => client.getQueryData(key) === undefined }, // it failed: now it may succeed
  });

  const news = useQuery({
    queryKey: [...key, "news"],
    queryFn: async ({ signal }) => {
      const head = await ask({ limit: Math.min(HEAD, source.page ?? HEAD) }, signal);
      const shown = await pagesAtRest<T>(client, key);
      if (!shown) return 0;
      const known = new Set(rowsOf(shown).map((row) => row.id));
      const atTop = scrollY < TOP_PX && !isAimedAt();
      if (atTop) client.setQueryData(key, withHead(shown, head, source.below));
      const inHead = new Set(atTop ? head.items.map((row) => row.id) : []);
      const wanted = onScreen.current.filter((id) => !inHead.has(id)).slice(0, ON_SCREEN);
      if (source.fits && wanted.length) {
        const found = await get<Page<T>>(url(source.path, { id: wanted, brief: true }), signal);
        const now = await pagesAtRest<T>(client, key);
        if (now) client.setQueryData(key, withFound(now, wanted, found.items.filter(source.fits)));
      }
      return atTop ? 0 : head.items.filter((row) => !known.has(row.id)).length;
    },
    initialData: 0,
    refetchOnMount: client.getQueryData(key) === undefined ? false : "always", // the pages are from before
    staleTime: Infinity,
    gcTime: 0,
    meta: { concerns: always },
  });

  const { fetchNextPage, refetch: readPages } = pages;
  const { refetch: readNews } = news;
  return {
    rows: pages.data ?? [],
    loaded: pages.data !== undefined,
    complete: pages.data !== undefined && !pages.hasNextPage,
    error: pages.error,
    fresh: news.data,
    canMore: pages.hasNextPage && !pages.isFetching && !pages.isError,
    more: useCallback(() => void fetchNextPage(), [fetchNextPage]),
    refresh: () => void (pages.data === undefined ? readPages() : readNews()),
    setOnScreen: useCallback((ids: readonly string[]) => {
      onScreen.current = ids;
    }, []),
  };
}

/** Whether somebody is about to click a row: it must not move away under the pointer. */
function isAimedAt(): boolean {
  return matchMedia("(hover: hover)").matches && document.querySelector(".virtual:hover") !== null;
}

/** A page under way is added to the pages as they were when it was asked for: what is written meanwhile would be lost. */
async function pagesAtRest<T>(client: QueryClient, key: QueryKey): Promise<Pages<T> | undefined> {
  const query = client.getQueryCache().find({ queryKey: key });
  while (query && query.state.fetchStatus !== "idle") await query.promise?.catch(() => undefined);
  return client.getQueryData<Pages<T>>(key);
}

const onePage = <T>(items: T[], next: string | null): Pages<T> => ({ pages: [{ items, next }], pageParams: [null] });

/** The newest rows over those that were there. Nothing in common means that more came than the head holds. */
export function withHead<T extends Row>(before: Pages<T>, head: Page<T>, below: Source<T>["below"]): Pages<T> {
  const last = head.items.at(-1);
  if (head.next === null || !last) return onePage(head.items, null);
  const inHead = new Set(head.items.map((row) => row.id));
  const rows = rowsOf(before);
  if (!rows.some((row) => inHead.has(row.id))) return onePage(head.items, head.next);
  const older = rows.filter((row) => !inHead.has(row.id) && (!below || below(row, last)));
  return onePage([...head.items, ...older], older.length ? before.pages.at(-1)!.next : head.next);
}

/** The rows that were looked up, in their places; those that were not found are gone. */
export function withFound<T extends Row>(before: Pages<T>, wanted: readonly string[], found: readonly T[]): Pages<T> {
  const byId = new Map(found.map((row) => [row.id, row]));
  const asked = new Set(wanted);
  const rows = rowsOf(before).flatMap((row) => (asked.has(row.id) ? (byId.get(row.id) ?? []) : row));
  return onePage(rows, before.pages.at(-1)!.next);
}

/** All rows, each once: one that moved up between two pages is on both. */
export function rowsOf<T extends Row>({ pages }: Pages<T>): T[] {
  const rows = pages.flatMap((page) => page.items);
  return [...new Map(rows.reverse().map((row) => [row.id, row])).values()].reverse();
}

/** The order of tasks: newest first. */
export function older(row: { id: string; created_at: number }, last: { id: string; created_at: number }): boolean {
  return row.created_at < last.created_at || (row.created_at === last.created_at && row.id < last.id);
}
