// A stretch of time as it is written in a search: how long ago, or from when to when.

export interface Within {
  text: string; // as it is written; empty: any time
  after: number | null; // from then on
  before: number | null; // up to and without it
}

export const ANY_TIME: Within = { text: "", after: null, before: null };
export const TIMES = ["<15m", "<1h", "<1d", ">1h", ">1d"]; // what is offered
export const HOW =
  'Write how long ago (<2h: within the last 2 hours, >1d: longer ago than a day) or "2026-11-19T10:00..2026-11-19T11:00"';

const UNITS: Readonly<Record<string, number>> = {
  s: 1_000,
  m: 60_000,
  min: 60_000,
  h: 3_600_000,
  d: 86_400_000,
  w: 604_800_000,
};
const AGE = /^([<>])(\d+(?:\.\d+)?)(s|m|min|h|d|w)$/;
const INSTANT = /^(\d{4}-\d\d-\d\d)(?:T(\d\d:\d\d)(?::\d\d(?:\.\d{1,3})?)?Z?)?$/;

/** Its beginning and its end: of a day without a time its midnights, of a time the same instant twice. */
function bounds(text: string): { from: number; to: number } | null {
  const found = INSTANT.exec(text);
  if (!found) return null;
  const from = new Date(found[2] ? text : `${text}T00:00`);
  if (Number.isNaN(from.getTime())) return null;
  if (found[2]) return { from: from.getTime(), to: from.getTime() };
  const to = new Date(from);
  to.setDate(to.getDate() + 1);
  return { from: from.getTime(), to: to.getTime() };
}

/** null: it is no time. */
export function parseWithin(text: string, now: number): Within | null {
  const age = AGE.exec(text);
  if (age) {
    const at = Math.max(0, Math.round(now - Number(age[2]) * UNITS[age[3]!]!));
    return age[1] === "<" ? { text, after: at, before: null } : { text, after: null, before: at };
  }
  const [sign, rest] = /^[<>]/.test(text) ? [text[0], text.slice(1)] : ["", text];
  const [first = "", last, ...more] = rest.split("..");
  const begin = bounds(first);
  if (sign) {
    if (!begin || last !== undefined) return null;
    return sign === ">" ? { text, after: begin.to, before: null } : { text, after: null, before: begin.from };
  }
  if (last === undefined) return begin && begin.to > begin.from ? { text, after: begin.from, before: begin.to } : null;
  const end = bounds(last);
  if (more.length || (first && !begin) || (last && !end) || (!first && !last)) return null;
  return { text, after: begin?.from ?? null, before: end?.to ?? null };
}

/** All other ages; null: it is no age. Of a stretch the rest would be two stretches. */
export function allBut(text: string, now: number): Within | null {
  if (!AGE.test(text)) return null;
  return parseWithin(`${text.startsWith("<") ? ">" : "<"}${text.slice(1)}`, now);
}

const written = (at: number): string =>
  new Date(at)
    .toISOString()
    .replace(".000Z", "Z")
    .replace(/(T\d\d:\d\d):00Z$/, "$1Z");

/** The same wherever the address is opened: in universal time. */
export function between(after: number | null, before: number | null): Within {
  if (after === null && before === null) return ANY_TIME;
  const text = `${after === null ? "" : written(after)}..${before === null ? "" : written(before)}`;
  return { text, after, before };
}
