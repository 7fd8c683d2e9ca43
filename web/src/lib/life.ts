// A task's life, read from its events: what it did when, and how each attempt went.
import type { Fault, TaskEvent } from "../api/types";
import type { Tone } from "../words";

export interface Stretch {
  what: string;
  tone: Tone;
  from: number;
  to: number | null; // null: still
  attempt: number | null;
  worker: string | null;
  generation: number;
  end: string | null;
  error: Fault | null;
}

type Data = Record<string, unknown>;

/** Which stretch begins with an event; null: it only ends one. Others change nothing. */
const BEGINS: Record<string, readonly [string, Tone] | null> = {
  "task.created": ["queued", "idle"],
  "task.queued": ["queued", "idle"],
  "task.promoted": ["queued", "idle"],
  "task.woken": ["queued", "idle"],
  "task.released": ["queued", "idle"],
  "task.reclaimed": ["queued", "idle"],
  "task.replayed": ["queued", "idle"],
  "approval.requested": ["needs approval", "wait"],
  "approval.approved": ["queued", "idle"],
  "task.claimed": ["running", "busy"],
  "task.retrying": ["backing off", "wait"],
  "task.parked": ["waiting", "wait"],
  "task.succeeded": null,
  "task.failed": null,
  "task.canceled": null,
};
const ENDS: Record<string, readonly [string, Tone]> = {
  "task.succeeded": ["succeeded", "good"],
  "task.failed": ["failed", "bad"],
  "task.canceled": ["canceled", "off"],
  "task.retrying": ["failed", "bad"],
  "task.released": ["released", "off"],
  "task.reclaimed": ["worker lost", "wait"],
  "task.parked": ["parked", "wait"],
};

export function lifeOf(events: readonly TaskEvent[], runAt: number | null): Stretch[] {
  const life: Stretch[] = [];
  let open: Stretch | null = null;
  let generation = 1;
  for (const event of events) {
    const data = (typeof event.data === "object" && event.data !== null ? event.data : {}) as Data;
    if (event.type === "task.replayed")
      generation = typeof data.generation === "number" ? data.generation : generation + 1;
    if (!(event.type in BEGINS)) continue;
    if (open) {
      open.to = event.at;
      if (open.attempt !== null) {
        const [end, tone] = ENDS[event.type] ?? [null, open.tone];
        open.end = end;
        open.tone = tone;
        open.error = (data.error as Fault | undefined) ?? null;
      }
      if (open.to === open.from && open.attempt === null) life.pop(); // born and taken in one breath
    }
    const begins = BEGINS[event.type];
    open = null;
    if (!begins) continue;
    let [what, tone] = begins;
    if (event.type === "task.created" && runAt !== null && runAt > event.at) [what, tone] = ["scheduled", "later"];
    const claimed = event.type === "task.claimed";
    open = {
      what,
      tone,
      from: event.at,
      to: null,
      attempt: claimed ? Number(data.attempt ?? 0) : null,
      worker: claimed && typeof data.worker === "string" ? data.worker : null,
      generation,
      end: null,
      error: null,
    };
    life.push(open);
  }
  return life;
}
