// What may be meant by the word that is being written into the search box.
import { FIELDS } from "./search";

export interface Suggestion {
  text: string; // in place of the word
  hint: string;
  whole: boolean; // nothing is to be added to it
}

export type Known = Readonly<Record<string, readonly string[]>>; // values by field

const MOST = 8;

const HINTS: Record<string, string> = {
  state: "one of the eight states",
  type: "the type of the task",
  queue: "the queue it is on",
  session: "the session that submitted it",
  tag: "a tag that it has; several: all of them",
  batch: "the batch that it was handed in with",
  partition: "the partition of its queue",
  created: "when it was submitted: <2h within the last 2 hours, >1d longer ago",
  finished: "when it ended: <2h within the last 2 hours, >1d longer ago",
};
// What of a field can be left out; of times the rest is written itself.
const LEFT_OUT: Record<string, string> = {
  "-state": "all states but this one",
  "-type": "every type but this one",
  "-queue": "every queue but this one",
  "-session": "every session but this one",
  "-tag": "only tasks without this tag",
  "-batch": "every batch but this one",
  "-partition": "every partition but this one",
};

/** Where the word at the caret begins and ends. */
export function wordAt(text: string, caret: number): { from: number; to: number; word: string } {
  let [open, from] = [false, 0];
  for (let index = 0; index < caret; index++) {
    if (text[index] === '"') open = !open;
    else if (text[index] === " " && !open) from = index + 1;
  }
  const rest = text.slice(caret);
  const end = open ? rest.indexOf('"') + 1 : rest.search(/\s/);
  const to = end <= 0 ? text.length : caret + end;
  return { from, to, word: text.slice(from, to) };
}

const quoted = (value: string): string => (/[\s"]/.test(value) ? `"${value.replaceAll('"', "")}"` : value);

export function suggestions(word: string, known: Known): Suggestion[] {
  const [, name = "", begun = ""] = /^(-?\w+):(.*)$/s.exec(word) ?? [];
  if (!name) {
    const wanted = word.toLowerCase();
    return Object.entries(word.startsWith("-") ? LEFT_OUT : HINTS)
      .filter(([field]) => field.startsWith(wanted))
      .map(([field, hint]) => ({ text: `${field}:`, hint, whole: false }));
  }
  const field = name.replace(/^-/, "");
  if (!FIELDS.includes(field)) return [];
  const done = field === "state" ? begun.split(",").slice(0, -1) : []; // several states, with commas
  const wanted = (field === "state" ? begun.split(",").at(-1)! : begun).replaceAll('"', "").toLowerCase();
  const values = (known[field] ?? []).filter((value) => value.toLowerCase().includes(wanted) && !done.includes(value));
  values.sort((one, other) => Number(other.startsWith(wanted)) - Number(one.startsWith(wanted)));
  return values
    .filter((value) => `${name}:${[...done, quoted(value)].join(",")}` !== word)
    .slice(0, MOST)
    .map((value) => ({ text: `${name}:${[...done, quoted(value)].join(",")}`, hint: "", whole: true }));
}
