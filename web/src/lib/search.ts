// What is written into the search box: `state:dead type:report tag:night` and so on, and a text to look for.
import { STATES } from "../words";
import type { State } from "../api/types";

export interface Search {
  states: readonly State[];
  type: string;
  queue: string;
  session: string;
  tags: readonly string[]; // a task has all of them
  batch: string;
  partition: string;
  text: string;
  fault: string | null;
}

const WORDS = /(-?\w+)[:<>]("[^"]*"|\S+)|"[^"]*"|\S+/g;
const PLAIN = ["type", "queue", "session", "batch", "partition"] as const;
export const FIELDS: readonly string[] = ["state", "type", "queue", "session", "tag", "batch", "partition"];

const NOTHING = { type: "", queue: "", session: "", batch: "", partition: "" };
const isPlain = (name: string | undefined): name is (typeof PLAIN)[number] =>
  (PLAIN as readonly (string | undefined)[]).includes(name);

/** A word that looks like a field must not be searched as a text: it would find nothing, and not say why. */
function unknown(name: string): string {
  if (name.startsWith("-") && FIELDS.includes(name.slice(1))) return `Only states can be left out: -state:succeeded`;
  return `Unknown field "${name}". Fields: ${FIELDS.join(", ")}. Put a text that has a colon in quotes`;
}

export function parseSearch(text: string): Search {
  const found = { states: [] as State[], tags: [] as string[], ...NOTHING };
  const not: State[] = [];
  const rest: string[] = [];
  let fault: string | null = null;
  for (const match of text.matchAll(WORDS)) {
    const [whole, name, quoted = ""] = match;
    const value = quoted.replace(/^"|"$/g, "");
    if (name === "state" || name === "-state") {
      for (const word of value.split(",")) {
        if ((STATES as readonly string[]).includes(word)) (name === "state" ? found.states : not).push(word as State);
        else fault = `Unknown state "${word}". States: ${STATES.join(", ")}`;
      }
    } else if (name === "tag") found.tags.push(value);
    else if (isPlain(name)) found[name] = value;
    else if (name !== undefined && !quoted.startsWith("//")) fault = unknown(name);
    else rest.push(whole.replace(/^"|"$/g, ""));
  }
  if (not.length) found.states = (found.states.length ? found.states : [...STATES]).filter((one) => !not.includes(one));
  if (not.length && !found.states.length) fault ??= "No state is left";
  return { ...found, text: rest.join(" "), fault };
}

export function formatSearch({ states, tags, text, ...plain }: Partial<Search>): string {
  const quote = (value: string): string => (/[\s"]/.test(value) ? `"${value.replaceAll('"', "")}"` : value);
  return [
    ...(states?.length ? [`state:${states.join(",")}`] : []),
    ...PLAIN.flatMap((name) => (plain[name] ? [`${name}:${quote(plain[name])}`] : [])),
    ...(tags ?? []).map((tag) => `tag:${quote(tag)}`),
    ...(text ? [text] : []),
  ].join(" ");
}

export function searchParams(search: Search): Record<string, string | readonly string[]> {
  const { states, type, queue, session, tags, batch, partition, text } = search;
  return { state: states, type, queue, session, tag: tags, batch, partition, q: text };
}

/** The address of a session's page. A browser takes "." and ".." for folders: their tasks stand in. */
export function sessionAt(id: string): string {
  return id === "." || id === ".." ? tasksAt({ session: id }) : `/sessions/${encodeURIComponent(id)}`;
}

/** The address of a queue's page. A name with a slash has none: its tasks stand in. */
export function queueAt(name: string): string {
  return /\/|^\.\.?$/.test(name) ? tasksAt({ queue: name }) : `/queues/${encodeURIComponent(name)}`;
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
