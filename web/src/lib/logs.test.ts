import { expect, test } from "vitest";
import type { LogRecord } from "../api/types";
import type { Stretch } from "./life";
import { isAtLeast, linesOf } from "./logs";
import { differences } from "./attempts";

const line = (at: number, attempt: number): LogRecord => ({
  at,
  attempt,
  level: "INFO",
  logger: "x",
  message: String(at),
});
const stretch = (attempt: number, from: number, more: Partial<Stretch> = {}): Stretch => ({
  what: "running",
  tone: "busy",
  from,
  to: from + 100,
  attempt,
  worker: "w",
  generation: 1,
  end: "failed",
  error: null,
  ...more,
});

test("lines belong to the attempt of their number and time", () => {
  const life = [stretch(1, 10_000), stretch(1, 50_000, { generation: 2 })];
  const lines = [line(10_001, 1), line(50_002, 1), line(50_003, 2)];
  expect(linesOf(lines, life[0]!, life).map((one) => one.at)).toEqual([10_001]);
  expect(linesOf(lines, life[1]!, life).map((one) => one.at)).toEqual([50_002]);
});

test("a level hides what is less grave", () => {
  expect(isAtLeast("INFO", "WARNING")).toBe(false);
  expect(isAtLeast("CRITICAL", "ERROR")).toBe(true);
  expect(isAtLeast("custom", "ERROR")).toBe(true);
});

test("an attempt differs from the one before by what changed", () => {
  const error = { kind: "A", message: "no", retryable: true };
  const before = stretch(1, 0, { error, worker: "one" });
  const same = differences(before, stretch(2, 500, { error, worker: "one" }));
  expect(same.map((one) => one.what)).toEqual([]);
  const other = differences(before, stretch(2, 500, { error: { ...error, message: "yes" }, to: 5_500, worker: "two" }));
  expect(other.map((one) => one.what)).toEqual(["worker", "error", "duration"]);
  expect(differences(before, stretch(2, 500, { end: "succeeded", worker: "one" })).map((one) => one.what)).toEqual([
    "outcome",
    "error",
  ]);
});
