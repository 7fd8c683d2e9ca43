// Phases and states: what they are called, how they look, what may be done. Nothing else knows them.
import type { IconName } from "./components/icon";
import type { NodeStatus, Phase, State, Task } from "./api/types";

export type Tone = "idle" | "later" | "busy" | "wait" | "good" | "bad" | "dead" | "off";
export type Act = "cancel" | "retry" | "delete" | "abandon" | "approve";

interface Word {
  label: string;
  tone: Tone;
  icon: IconName;
  acts: readonly Act[];
  live: boolean; // something is still to come
}

const word = (label: string, tone: Tone, icon: IconName, acts: readonly Act[], live = true): Word => ({
  label,
  tone,
  icon,
  acts,
  live,
});

const PHASES: Record<Phase | State, Word> = {
  scheduled: word("scheduled", "later", "clock", ["cancel"]),
  queued: word("queued", "idle", "dots", ["cancel"]),
  retry_wait: word("backing off", "wait", "clock", ["cancel"]),
  retrying: word("retrying", "wait", "redo", ["cancel"]),
  requeued: word("requeued", "idle", "dots", ["cancel"]),
  offered: word("offered", "idle", "dots", ["cancel"]),
  running: word("running", "busy", "play", ["cancel"]),
  overdue: word("overdue", "wait", "play", ["cancel"]),
  canceling: word("canceling", "off", "stop", []),
  waiting_approval: word("needs approval", "wait", "hand", ["approve", "cancel"]),
  parked: word("waiting", "wait", "pause", ["cancel"]),
  waiting: word("waiting", "wait", "pause", ["cancel"]),
  succeeded: word("succeeded", "good", "check", ["delete"], false),
  failed: word("failed", "bad", "cross", ["retry", "delete"], false),
  dead: word("dead", "dead", "skull", ["retry", "delete", "abandon"], false),
  canceled: word("canceled", "off", "stop", ["retry", "delete"], false),
};

export const STATES: readonly State[] = [
  "queued",
  "running",
  "scheduled",
  "waiting",
  "succeeded",
  "failed",
  "dead",
  "canceled",
];

export function phaseWord(phase: string): Word {
  return PHASES[phase as Phase] ?? word(phase, "idle", "dots", []);
}

export function may(task: Pick<Task, "phase">, act: Act): boolean {
  return phaseWord(task.phase).acts.includes(act);
}

export type NodeState = NodeStatus | "waiting" | "asking" | "none";

/** A node of a flow, as it stands in one run. */
export const NODES: Record<NodeState, { label: string; tone: Tone; icon: IconName }> = {
  none: { label: "not reached", tone: "idle", icon: "dots" },
  running: { label: "running", tone: "busy", icon: "play" },
  waiting: { label: "waiting", tone: "wait", icon: "pause" },
  asking: { label: "needs approval", tone: "wait", icon: "hand" },
  ok: { label: "done", tone: "good", icon: "check" },
  error: { label: "failed", tone: "bad", icon: "cross" },
  canceled: { label: "canceled", tone: "off", icon: "stop" },
};

/** A node that is at it: one that calls nobody only waits. */
export function atIt(kind: string): NodeState {
  return kind === "approval" ? "asking" : kind === "wait_event" || kind === "timer" ? "waiting" : "running";
}

/** What an event means to a reader; the colour of its mark in the log. */
export function eventTone(type: string): Tone {
  if (/succeeded|approved|delivered/.test(type)) return "good";
  if (/dlq|abandoned/.test(type)) return "dead";
  if (/failed|rejected/.test(type)) return "bad";
  if (/retrying|reclaimed|timeout|unreached|late|requested|parked/.test(type)) return "wait";
  if (/cancel/.test(type)) return "off";
  if (/claimed|sent|progress|chunk/.test(type)) return "busy";
  return "idle";
}
