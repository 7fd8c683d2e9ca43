// A run on one line of time: its steps, in each the calls it made, and in each call its attempts.
import type { NodeRun, NodeStatus } from "../api/types";
import type { Step } from "./run";

export interface Call {
  id: string; // of its task
  attempts: readonly NodeRun[]; // the first one first
  from: number;
  to: number | null; // null: still
  status: NodeStatus;
}

/** The calls of each step, by its number. A node may be a step several times: the time tells whose a call is. */
export function callsBySteps(steps: readonly Step[], rows: readonly NodeRun[], run: string): Map<number, Call[]> {
  const found = new Map<number, Map<string, NodeRun[]>>();
  for (const row of rows) {
    const id = row.id.slice(0, row.id.lastIndexOf(":"));
    if (id === run || row.started_at === null) continue; // the node's own row: it called nobody
    const step = steps.findLast((one) => one.node === row.node_key && one.from <= row.started_at! + SKEW_MS);
    if (!step) continue;
    const calls = found.get(step.seq) ?? new Map<string, NodeRun[]>();
    calls.set(id, [...(calls.get(id) ?? []), row]);
    found.set(step.seq, calls);
  }
  return new Map([...found].map(([seq, calls]) => [seq, [...calls].map(([id, attempts]) => callOf(id, attempts))]));
}

const SKEW_MS = 5; // a call may be claimed in the very moment in which its step is written

function callOf(id: string, rows: readonly NodeRun[]): Call {
  const attempts = [...rows].sort((one, other) => one.attempt_no - other.attempt_no);
  const last = attempts.at(-1)!;
  return { id, attempts, from: attempts[0]!.started_at!, to: last.finished_at, status: last.status };
}
