// What is written into the search box: `state:dead type:report queue:gpu session:s1` and a text to look for.
import { STATES } from "../words";
import type { State } from "../api/types";

export interface Search {
  states: readonly State[];
  type: string;
  queue: string;
  session: string;
  text: string;
  fault: string | null;
}

const WORDS = /(-?\w+)[:<>]("[^"]*"|\S+)|"[^"]*"|\S+/g;
export const FIELDS = ["state", "type", "queue", "session"];

/** A word that looks like a field must not be searched as a text: it would find nothing, and not say why. */
function unknown(name: string): string {
  if (name.startsWith("-") && FIELDS.includes(name.slice(1))) return `Only states can be left out: -state:succeeded`;
  return `Unknown field "${name}". Fields: ${FIELDS.join(", ")}. Put a text that has a colon in quotes`;
}

export function parseSearch(text: string): Search {
  const found: { states: State[]; type: string; queue: string; session: string } = {
    states: [],
    type: "",
    queue: "",
    session: "",
  };
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
    } else if (name === "type" || name === "queue" || name === "session") found[name] = value;
    else if (name !== undefined && !quoted.startsWith("//")) fault = unknown(name);
    else rest.push(whole.replace(/^"|"$/g, ""));
  }
  if (not.length) found.states = (found.states.length ? found.states : [...STATES]).filter((one) => !not.includes(one));
  if (not.length && !found.states.length) fault ??= "No state is left";
  return { ...found, text: rest.join(" "), fault };
}

export function formatSearch({ states, type, queue, session, text }: Partial<Search>): string {
  const quote = (value: string): string => (/[\s"]/.test(value) ? `"${value.replaceAll('"', "")}"` : value);
  return [
    ...(states?.length ? [`state:${states.join(",")}`] : []),
    ...(type ? [`type:${quote(type)}`] : []),
    ...(queue ? [`queue:${quote(queue)}`] : []),
    ...(session ? [`session:${quote(session)}`] : []),
    ...(text ? [text] : []),
  ].join(" ");
}

export function searchParams(search: Search): Record<string, string | readonly string[]> {
  const { states, type, queue, session, text } = search;
  return { state: states, type, queue, session, q: text };
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
