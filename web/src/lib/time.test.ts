import { expect, test } from "vitest";
import { ago, rate, serverNow, setServerTime, span } from "./time";

test.each([
  [0, "0 ms"],
  [999, "999 ms"],
  [1_500, "1.5 s"],
  [59_400, "59 s"],
  [119_000, "119 s"],
  [120_000, "2 min"],
  [7_200_000, "2.0 h"],
  [172_800_000, "2 d"],
])("a span of %d ms is %s", (ms, text) => expect(span(ms)).toBe(text));

test.each([
  [10_000, 10_400, "now"],
  [10_000, 13_000, "3 s ago"],
  [13_000, 10_000, "in 3 s"],
  [0, 90_400, "90 s ago"],
])("%d, seen at %d, is %s", (at, now, text) => expect(ago(at, now)).toBe(text));

test.each([
  [0, "0"],
  [0.25, "0.3"],
  [12.4, "12"],
  [12_345.6, "12,346"],
])("a rate of %d is %s", (value, text) => expect(rate(value)).toBe(text));

test("the time is the server's, however wrong this clock is", () => {
  setServerTime(Date.now() + 60_000);
  expect(serverNow() - Date.now()).toBeCloseTo(60_000, -2);
  setServerTime(Date.now());
});
