// A run, read from its events and node runs: the steps it made, how each node stands, which way it went.
import { parse } from "../api/client";
import type { Fault, NodeRun, NodeStatus, Run, TaskEvent } from "../api/types";
import type { NodeLook } from "../components/graph";
import { atIt, phaseWord } from "../words";

export interface Step {
  seq: number;
  node: string;
  kind: string;
  from: number;
  to: number | null; // null: the run is at it
  status: NodeStatus | null;
  action: string;
  calls: number; // begun so far, of nodes that make many
  total: number | null; // of a foreach, as far as its list is told
  child: string | null; // the task of its one call
  error: string;
}

type Data = Partial<Omit<Step, "error"> & { input: unknown; error: Fault }>;

/** Those of the present generation: a run that was replayed begins anew. */
export function stepsOf(events: readonly TaskEvent[]): Step[] {
  const steps = new Map<number, Step>();
  for (const event of events) {
    if (event.type === "task.replayed") steps.clear();
    if (event.type !== "node.started" && event.type !== "node.finished") continue;
    const data = (event.data ?? {}) as Data;
    const seq = data.seq ?? 0;
    const before = steps.get(seq);
    const over = event.type === "node.finished";
    steps.set(seq, {
      seq,
      node: data.node ?? before?.node ?? "",
      kind: data.kind ?? before?.kind ?? "",
      from: before?.from ?? event.at,
      to: over ? event.at : null,
      status: data.status ?? null,
      action: data.action ?? "",
      calls: data.calls ?? before?.calls ?? 0,
      total: Array.isArray(data.input) ? data.input.length : (before?.total ?? null),
      child: data.child ?? before?.child ?? null,
      error: data.error?.message ?? "",
    });
  }
  return [...steps.values()].sort((a, b) => a.seq - b.seq);
}

export function isOver(run: Pick<Run, "phase">): boolean {
  return !phaseWord(run.phase).live;
}

/** Calls, each once however often it was tried, and how many of them are over. */
export function callsOf(runs: readonly NodeRun[]): { done: number; failed: number; begun: number } {
  const last = new Map(runs.map((one) => [one.id.slice(0, one.id.lastIndexOf(":")), one.status]));
  const count = (status: NodeStatus): number => [...last.values()].filter((one) => one === status).length;
  return { done: count("ok"), failed: count("error"), begun: last.size };
}

export function looksOf(run: Run, steps: readonly Step[]): Map<string, NodeLook> {
  const over = isOver(run);
  const rows = new Map<string, NodeRun[]>(run.nodes.map((node) => [node.key, []]));
  for (const row of run.node_runs) rows.get(row.node_key)?.push(row);
  const lastStep = new Map(steps.map((step) => [step.node, step]));
  return new Map(
    run.nodes.map((node) => {
      const mine = rows.get(node.key) ?? [];
      const look: NodeLook = { state: node.status ?? "none", current: !over && node.key === run.current_node };
      if (look.current)
        look.state =
          atIt(node.kind) === "running" && !mine.some((row) => row.status === "running") ? "waiting" : atIt(node.kind);
      const tries = Math.max(0, ...mine.map((row) => row.attempt_no));
      if (node.kind === "foreach" || node.kind === "parallel") {
        const calls = callsOf(mine);
        const total = Math.max(lastStep.get(node.key)?.total ?? 0, lastStep.get(node.key)?.calls ?? 0, calls.begun);
        if (total) look.note = `${calls.done} of ${total}${calls.failed ? `, ${calls.failed} failed` : ""}`;
      } else if (tries > 1) look.note = `${tries} attempts`;
      else if (look.current && look.state === "waiting" && /^(executor|local)$/.test(node.kind))
        look.note = "for a worker";
      else if (look.current && node.kind === "wait_event") look.note = "for a signal";
      return [node.key, look];
    }),
  );
}

/** The edges that it went, as "node\naction". An action without an edge of its own takes the default one. */
export function takenOf(run: Run, steps: readonly Step[]): Set<string> {
  const edges = new Map(run.nodes.map((node) => [node.key, new Set(node.edges.map((edge) => edge.action))]));
  const taken = new Set<string>();
  for (const { node, action, to } of steps)
    if (to !== null && action) taken.add(`${node}\n${edges.get(node)?.has(action) ? action : "default"}`);
  return taken;
}

/** What is the run's own in its shared state; the rest is the engine's record of itself. */
export function ownShared(shared: Record<string, unknown>): Record<string, unknown> {
  const { _rt: _, ...own } = shared;
  return own;
}

export function decoded(json: string): unknown {
  try {
    return parse(json);
  } catch {
    return json;
  }
}

/** News of the run or of a call it made: their ids begin with its own. */
export function ofRun(id: string): (changed: readonly string[] | null) => boolean {
  return (changed) => changed === null || changed.some((one) => one === id || one.startsWith(`${id}-`));
}

/** The address of a flow's page. A name with a slash is no part of a path: its id stands in. */
export function flowAt(name: string, id: string): string {
  return `/flows/${encodeURIComponent(name.includes("/") || name.startsWith(".") ? id : name)}`;
}

export function flowIdOf(versionId: string): string {
  return versionId.replace(/-v\d+$/, "");
}
