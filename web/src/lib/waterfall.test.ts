import { expect, test } from "vitest";
import type { NodeRun, Run } from "../api/types";
import { pairsOf } from "./comparison";
import type { Step } from "./run";
import { callsBySteps } from "./waterfall";

const row = (id: string, node_key: string, attempt_no: number, from: number, to: number | null): NodeRun => ({
  id,
  task_id: "run",
  node_key,
  attempt_no,
  status: to === null ? "running" : "ok",
  prep_json: "",
  exec_input_json: "",
  exec_output_json: "",
  error_text: "",
  action: "",
  started_at: from,
  finished_at: to,
  worker_id: "",
  worker_url: "",
});
const step = (seq: number, node: string, from: number): Step => ({
  ...{ seq, node, kind: "executor", from, to: null, status: null, action: "", calls: 0, total: null, child: null },
  error: "",
});

test("calls belong to the step that made them, attempts to their call", () => {
  const steps = [step(1, "a", 0), step(2, "b", 50), step(3, "a", 100)];
  const rows = [row("c1:2", "a", 2, 30, 40), row("c1:1", "a", 1, 10, 20), row("c2:1", "a", 1, 110, null)];
  const found = callsBySteps(steps, [...rows, row("run:1", "b", 1, 50, 60)], "run");
  expect([...found.keys()].sort()).toEqual([1, 3]);
  expect(found.get(1)).toMatchObject([
    { id: "c1", from: 10, to: 40, attempts: [{ attempt_no: 1 }, { attempt_no: 2 }] },
  ]);
  expect(found.get(3)).toMatchObject([{ id: "c2", to: null, status: "running" }]);
});

test("two runs differ where one failed, was not there, or took much longer", () => {
  const nodes = ["a", "b", "c"].map((key) => ({ key, status: null }));
  const here = { nodes, node_runs: [row("x:1", "a", 1, 0, 1_000), row("y:1", "b", 1, 0, 100)] } as unknown as Run;
  const there = {
    nodes,
    node_runs: [row("x:1", "a", 1, 0, 100), row("y:1", "b", 1, 0, 90), row("z:1", "c", 1, 0, 9)],
  } as unknown as Run;
  expect(pairsOf(here, there).map(({ key, differs }) => [key, differs])).toEqual([
    ["a", true],
    ["b", false],
    ["c", true],
  ]);
});
