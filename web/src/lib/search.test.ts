import { expect, test } from "vitest";
import { formatSearch, parseSearch, searchParams, sessionAt, tasksAt } from "./search";

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

test.each(["worker:x", "-worker:x", "created>1h"])("%s is no field, and not a text either", (text) => {
  expect(parseSearch(text)).toMatchObject({ text: "" });
  expect(parseSearch(text).fault).toContain("Unknown field");
});

test("a text with a colon is quoted; an address needs no quotes", () => {
  expect(parseSearch('"worker:x"')).toMatchObject({ text: "worker:x", fault: null });
  expect(parseSearch("http://a.b/c")).toMatchObject({ text: "http://a.b/c", fault: null });
});
