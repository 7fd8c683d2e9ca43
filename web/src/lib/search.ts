// What is written into the search box: `state:dead -type:report tag:night created:<2h` and so on, and a text to look for.
import { STATES } from "../words";
import type { State } from "../api/types";
import { serverNow } from "./time";
import { allBut, ANY_TIME, HOW, parseWithin } from "./within";
import type { Within } from "./within";

const PLAIN = ["type", "queue", "session", "batch", "partition"] as const;
const LEFT_OUT = [...PLAIN, "tag"] as const; // fields of which values can be left out; states are chosen instead
const TIMED = ["created", "finished"] as const;
export const FIELDS: readonly string[] = [
  "state",
  "type",
  "queue",
  "session",
  "tag",
  "batch",
  "partition",
  "created",
  "finished",
];

export type Not = Readonly<Record<(typeof LEFT_OUT)[number], readonly string[]>>;

export interface Search {
  states: readonly State[];
  type: string;
  queue: string;
  session: string;
  tags: readonly string[]; // a task has all of them
  batch: string;
  partition: string;
  created: Within;
  finished: Within;
  not: Not; // a task has none of these values
  text: string;
  fault: string | null;
}

const WORDS = /(-?\w+)([:<>])("[^"]*"|\S+)|"[^"]*"|\S+/g;
const NOTHING = { type: "", queue: "", session: "", batch: "", partition: "" };
const nothingLeftOut = (): Record<(typeof LEFT_OUT)[number], string[]> => ({
  type: [],
  queue: [],
  session: [],
  batch: [],
  partition: [],
  tag: [],
});
const isOne = <T extends string>(names: readonly T[], name: string | undefined): name is T =>
  (names as readonly (string | undefined)[]).includes(name);

/** A word that looks like a field must not be searched as a text: it would find nothing, and not say why. */
function unknown(name: string): string {
  return `Unknown field "${name}". Fields: ${FIELDS.join(", ")}. Put a text that has a colon in quotes`;
}

/** Ages are counted from `now`, once: a list whose bounds moved with the clock would be read anew all the time. */
export function parseSearch(text: string, now = serverNow()): Search {
  const found = { states: [] as State[], tags: [] as string[], ...NOTHING };
  const times: Record<(typeof TIMED)[number], Within> = { created: ANY_TIME, finished: ANY_TIME };
  const left = nothingLeftOut();
  const not: State[] = [];
  const rest: string[] = [];
  let fault: string | null = null;
  for (const match of text.matchAll(WORDS)) {
    const [whole, name, sign = "", quoted = ""] = match;
    const value = quoted.replace(/^"|"$/g, "");
    const field = name?.replace(/^-/, "");
    const without = name !== field;
    if (isOne(TIMED, field)) {
      const written = sign === ":" ? value : `${sign}${value}`; // created>2h means the same
      const within = without ? allBut(written, now) : parseWithin(written, now);
      if (within) times[field] = within;
      else fault = `"${whole}" is no time. ${HOW}`;
    } else if (sign !== ":" && name !== undefined) fault = unknown(name);
    else if (field === "state") {
      for (const word of value.split(",")) {
        if ((STATES as readonly string[]).includes(word)) (without ? not : found.states).push(word as State);
        else fault = `Unknown state "${word}". States: ${STATES.join(", ")}`;
      }
    } else if (without && isOne(LEFT_OUT, field)) left[field].push(value);
    else if (field === "tag") found.tags.push(value);
    else if (isOne(PLAIN, field)) found[field] = value;
    else if (name !== undefined && !quoted.startsWith("//")) fault = unknown(name);
    else rest.push(whole.replace(/^"|"$/g, ""));
  }
  if (not.length) found.states = (found.states.length ? found.states : [...STATES]).filter((one) => !not.includes(one));
  if (not.length && !found.states.length) fault ??= "No state is left";
  return { ...found, ...times, not: left, text: rest.join(" "), fault };
}

export function formatSearch({ states, tags, created, finished, not, text, ...plain }: Partial<Search>): string {
  const quote = (value: string): string => (/[\s"]/.test(value) ? `"${value.replaceAll('"', "")}"` : value);
  return [
    ...(states?.length ? [`state:${states.join(",")}`] : []),
    ...PLAIN.flatMap((name) => (plain[name] ? [`${name}:${quote(plain[name])}`] : [])),
    ...(tags ?? []).map((tag) => `tag:${quote(tag)}`),
    ...LEFT_OUT.flatMap((name) => (not?.[name] ?? []).map((value) => `-${name}:${quote(value)}`)),
    ...(created?.text ? [`created:${created.text}`] : []),
    ...(finished?.text ? [`finished:${finished.text}`] : []),
    ...(text ? [text] : []),
  ].join(" ");
}

/** What the server is asked: the same words for a list and for an operation, but for `tag` and `state` one each. */
export function searchParams(search: Search): Record<string, string | number | null | readonly string[]> {
  const { states, type, queue, session, tags, batch, partition, created, finished, not, text } = search;
  return {
    state: states,
    type,
    queue,
    session,
    tag: tags,
    batch,
    partition,
    created_after: created.after,
    created_before: created.before,
    finished_after: finished.after,
    finished_before: finished.before,
    ...Object.fromEntries(LEFT_OUT.map((name) => [`not_${name}`, not[name]] as const)),
    q: text,
  };
}

/** Whether it asks for states and a queue alone, of which there are counts. */
export function isCounted(search: Search): boolean {
  return formatSearch({ ...search, states: [], queue: "" }) === "";
}

/** The address of a session's page. A browser takes "." and ".." for folders: their tasks stand in. */
export function sessionAt(id: string): string {
  return id === "." || id === ".." ? tasksAt({ session: id }) : `/sessions/${encodeURIComponent(id)}`;
}

/** The address of a queue's page. A name with a slash has none: its tasks stand in. */
export function queueAt(name: string): string {
  return /\/|^\.\.?$/.test(name) ? tasksAt({ queue: name }) : `/queues/${encodeURIComponent(name)}`;
}

export function batchAt(id: string): string {
  return `/batches/${encodeURIComponent(id)}`;
}

/** The address of a limit's page. A name with a slash has none. */
export function limitAt(name: string): string {
  return /\/|^\.\.?$/.test(name) ? "/limits" : `/limits/${encodeURIComponent(name)}`;
}

/** Of a service, or of a task type that no service declares. */
export function serviceAt(name: string): string {
  return /\/|^\.\.?$/.test(name) ? tasksAt({ type: name }) : `/services/${encodeURIComponent(name)}`;
}

/** The address of a list. Every number on the page leads to one. */
export function tasksAt(search: Partial<Search>): string {
  const q = formatSearch(search);
  return q ? `/tasks?${new URLSearchParams({ q }).toString()}` : "/tasks";
}
