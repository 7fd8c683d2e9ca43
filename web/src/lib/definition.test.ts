import { expect, test } from "vitest";
import { atNodes, diffOf, nodeAt, outlineOf, paramsOf } from "./definition";

const inner = { start: "wrap", nodes: { wrap: { kind: "executor", service: "wrap" } }, edges: [] };
const flow = {
  start: "pack",
  nodes: {
    pack: { kind: "subflow", subflow: inner },
    ask: { kind: "approval", params: { reason: "$params.why" }, prep: { input_key: "$params.order.id" } },
  },
  edges: [{ from: "pack", action: "ok", to: "ask" }],
};

test("nodes of a subflow follow it, by their paths", () => {
  expect(outlineOf(flow).map(({ key, depth, start }) => [key, depth, start])).toEqual([
    ["pack", 0, true],
    ["pack/wrap", 1, true],
    ["ask", 0, false],
  ]);
  expect(nodeAt(flow, "pack/wrap")).toEqual({ kind: "executor", service: "wrap" });
});

test.each([null, 3, [], { nodes: 7 }, { nodes: { a: null }, edges: "x" }])("%j is drawn as far as it goes", (text) => {
  expect(() => outlineOf(text)).not.toThrow();
});

test("a fault of an edge is shown at the node it leaves", () => {
  const flaw = { node: null, field: "edges[0].to", message: "unknown" };
  expect(atNodes([flaw], flow)).toEqual([{ ...flaw, node: "pack" }]);
});

test("parameters are found in paths, once each", () => {
  expect(paramsOf(flow)).toEqual(["why", "order"]);
});

test("a diff has the lines of both, in order", () => {
  const lines = diffOf({ a: 1, b: 2, c: 3 }, { a: 1, b: 4, c: 3, d: 5 });
  const side = (sign: string): string => lines.flatMap((line) => (line.sign === sign ? [] : [line.text])).join("\n");
  expect(JSON.parse(side("+"))).toEqual({ a: 1, b: 2, c: 3 });
  expect(JSON.parse(side("-"))).toEqual({ a: 1, b: 4, c: 3, d: 5 });
  expect(lines.filter((line) => line.sign === " ").map((line) => line.text)).toContain('  "a": 1,');
});

test("two that are the same differ in nothing", () => {
  expect(diffOf(flow, flow).every((line) => line.sign === " ")).toBe(true);
});
