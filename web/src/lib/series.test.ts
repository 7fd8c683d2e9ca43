import { expect, test } from "vitest";
import type { SeriesView } from "../api/types";
import { bucketsOf, failureShare, inWords, perMinute } from "./series";

const point = { at: 0, submitted: 10, succeeded: 6, failed: 1, dead: 2, canceled: 0, retried: 4 };

test("counts become rates a minute, those of the open step by the time that has passed", () => {
  const view = { step_ms: 120_000, until: 180_000, points: [point, { ...point, at: 120_000 }] };
  const [whole, open] = perMinute(view as unknown as SeriesView);
  expect(whole).toMatchObject({ submitted: 5, succeeded: 3, failed: 1.5, retried: 2 });
  expect(open).toMatchObject({ submitted: 10, failed: 3 });
});

test("what no server counted stays unknown", () => {
  const none = { at: 0, submitted: null, succeeded: null, failed: null, dead: null, retried: null };
  const view = { step_ms: 60_000, until: 60_000, points: [none] };
  expect(perMinute(view as unknown as SeriesView)[0]).toMatchObject({ submitted: null, failed: null });
});

test("a failure is also one that is dead", () => {
  expect(failureShare({ succeeded: 3, failed: 1, dead: 0, canceled: 9 })).toBe(0.25);
  expect(failureShare({ succeeded: 0, canceled: 9 })).toBeNull();
});

test("empty buckets at the ends are left out, but for one", () => {
  const found = bucketsOf({ bounds_ms: [10, 50, 100, 250], counts: [0, 0, 3, 0, 1] });
  expect(found).toEqual([
    { from: 10, to: 50, count: 0 },
    { from: 50, to: 100, count: 3 },
    { from: 100, to: 250, count: 0 },
    { from: 250, to: null, count: 1 },
  ]);
  expect(bucketsOf({ bounds_ms: [10], counts: [0, 0] })).toEqual([]);
});

test("ranges have names in sentences", () => {
  expect(inWords("1h")).toBe("last hour");
  expect(inWords("24h")).toBe("last 24 h");
});
