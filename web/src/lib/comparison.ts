// How a run differs from another run of its flow, node by node.
import type { NodeRun, Run } from "../api/types";

export interface NodeLength {
  status: string;
  ms: number | null;
  attempts: number;
}

export interface NodePair {
  key: string;
  here: NodeLength | null; // null: not reached
  there: NodeLength | null;
  differs: boolean;
}

export function lengths(run: Pick<Run, "node_runs" | "nodes">): Map<string, NodeLength> {
  const rows = new Map<string, NodeRun[]>();
  for (const row of run.node_runs) rows.set(row.node_key, [...(rows.get(row.node_key) ?? []), row]);
  return new Map(
    [...rows].map(([key, some]) => [key, lengthOf(some, run.nodes.find((one) => one.key === key)?.status)]),
  );
}

function lengthOf(rows: readonly NodeRun[], status: string | null | undefined): NodeLength {
  const from = Math.min(...rows.map((row) => row.started_at ?? Infinity));
  const over = rows.every((row) => row.finished_at !== null);
  const to = Math.max(...rows.map((row) => row.finished_at ?? 0));
  return {
    status: status ?? rows.at(-1)!.status,
    ms: over && Number.isFinite(from) ? to - from : null,
    attempts: rows.length,
  };
}

const LONGER = 2; // times: less is no difference

export function pairsOf(here: Pick<Run, "node_runs" | "nodes">, there: Pick<Run, "node_runs" | "nodes">): NodePair[] {
  const [one, other] = [lengths(here), lengths(there)];
  const keys = [...new Set([...here.nodes, ...there.nodes].map((node) => node.key))];
  return keys.map((key) => {
    const pair = { key, here: one.get(key) ?? null, there: other.get(key) ?? null };
    return { ...pair, differs: differ(pair.here, pair.there) };
  });
}

function differ(one: NodeLength | null, other: NodeLength | null): boolean {
  if (!one || !other) return one !== other;
  if (one.status !== other.status || one.attempts !== other.attempts) return true;
  if (one.ms === null || other.ms === null) return one.ms !== other.ms;
  return Math.max(one.ms, other.ms, 50) > LONGER * Math.max(50, Math.min(one.ms, other.ms));
}
