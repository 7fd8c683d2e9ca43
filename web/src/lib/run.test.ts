import { expect, test } from "vitest";
import type { FlowNode, NodeRun, Run, TaskEvent } from "../api/types";
import { callsOf, flowAt, looksOf, ofRun, stepsOf, takenOf } from "./run";

const events = (...list: [number, string, object][]): TaskEvent[] =>
  list.map(([at, type, data], index) => ({ n: index + 1, at, type, data }));
const node = (key: string, kind: string, ...edges: [string, string][]): FlowNode => ({
  ...{ key, kind, what: "", depth: 0, start: false, status: null },
  edges: edges.map(([action, to]) => ({ action, to })),
});
const call = (id: string, node_key: string, attempt_no: number, status: NodeRun["status"]): NodeRun =>
  ({ id, node_key, attempt_no, status }) as NodeRun;
const run = (part: Partial<Run>): Run => ({ phase: "running", nodes: [], node_runs: [], ...part }) as Run;

const started = events(
  [1, "node.started", { seq: 1, node: "each", kind: "foreach", input: [1, 2, 3] }],
  [5, "node.finished", { seq: 1, status: "ok", action: "done" }],
  [5, "node.started", { seq: 2, node: "ask", kind: "approval", child: "r1-ask" }],
);

test("a step joins its beginning and its end", () => {
  const [first, second] = stepsOf(started);
  expect(first).toMatchObject({ node: "each", kind: "foreach", from: 1, to: 5, status: "ok", total: 3 });
  expect(second).toMatchObject({ node: "ask", from: 5, to: null, child: "r1-ask" });
});

test("a replay starts the steps over", () => {
  expect(stepsOf([...started, ...events([9, "task.replayed", {}])])).toEqual([]);
});

test("a call that was tried twice counts once, as it ended last", () => {
  const calls = [call("r1-a:1", "a", 1, "error"), call("r1-a:2", "a", 2, "ok"), call("r1-b:1", "b", 1, "error")];
  expect(callsOf(calls)).toEqual({ done: 1, failed: 1, begun: 2 });
});

test("the current node waits for a worker until a call of it runs", () => {
  const nodes = [node("a", "executor")];
  const waiting = looksOf(run({ nodes, current_node: "a" }), []).get("a");
  expect(waiting).toEqual({ state: "waiting", current: true, note: "for a worker" });
  const running = run({ nodes, current_node: "a", node_runs: [call("r1-a:1", "a", 1, "running")] });
  expect(looksOf(running, []).get("a")).toEqual({ state: "running", current: true });
});

test("a node of many calls tells how many are done", () => {
  const nodes = [node("each", "foreach")];
  const node_runs = [call("r1-0:1", "each", 1, "ok"), call("r1-1:1", "each", 1, "error")];
  const look = looksOf(run({ nodes, node_runs, current_node: "ask" }), stepsOf(started)).get("each");
  expect(look?.note).toBe("1 of 3, 1 failed");
});

test("an action without an edge of its own takes the default one", () => {
  const nodes = [node("each", "foreach", ["default", "ask"])];
  expect([...takenOf(run({ nodes }), stepsOf(started))]).toEqual(["each\ndefault"]);
});

test("news of a run is also news of its calls", () => {
  const concerns = ofRun("r1");
  expect([concerns(null), concerns(["r1"]), concerns(["r1-ask"]), concerns(["r12"])]).toEqual([
    true,
    true,
    true,
    false,
  ]);
});

test("a flow whose name is no part of a path is shown by its id", () => {
  expect(flowAt("order", "f1")).toBe("/flows/order");
  expect(flowAt("a/b", "f1")).toBe("/flows/f1");
});
