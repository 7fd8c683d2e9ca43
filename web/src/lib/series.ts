// What was done in the last hours, as the server adds it up.
import { useQuery } from "@tanstack/react-query";
import type { UseQueryResult } from "@tanstack/react-query";
import { get, url } from "../api/client";
import { seldom } from "../api/data";
import type { SeriesView } from "../api/types";
import type { Values } from "./chart";
import { serverNow } from "./time";
import { parseWithin } from "./within";
import type { Within } from "./within";

export const RANGES = [
  ["15m", "15 min", 900_000],
  ["1h", "1 h", 3_600_000],
  ["6h", "6 h", 21_600_000],
  ["24h", "24 h", 86_400_000],
] as const;
export type RangeName = (typeof RANGES)[number][0];

const EVERY_MS = 20_000;

export function rangeMs(name: string): number {
  return (RANGES.find(([one]) => one === name) ?? RANGES[1])[2];
}

/** What the last hour, or the range that was chosen, is called in a sentence. */
export function inWords(name: string): string {
  return `last ${(RANGES.find(([one]) => one === name) ?? RANGES[1])[1].replace(/^1 h$/, "hour")}`;
}

/** The range, as one would search for what happened in it. */
export function withinRange(name: string): Within {
  return parseWithin(`<${(RANGES.find(([one]) => one === name) ?? RANGES[1])[0]}`, serverNow())!;
}

export function useSeries(range: string, about: { service?: string; queue?: string } = {}): UseQueryResult<SeriesView> {
  const path = url("/api/v2/series", { range_ms: rangeMs(range), ...about });
  return useQuery({
    queryKey: [path],
    queryFn: ({ signal }) => get<SeriesView>(path, signal, { masked: false }),
    refetchInterval: EVERY_MS,
    meta: { concerns: seldom },
  });
}

const COUNTS = ["submitted", "succeeded", "failed", "retried", "canceled"] as const;

/** For charts: counts a minute, of the last step by how much of it has passed; dead ones have failed. */
export function perMinute({ points, step_ms, until }: SeriesView): Values[] {
  return points.map((point) => {
    const passed = Math.min(step_ms, Math.max(until - point.at, step_ms / 4));
    const counts = { ...point, failed: point.failed == null ? null : point.failed + (point.dead ?? 0) };
    const rates = COUNTS.map((name) => [name, counts[name] == null ? null : (counts[name] / passed) * 60_000]);
    return { ...point, ...(Object.fromEntries(rates) as Record<string, number | null>) };
  });
}

/** Of what ended well or badly; null: nothing did. */
export function failureShare(totals: Readonly<Record<string, number>>): number | null {
  const failed = (totals.failed ?? 0) + (totals.dead ?? 0);
  const over = failed + (totals.succeeded ?? 0);
  return over ? failed / over : null;
}

/** Of a histogram: the buckets between the first and the last that hold any. */
export interface Bucket {
  from: number;
  to: number | null; // null: beyond the last bound
  count: number;
}

export function bucketsOf({
  bounds_ms,
  counts,
}: {
  bounds_ms: readonly number[];
  counts: readonly number[];
}): Bucket[] {
  const all = counts.map((count, index) => ({
    from: index ? bounds_ms[index - 1]! : 0,
    to: bounds_ms[index] ?? null,
    count,
  }));
  const held = all.flatMap(({ count }, index) => (count ? [index] : []));
  return held.length ? all.slice(Math.max(0, held[0]! - 1), held.at(-1)! + 2) : [];
}
