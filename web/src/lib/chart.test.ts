import { expect, test } from "vitest";
import { edges, nearest, top, trace } from "./chart";

const x = (at: number): number => at;
const y = (value: number): number => value;

test("the top is a round number above all values", () => {
  const points = [
    { at: 1, a: 3, b: 17 },
    { at: 2, a: null, b: 2 },
  ];
  expect(top(points, [{ key: "a" }, { key: "b" }])).toBe(20);
  expect(top(points, [{ key: "a" }])).toBe(5);
  expect(top([], [{ key: "a" }])).toBe(1);
  expect(top([{ at: 1, a: 30 }], [{ key: "a" }], true)).toBe(100);
});

test("a line is broken where no value is known", () => {
  const points = [
    { at: 0, a: 1 },
    { at: 10, a: 2 },
    { at: 20, a: null },
    { at: 30, a: 3 },
  ];
  const lines = trace(points, "a", null, x, y);
  expect(lines.map((line) => line.d)).toEqual(["M0.0,1.0L10.0,2.0", "M30.0,3.0L31.0,3.0"]);
});

test("a live point that never came was like the one before", () => {
  const lines = trace(
    [
      { at: 0, a: 1 },
      { at: 60_000, a: 2 },
    ],
    "a",
    70_000,
    x,
    y,
  );
  expect(lines.map((line) => line.d)).toEqual(["M0.0,1.0L55000.0,1.0L60000.0,2.0L70000.0,2.0"]);
});

test("a live chart is at least two minutes wide and at most fifteen", () => {
  expect(edges([], 1_000_000)).toEqual({ from: 880_000, to: 1_000_000 });
  expect(edges([{ at: 0 }], 10_000_000)).toEqual({ from: 9_100_000, to: 10_000_000 });
});

test("the nearest point is the one under the pointer", () => {
  const points = [{ at: 0 }, { at: 10 }, { at: 20 }];
  expect(nearest(points, 13)?.at).toBe(10);
  expect(nearest([], 13)).toBeNull();
});
