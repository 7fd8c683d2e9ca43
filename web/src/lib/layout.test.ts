import { expect, test } from "vitest";
import type { FlowNode } from "../api/types";
import { layOut } from "./layout";
import type { Picture, Placed } from "./layout";

function node(key: string, ...to: string[]): FlowNode {
  const edges = to.map((one) => ({ action: "default", to: one }));
  const depth = key.split("/").length - 1;
  return { key, kind: "executor", what: "", depth, start: key === "a", status: null, edges };
}

const at = (picture: Picture, key: string): Placed => picture.nodes.find((one) => one.node.key === key)!;

function apart(one: Placed, other: Placed): boolean {
  return (
    one.x + one.w <= other.x || other.x + other.w <= one.x || one.y + one.h <= other.y || other.y + other.h <= one.y
  );
}

test("each node stands below all that lead to it", () => {
  const picture = layOut([node("a", "b", "d"), node("b", "c"), node("c", "d"), node("d")]);
  const heights = ["a", "b", "c", "d"].map((key) => at(picture, key).y);
  expect(heights).toEqual(heights.toSorted((one, other) => one - other));
  expect(new Set(heights).size).toBe(4);
});

test("no two nodes overlap, and all are inside the picture", () => {
  const fan = ["b", "c", "d", "e", "f"];
  const { nodes, w, h } = layOut([node("a", ...fan), ...fan.map((key) => node(key, "z")), node("z")]);
  for (const one of nodes) {
    expect(one.x).toBeGreaterThanOrEqual(0);
    expect(one.x + one.w).toBeLessThanOrEqual(w);
    expect(one.y + one.h).toBeLessThanOrEqual(h);
    for (const other of nodes) if (one !== other) expect(apart(one, other)).toBe(true);
  }
});

test("an edge that closes a circle leads back and lifts no node", () => {
  const picture = layOut([node("a", "b"), node("b", "a", "b")]);
  expect(picture.lines.map(({ from, to, back }) => [from, to, back])).toEqual([
    ["a", "b", false],
    ["b", "a", true],
    ["b", "b", true],
  ]);
  expect(at(picture, "a").y).toBeLessThan(at(picture, "b").y);
});

test("a subflow is a box around its own nodes", () => {
  const picture = layOut([node("a", "z"), node("a/x", "y"), node("a/y"), node("z")]);
  const box = at(picture, "a");
  expect(box.box).toBe(true);
  for (const key of ["a/x", "a/y"]) {
    const inner = at(picture, key);
    expect(inner.x).toBeGreaterThan(box.x);
    expect(inner.x + inner.w).toBeLessThan(box.x + box.w);
    expect(inner.y + inner.h).toBeLessThan(box.y + box.h);
  }
  expect(picture.lines.map((line) => [line.from, line.to])).toContainEqual(["a/x", "a/y"]);
});

test("an edge to a node that is not there is left out", () => {
  expect(layOut([node("a", "nowhere")]).lines).toEqual([]);
  expect(layOut([]).nodes).toEqual([]);
});
