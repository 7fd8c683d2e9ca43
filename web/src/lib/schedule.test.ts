import { expect, test } from "vitest";
import type { Schedule } from "../api/types";
import { bodyOf, draftOf, inZone } from "./schedule";

const now = Date.UTC(2026, 0, 1);
const saved = (part: Partial<Schedule>): Schedule =>
  ({ name: "nightly", type: "echo", payload: { n: 1 }, flow: null, timezone: "UTC", ...part }) as Schedule;

test("an interval is shown in the largest unit that divides it, and sent back in milliseconds", () => {
  const draft = draftOf(saved({ every_ms: 7_200_000 }), [], now);
  expect([draft.when, draft.every, draft.unit]).toEqual(["every_ms", "2", "hours"]);
  expect(bodyOf(draft)).toMatchObject({ type: "echo", payload: { n: 1 }, every_ms: 7_200_000 });
});

test("one instant survives the form, to the minute", () => {
  const at = Date.UTC(2026, 5, 1, 12, 30);
  expect(bodyOf(draftOf(saved({ run_at: at }), [], now))).toMatchObject({ run_at: at });
});

test("a flow is sent with its parameters, and without the options of a task", () => {
  const body = bodyOf(draftOf(saved({ flow: "order", params: { a: 1 }, queue: "gpu", cron: "0 3 * * *" }), [], now));
  expect(body).toMatchObject({ flow: "order", params: { a: 1 }, cron: "0 3 * * *" });
  expect(body).not.toHaveProperty("queue");
  expect(body).not.toHaveProperty("payload");
});

test("options that are left empty are not sent; what is no number is left to the server", () => {
  const draft = draftOf(saved({ cron: "0 3 * * *" }), [], now);
  expect(bodyOf(draft)).not.toHaveProperty("max_retries");
  expect(bodyOf({ ...draft, max_retries: "many" })).toMatchObject({ max_retries: "many" });
});

test("a time zone that this browser does not know is no fault", () => {
  expect(inZone(now, "Nowhere/None")).toBeTruthy();
  expect(inZone(now, "Asia/Tokyo")).toContain("9:00:00");
});
