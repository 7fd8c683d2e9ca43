// A schedule between its form and the wire.
import { parse } from "../api/client";
import type { Flow, Schedule } from "../api/types";
import { pretty } from "./json";
import { full } from "./time";

export const UNITS = [
  ["seconds", 1_000],
  ["minutes", 60_000],
  ["hours", 3_600_000],
  ["days", 86_400_000],
] as const;
export type Unit = (typeof UNITS)[number][0];

/** All texts, as a form has them. */
export interface ScheduleDraft {
  name: string;
  what: "type" | "flow";
  type: string;
  flow: string;
  given: string; // JSON: the payload, or the params
  when: "cron" | "every_ms" | "run_at";
  cron: string;
  every: string;
  unit: Unit;
  at: string; // as an input of kind datetime-local has it
  timezone: string;
  missed: Schedule["missed"];
  overlap: Schedule["overlap"];
  queue: string;
  priority: "" | NonNullable<Schedule["priority"]>;
  max_retries: string;
  timeout_ms: string;
  session_id: string;
  requires_approval: boolean;
}

export function draftOf(schedule: Schedule | null, flows: readonly Flow[], now: number): ScheduleDraft {
  const every = schedule?.every_ms ?? 300_000;
  const [unit, size] = UNITS.findLast(([, ms]) => every % ms === 0) ?? UNITS[0];
  return {
    name: schedule?.name ?? "",
    what: schedule?.flow ? "flow" : "type",
    type: schedule?.type ?? "",
    flow: schedule?.flow ?? flows[0]?.name ?? "",
    given: pretty(schedule?.flow ? (schedule.params ?? {}) : (schedule?.payload ?? {})),
    when: schedule?.every_ms != null ? "every_ms" : schedule?.run_at != null ? "run_at" : "cron",
    cron: schedule?.cron ?? "0 9 * * 1-5",
    every: String(every / size),
    unit,
    at: localInput(schedule?.run_at ?? now + 3_600_000),
    timezone: schedule?.timezone ?? Intl.DateTimeFormat().resolvedOptions().timeZone ?? "UTC",
    missed: schedule?.missed ?? "once",
    overlap: schedule?.overlap ?? "allow",
    queue: schedule?.queue ?? "",
    priority: schedule?.priority ?? "",
    max_retries: schedule?.max_retries == null ? "" : String(schedule.max_retries),
    timeout_ms: schedule?.timeout_ms == null ? "" : String(schedule.timeout_ms),
    session_id: schedule?.session_id ?? "",
    requires_approval: schedule?.requires_approval ?? false,
  };
}

/** The server judges it: nothing is put right here. */
export function bodyOf(draft: ScheduleDraft): Record<string, unknown> {
  const number = (text: string): number | string => (Number.isFinite(Number(text)) ? Number(text) : text);
  const work =
    draft.what === "flow"
      ? { flow: draft.flow, params: parse(draft.given) }
      : {
          type: draft.type,
          payload: parse(draft.given),
          ...(draft.queue && { queue: draft.queue }),
          ...(draft.priority && { priority: draft.priority }),
          ...(draft.max_retries && { max_retries: number(draft.max_retries) }),
          ...(draft.timeout_ms && { timeout_ms: number(draft.timeout_ms) }),
          ...(draft.session_id && { session_id: draft.session_id }),
          ...(draft.requires_approval && { requires_approval: true }),
        };
  return { name: draft.name, ...work, ...timesOf(draft), missed: draft.missed, overlap: draft.overlap };
}

/** When it runs. */
export function timesOf(draft: ScheduleDraft): Record<string, unknown> {
  const size = UNITS.find(([unit]) => unit === draft.unit)![1];
  const times = {
    cron: { cron: draft.cron },
    every_ms: { every_ms: Math.round(Number(draft.every) * size) || 0 },
    run_at: { run_at: new Date(draft.at).getTime() },
  };
  return { ...times[draft.when], timezone: draft.timezone };
}

function localInput(at: number): string {
  const date = new Date(at);
  return new Date(at - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

export const scheduleAt = (name: string): string => `/schedules/${encodeURIComponent(name)}`;
export const scheduleApi = (name: string): string => `/api/v2/schedules/${encodeURIComponent(name)}`;

/** The schedule's own wall clock; ours, should this browser not know its zone. */
export function inZone(at: number, timeZone: string, timeStyle: "short" | "medium" = "medium"): string {
  try {
    return new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle, timeZone }).format(at);
  } catch {
    return full(at);
  }
}
