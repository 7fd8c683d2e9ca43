import { expect, test } from "vitest";
import { suggestions, wordAt } from "./suggest";

const KNOWN = { state: ["queued", "running", "dead"], type: ["mail", "big report"], queue: ["gpu"], session: [] };
const texts = (word: string): string[] => suggestions(word, KNOWN).map((one) => one.text);

test("the word at the caret is what lies between blanks, quotes included", () => {
  expect(wordAt("state:dead typ", 14)).toEqual({ from: 11, to: 14, word: "typ" });
  expect(wordAt("state:dead type:x", 4).word).toBe("state:dead");
  expect(wordAt('type:"big report" x', 12).word).toBe('type:"big report"');
  expect(wordAt("", 0)).toEqual({ from: 0, to: 0, word: "" });
});

test("fields are offered first, then their values", () => {
  expect(texts("")).toEqual([
    "state:",
    "type:",
    "queue:",
    "session:",
    "tag:",
    "batch:",
    "partition:",
    "created:",
    "finished:",
  ]);
  expect(texts("st")).toEqual(["state:"]);
  expect(texts("-")).toHaveLength(7);
  expect(texts("-ty")).toEqual(["-type:"]);
  expect(texts("type:re")).toEqual(['type:"big report"']);
  expect(texts("queue:gpu")).toEqual([]);
  expect(texts("text")).toEqual([]);
  expect(texts("-type:re")).toEqual(['-type:"big report"']);
  expect(texts("nofield:x")).toEqual([]);
});

test("several states are written with commas", () => {
  expect(texts("state:dead,")).toEqual(["state:dead,queued", "state:dead,running"]);
  expect(texts("-state:de")).toEqual(["-state:dead"]);
});
