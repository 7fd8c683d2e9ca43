import { expect, test } from "vitest";
import type { TaskEvent } from "../api/types";
import { lifeOf } from "./life";

const events = (...list: [number, string, object?][]): TaskEvent[] =>
  list.map(([at, type, data = {}], index) => ({ n: index + 1, at, type, data }));

test("a failure, a wait and a second attempt", () => {
  const error = { kind: "Timeout", message: "too slow" };
  const life = lifeOf(
    events(
      [0, "task.created"],
      [5, "task.claimed", { attempt: 1, worker: "w1" }],
      [9, "task.retrying", { error }],
      [20, "task.queued"],
      [21, "task.claimed", { attempt: 2, worker: "w2" }],
      [30, "task.succeeded"],
    ),
    null,
  );
  expect(life.map(({ what, from, to, end }) => [what, from, to, end])).toEqual([
    ["queued", 0, 5, null],
    ["running", 5, 9, "failed"],
    ["backing off", 9, 20, null],
    ["queued", 20, 21, null],
    ["running", 21, 30, "succeeded"],
  ]);
  expect(life[1]).toMatchObject({ attempt: 1, worker: "w1", error });
});

test("a task claimed in the instant of its creation never waited", () => {
  const life = lifeOf(events([7, "task.created"], [7, "task.claimed", { attempt: 1 }]), null);
  expect(life.map((one) => one.what)).toEqual(["running"]);
  expect(life[0]!.to).toBeNull();
});

test("one for later is scheduled first", () => {
  expect(lifeOf(events([0, "task.created"]), 1000)[0]!.what).toBe("scheduled");
});

test("a retry by a person begins another generation", () => {
  const life = lifeOf(
    events([0, "task.created"], [1, "task.claimed", { attempt: 1 }], [2, "task.failed"], [9, "task.replayed"]),
    null,
  );
  expect(life.map((one) => one.generation)).toEqual([1, 1, 2]);
});
