// Limits in words, and as a form writes them: how many at once, how many start in a time. The server leaves out what has
// its default.
import type { Limit, LimitUse, RateLimit } from "../api/types";
import { number } from "./time";

type Concurrency = Limit["concurrency"];
export type Terms = Pick<Limit, "concurrency" | "rate">;

const UNITS = [
  ["day", 86_400_000],
  ["hour", 3_600_000],
  ["minute", 60_000],
  ["second", 1_000],
  ["millisecond", 1],
] as const;
export type Unit = (typeof UNITS)[number][0];
export const UNIT_NAMES: readonly Unit[] = UNITS.map(([name]) => name);

/** In the largest unit that it is a multiple of. */
export function inUnits(ms: number): { count: number; unit: Unit } {
  const [unit, size] = UNITS.find(([, one]) => ms % one === 0)!;
  return { count: ms / size, unit };
}

export function perWords(ms: number): string {
  const { count, unit } = inUnits(ms);
  return count === 1 ? unit : `${number(count)} ${unit}s`;
}

export function concurrencyWords(given: Concurrency): string {
  const { total = null, per_partition = null } = given ?? {};
  const parts = [total !== null && number(total), per_partition !== null && `${number(per_partition)} per partition`];
  return parts.filter(Boolean).join(", ");
}

export function rateWords({ count, per_ms, per = "total", burst = 1, cost = 1 }: RateLimit): string {
  const more = [
    burst !== 1 && `burst ${number(burst)}`,
    cost !== 1 && `cost ${typeof cost === "number" ? number(cost) : `from ${cost}`}`,
  ].filter(Boolean);
  const each = per === "partition" ? " for each partition" : "";
  return `${number(count)} per ${perWords(per_ms)}${each}${more.length ? ` (${more.join(", ")})` : ""}`;
}

export function wordsOfUse({ kind, max, per, per_ms }: LimitUse): string {
  const each = per === "partition" ? " per partition" : "";
  return kind === "concurrency"
    ? `${number(max)} at once${each}`
    : `${number(max)} per ${perWords(per_ms ?? 1)}${each}`;
}

/** A rate as its fields hold it: what is typed, not yet numbers. */
export interface RateFields {
  count: string;
  times: string;
  unit: Unit;
  per: RateLimit["per"];
  burst: string;
  cost: string;
}

export interface LimitFields {
  total: string;
  perPartition: string;
  rates: readonly RateFields[];
}

export const NEW_RATE: RateFields = { count: "10", times: "1", unit: "second", per: "total", burst: "1", cost: "1" };

export function fieldsOf(limit: Terms | null): LimitFields {
  return {
    total: String(limit?.concurrency?.total ?? ""),
    perPartition: String(limit?.concurrency?.per_partition ?? ""),
    rates: (limit?.rate ?? []).map(({ count, per_ms, per = "total", burst = 1, cost = 1 }) => {
      const { count: times, unit } = inUnits(per_ms);
      return { count: String(count), times: String(times), unit, per, burst: String(burst), cost: String(cost) };
    }),
  };
}

/** What is sent. A cost that is no number is the path in the payload where it stands. */
export function termsOf({ total, perPartition, rates }: LimitFields): Terms {
  const most = (text: string): number | null => (text === "" ? null : Number(text));
  const concurrency = { total: most(total), per_partition: most(perPartition) };
  return {
    concurrency: concurrency.total === null && concurrency.per_partition === null ? null : concurrency,
    rate: rates.map(({ count, times, unit, per, burst, cost }) => ({
      count: Number(count),
      per_ms: Number(times) * UNITS.find(([name]) => name === unit)![1],
      per,
      burst: Number(burst),
      cost: /^\d+$/.test(cost) ? Number(cost) : cost,
    })),
  };
}
