import { expect, test } from "vitest";
import { jsonFault } from "./jsonfault";

test.each(["null", ' {"a": [1, -2.5e3, "x\\n\\u00e9", true, {}], "b": []} ', "0", '"with \\"quotes\\""'])(
  "%s is JSON",
  (text) => {
    expect(jsonFault(text)).toBeNull();
    JSON.parse(text);
  },
);

test.each([
  ["{\n  'a': 1\n}", 2, 3, "expected a name in double quotes"],
  ['{\n  "a": 1\n  "b": 2\n}', 3, 3, "expected , or }"],
  ['{"a": 1,}', 1, 9, "no comma stands before }"],
  ["[1, 2,\n]", 2, 1, "no comma stands before ]"],
  ['{"a" 1}', 1, 6, "expected : after the name"],
  ['{"a": yes}', 1, 7, "expected a value"],
  ["{\"a\": 'x'}", 1, 7, "strings stand in double quotes"],
  ['{"a": "x', 1, 7, "the string that begins here has no end"],
  ['["x\ny"]', 1, 2, "the string that begins here has no end"],
  ['["\\q"]', 1, 3, "unknown escape"],
  ['["\t"]', 1, 3, "a control character must be escaped"],
  ['{"a": {"b": 1}', 1, 15, "} is missing"],
  ["[01]", 1, 3, "expected , or ]"],
  ["1 2", 1, 3, "nothing may follow the value"],
  ["", 1, 1, "expected a value"],
])("%j is wrong at %i:%i: %s", (text, line, column, message) => {
  expect(jsonFault(text)).toMatchObject({ line, column, message });
  expect(() => JSON.parse(text) as unknown).toThrow();
});
