import { expect, test } from "vitest";
import type { Change, Task } from "../api/types";
import { sorted, totalOf } from "./columns";
import { parseSearch } from "./search";

const task = (id: string, created_at: number, attempt: number): Task =>
  ({ id, created_at, attempt }) as unknown as Task;
const rows = [task("a", 3, 1), task("b", 2, 5), task("c", 1, 2)];

test("rows are sorted by a column, either way", () => {
  expect(sorted(rows, "attempt").map((one) => one.id)).toEqual(["a", "c", "b"]);
  expect(sorted(rows, "-attempt").map((one) => one.id)).toEqual(["b", "c", "a"]);
  expect(sorted(rows, "created").map((one) => one.id)).toEqual(["c", "b", "a"]);
  expect(sorted(rows, "")).toBe(rows);
});

test("the total is known where the live counts tell it", () => {
  const now = { states: { dead: 2, queued: 5 }, queues: { mail: { dead: 1 } } } as unknown as Change;
  expect(totalOf(parseSearch(""), now)).toBe(7);
  expect(totalOf(parseSearch("state:dead"), now)).toBe(2);
  expect(totalOf(parseSearch("queue:mail state:dead"), now)).toBe(1);
  expect(totalOf(parseSearch("queue:other"), now)).toBeUndefined();
  expect(totalOf(parseSearch("type:x"), now)).toBeUndefined();
});

test("states are left out", () => {
  expect(parseSearch("-state:succeeded,canceled").states).toEqual([
    "queued",
    "running",
    "scheduled",
    "waiting",
    "failed",
    "dead",
  ]);
  expect(parseSearch("state:dead,failed -state:dead").states).toEqual(["failed"]);
  expect(parseSearch("state:dead -state:dead").fault).toBe("No state is left");
});
