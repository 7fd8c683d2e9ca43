import { expect, test } from "vitest";
import { formatSearch, isCounted, parseSearch, searchParams, sessionAt, tasksAt } from "./search";
import { ANY_TIME, between } from "./within";

test("fields are taken out of the text, in any order", () => {
  const found = parseSearch(
    'state:dead,failed lost order type:report queue:"night shift" session:s1 tag:a tag:b partition:p1',
  );
  expect(found).toEqual({
    states: ["dead", "failed"],
    type: "report",
    queue: "night shift",
    session: "s1",
    tags: ["a", "b"],
    batch: "",
    partition: "p1",
    created: ANY_TIME,
    finished: ANY_TIME,
    not: { type: [], queue: [], session: [], batch: [], partition: [], tag: [] },
    text: "lost order",
    fault: null,
  });
});

test("an unknown state is a fault that lists the known ones", () => {
  expect(parseSearch("state:bogus").fault).toMatch(/bogus.*queued, running/);
});

test("a name that is no field is part of the text", () => {
  expect(parseSearch('https://example.org "two words"').text).toBe("https://example.org two words");
});

test.each([
  "state:dead,failed type:report lost order",
  "batch:b1 tag:a tag:b",
  'queue:"night shift"',
  'type:report -queue:gpu -queue:"night shift" -tag:a created:<2h finished:2026-11-19..',
  "plain text",
  "",
])("what is formatted is parsed back: %s", (text) => expect(formatSearch(parseSearch(text))).toBe(text));

test("the API gets the text as q", () => {
  expect(searchParams(parseSearch("type:report lost"))).toMatchObject({ type: "report", q: "lost" });
});

test("a session whose name is no part of a path is shown by its tasks", () => {
  expect(sessionAt("ann")).toBe("/sessions/ann");
  expect(sessionAt("a/b")).toBe("/sessions/a%2Fb");
  expect(sessionAt("..")).toBe(tasksAt({ session: ".." }));
});

test.each(["worker:x", "-worker:x", "attempt>1"])("%s is no field, and not a text either", (text) => {
  expect(parseSearch(text)).toMatchObject({ text: "" });
  expect(parseSearch(text).fault).toContain("Unknown field");
});

test("a text with a colon is quoted; an address needs no quotes", () => {
  expect(parseSearch('"worker:x"')).toMatchObject({ text: "worker:x", fault: null });
  expect(parseSearch("http://a.b/c")).toMatchObject({ text: "http://a.b/c", fault: null });
});

test("values of a field are left out, each with its own word", () => {
  const found = parseSearch("-type:mail -type:report -tag:night -session:s1");
  expect(searchParams(found)).toMatchObject({
    not_type: ["mail", "report"],
    not_tag: ["night"],
    not_session: ["s1"],
    type: "",
  });
  expect(isCounted(found)).toBe(false);
  expect(isCounted(parseSearch("-state:dead queue:gpu"))).toBe(true);
});

test("a time is an age or a stretch, counted once", () => {
  const now = 10_000_000;
  expect(searchParams(parseSearch("created:<1h", now))).toMatchObject({
    created_after: now - 3_600_000,
    created_before: null,
  });
  expect(parseSearch("created>1h", now).created).toEqual(parseSearch("created:>1h", now).created);
  expect(parseSearch("-created:<1h", now).created).toEqual(parseSearch("created:>1h", now).created);
  const step = between(now, now + 60_000);
  expect(parseSearch(formatSearch({ finished: step })).finished).toEqual(step);
});

test("what is no time is a fault that shows how one is written", () => {
  expect(parseSearch("created:yesterday").fault).toMatch(/no time.*<2h/);
  expect(parseSearch("-created:2026-11-19").fault).toMatch(/no time/);
});
