import { expect, test } from "vitest";
import { concurrencyWords, fieldsOf, inUnits, perWords, rateWords, termsOf } from "./limits";
import type { Terms } from "./limits";

const RATE = { count: 100, per_ms: 60_000, per: "total", burst: 1, cost: 1 } as const;

test("limits are written in the words of the trade", () => {
  expect(concurrencyWords({ total: 4, per_partition: 2 })).toBe("4, 2 per partition");
  expect(concurrencyWords({ total: 0, per_partition: null })).toBe("0");
  expect(concurrencyWords(null)).toBe("");
  expect(rateWords(RATE)).toBe("100 per minute");
  expect(rateWords({ ...RATE, per_ms: 90_000, per: "partition", burst: 10, cost: "tokens" })).toBe(
    "100 per 90 seconds for each partition (burst 10, cost from tokens)",
  );
});

test("a time is shown in the largest unit that it is a multiple of", () => {
  expect(inUnits(7_200_000)).toEqual({ count: 2, unit: "hour" });
  expect(perWords(1_500)).toBe("1,500 milliseconds");
});

test("what a form shows is what it sends back", () => {
  const terms: Terms = {
    concurrency: { total: 0, per_partition: null },
    rate: [
      { ...RATE, cost: "tokens" },
      { ...RATE, per_ms: 1_500 },
    ],
  };
  expect(termsOf(fieldsOf(terms))).toEqual(terms);
  expect(termsOf(fieldsOf(null))).toEqual({ concurrency: null, rate: [] });
});
