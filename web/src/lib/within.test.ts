import { expect, test } from "vitest";
import { allBut, between, parseWithin } from "./within";

const NOW = Date.UTC(2026, 10, 19, 12);
const HOUR = 3_600_000;

test("less than an age is since then, more than it is before", () => {
  expect(parseWithin("<2h", NOW)).toMatchObject({ after: NOW - 2 * HOUR, before: null });
  expect(parseWithin(">1.5h", NOW)).toMatchObject({ after: null, before: NOW - 1.5 * HOUR });
});

test("from and to, of which either may be left out", () => {
  const at = Date.UTC(2026, 10, 19, 10);
  expect(parseWithin("2026-11-19T10:00Z..2026-11-19T11:00Z", NOW)).toMatchObject({ after: at, before: at + HOUR });
  expect(parseWithin("2026-11-19T10:00Z..", NOW)).toMatchObject({ after: at, before: null });
  expect(parseWithin("..2026-11-19T10:00:00.500Z", NOW)).toMatchObject({ after: null, before: at + 500 });
});

test("a day is from midnight to midnight, here", () => {
  const day = new Date(2026, 10, 19).getTime();
  expect(parseWithin("2026-11-19", NOW)).toMatchObject({ after: day, before: day + 24 * HOUR });
  expect(parseWithin("2026-11-18..2026-11-19", NOW)).toMatchObject({ after: day - 24 * HOUR, before: day + 24 * HOUR });
  expect(parseWithin(">2026-11-19", NOW)).toMatchObject({ after: day + 24 * HOUR, before: null });
  expect(parseWithin("<2026-11-19", NOW)).toMatchObject({ after: null, before: day });
});

test.each(["2h", "<2", "..", "a..b", "2026-13-40", "<a", ">2026-11-19..", "1..2..3", "2026-11-19T10:00Z", ""])(
  "%s is no time",
  (text) => expect(parseWithin(text, NOW)).toBeNull(),
);

test("what is left out and what is meant make all of time", () => {
  expect(allBut("<2h", NOW)).toEqual({ text: ">2h", after: null, before: NOW - 2 * HOUR });
  expect(allBut("2026-11-19", NOW)).toBeNull();
});

test("what is written is read back", () => {
  const found = between(NOW, NOW + 60_000);
  expect(found.text).toBe("2026-11-19T12:00Z..2026-11-19T12:01Z");
  expect(parseWithin(found.text, 0)).toEqual(found);
  expect(parseWithin(between(NOW + 1, null).text, 0)).toMatchObject({ after: NOW + 1, before: null });
});
