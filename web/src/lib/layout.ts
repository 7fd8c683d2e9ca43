// Where the nodes of a flow are drawn: layers by the longest way from the start, a subflow as a box of its own.
import type { FlowNode } from "../api/types";

export interface Placed {
  node: FlowNode;
  x: number;
  y: number;
  w: number;
  h: number;
  box: boolean; // a subflow: others are drawn inside it
}

export interface Line {
  from: string;
  to: string;
  action: string;
  path: string;
  labelX: number;
  labelY: number;
  back: boolean; // leads to an earlier layer
}

export interface Picture {
  nodes: Placed[];
  lines: Line[];
  w: number;
  h: number;
}

const NODE_W = 184;
const NODE_H = 52;
const GAP_X = 26;
const GAP_Y = 50;
const BOX_TOP = 40;
const BOX_PAD = 14;
const SIDE = 26; // room beside the layers for lines that lead back
const LANE = 22; // room that a line takes in a layer which it passes
const SWEEPS = 6;
const MOST_LANES = 3000; // beyond it lines take the straight way

interface Item {
  node: FlowNode | null; // null: a line passes here
  inner: Picture | null;
  w: number;
  h: number;
  layer: number;
  x: number;
  y: number;
}

export function layOut(nodes: readonly FlowNode[]): Picture {
  return graphIn("", nodes);
}

function graphIn(prefix: string, nodes: readonly FlowNode[]): Picture {
  const items = new Map<string, Item>();
  for (const node of nodes) {
    const key = node.key.slice(prefix.length);
    if (!node.key.startsWith(prefix) || key.includes("/")) continue;
    const within = nodes.filter((one) => one.key.startsWith(`${node.key}/`));
    const inner = within.length ? graphIn(`${node.key}/`, within) : null;
    const w = inner ? Math.max(NODE_W, inner.w + 2 * BOX_PAD) : NODE_W;
    items.set(key, { node, inner, w, h: inner ? inner.h + BOX_TOP + BOX_PAD : NODE_H, layer: 0, x: 0, y: 0 });
  }
  const backs = backEdges(items);
  const { layers, ways } = layered(items, backs);
  order(layers, ways);
  place(layers, ways, backs.size > 0);
  return drawn(prefix, items, ways, backs);
}

const edgeId = (from: string, to: string): string => `${from}\n${to}`;

function* targets(items: ReadonlyMap<string, Item>, key: string): Generator<string> {
  for (const { to } of items.get(key)?.node?.edges ?? []) if (items.has(to)) yield to;
}

/** Edges that close a circle: they are left out of the layers and drawn around them. */
function backEdges(items: ReadonlyMap<string, Item>): Set<string> {
  const backs = new Set<string>();
  const state = new Map<string, "open" | "done">();
  const starts = [...items.keys()].sort(
    (a, b) => Number(items.get(b)!.node!.start) - Number(items.get(a)!.node!.start),
  );
  for (const start of starts) {
    if (state.has(start)) continue;
    const stack = [{ key: start, rest: [...targets(items, start)] }];
    state.set(start, "open");
    for (let top = stack.at(-1); top; top = stack.at(-1)) {
      const to = top.rest.shift();
      if (to === undefined) {
        state.set(top.key, "done");
        stack.pop();
      } else if (state.get(to) === "open") backs.add(edgeId(top.key, to));
      else if (!state.has(to)) {
        state.set(to, "open");
        stack.push({ key: to, rest: [...targets(items, to)] });
      }
    }
  }
  return backs;
}

/** By edge: the nodes at its ends, and between them a place in each layer that it passes. */
type Ways = Map<string, Item[]>;

function layered(items: ReadonlyMap<string, Item>, backs: ReadonlySet<string>): { layers: Item[][]; ways: Ways } {
  const incoming = new Map([...items.keys()].map((key) => [key, 0]));
  const forward = (key: string): string[] =>
    [...new Set(targets(items, key))].filter((to) => !backs.has(edgeId(key, to)));
  for (const key of items.keys()) for (const to of forward(key)) incoming.set(to, incoming.get(to)! + 1);
  const ready = [...items.keys()].filter((key) => !incoming.get(key));
  for (let key = ready.shift(); key !== undefined; key = ready.shift()) {
    const item = items.get(key)!;
    for (const to of forward(key)) {
      const next = items.get(to)!;
      next.layer = Math.max(next.layer, item.layer + 1);
      incoming.set(to, incoming.get(to)! - 1);
      if (!incoming.get(to)) ready.push(to);
    }
  }
  const layers: Item[][] = [];
  for (const item of items.values()) (layers[item.layer] ??= []).push(item);
  const ways: Ways = new Map();
  let lanes = 0;
  for (const [key, from] of items)
    for (const target of forward(key)) {
      const to = items.get(target)!;
      const way = [from];
      for (let layer = from.layer + 1; layer < to.layer && lanes < MOST_LANES; layer++, lanes++) {
        const lane: Item = { node: null, inner: null, w: LANE, h: 0, layer, x: 0, y: 0 };
        layers[layer]!.push(lane);
        way.push(lane);
      }
      ways.set(edgeId(key, target), [...way, to]);
    }
  return { layers, ways };
}

function neighbours(layers: readonly Item[][], ways: Ways): Map<Item, { up: Item[]; down: Item[] }> {
  const near = new Map(layers.flat().map((item) => [item, { up: [] as Item[], down: [] as Item[] }]));
  for (const way of ways.values())
    way.slice(1).forEach((item, index) => {
      near.get(item)!.up.push(way[index]!);
      near.get(way[index]!)!.down.push(item);
    });
  return near;
}

const mean = (numbers: readonly number[]): number => numbers.reduce((sum, one) => sum + one, 0) / numbers.length;

/** Each layer in the order of the middle of its neighbours, down and up a few times. */
function order(layers: Item[][], ways: Ways): void {
  const near = neighbours(layers, ways);
  const at = new Map<Item, number>();
  const note = (layer: Item[]): void => layer.forEach((item, index) => at.set(item, index - (layer.length - 1) / 2));
  layers.forEach(note);
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const side = sweep % 2 ? "down" : "up";
    for (const layer of sweep % 2 ? layers.toReversed() : layers) {
      const middle = new Map(
        layer.map((item) => [
          item,
          near.get(item)![side].length ? mean(near.get(item)![side].map((one) => at.get(one)!)) : at.get(item)!,
        ]),
      );
      layer.sort((a, b) => middle.get(a)! - middle.get(b)!);
      note(layer);
    }
  }
}

/** Side by side in their order, each as near to the middle of its neighbours as the others let it. */
function place(layers: Item[][], ways: Ways, circles: boolean): void {
  const near = neighbours(layers, ways);
  const middle = (item: Item): number => item.x + item.w / 2;
  const settle = (layer: Item[], wanted: readonly number[]): void => {
    let edge = -Infinity;
    layer.forEach((item, index) => {
      item.x = Math.max(wanted[index]! - item.w / 2, edge);
      edge = item.x + item.w + GAP_X;
    });
    const off = mean(layer.map((item, index) => wanted[index]! - middle(item)));
    for (const item of layer) item.x += off;
  };
  for (const layer of layers)
    settle(
      layer,
      layer.map(() => 0),
    );
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const side = sweep % 2 ? "up" : "down";
    for (const layer of sweep % 2 ? layers : layers.toReversed())
      settle(
        layer,
        layer.map((item) => (near.get(item)![side].length ? mean(near.get(item)![side].map(middle)) : middle(item))),
      );
  }
  const left = Math.min(...layers.flat().map((item) => item.x));
  let y = circles ? GAP_Y / 2 + 4 : 0; // a line that leads back passes above the first and below the last
  for (const layer of layers) {
    const tall = Math.max(...layer.map((item) => item.h));
    for (const item of layer) {
      item.x += SIDE - left;
      if (item.node === null) item.h = tall;
      item.y = y + (tall - item.h) / 2;
    }
    y += tall + GAP_Y;
  }
}

function drawn(prefix: string, items: ReadonlyMap<string, Item>, ways: Ways, backs: ReadonlySet<string>): Picture {
  const all = [...items.values()];
  const lanes = [...ways.values()].flat();
  const w = Math.max(NODE_W, ...all.map((item) => item.x + item.w), ...lanes.map((item) => item.x + item.w)) + SIDE;
  const h = Math.max(NODE_H, ...all.map((item) => item.y + item.h)) + (backs.size ? GAP_Y / 2 + 4 : 0);
  const picture: Picture = { nodes: [], lines: [], w, h };
  for (const item of all) {
    const { node, inner, x, y } = item;
    picture.nodes.push({ node: node!, x, y, w: item.w, h: item.h, box: inner !== null });
    if (!inner) continue;
    const dx = x + (item.w - inner.w) / 2;
    const dy = y + BOX_TOP;
    for (const one of inner.nodes) picture.nodes.push({ ...one, x: one.x + dx, y: one.y + dy });
    for (const line of inner.lines)
      picture.lines.push({
        ...line,
        path: moved(line.path, dx, dy),
        labelX: line.labelX + dx,
        labelY: line.labelY + dy,
      });
  }
  let returns = 0;
  for (const [key, from] of items) {
    const next = (target: string): Item => ways.get(edgeId(key, target))?.[1] ?? from;
    const out = from
      .node!.edges.filter(({ to }) => items.has(to))
      .sort((a, b) => next(a.to).x + next(a.to).w / 2 - next(b.to).x - next(b.to).w / 2);
    out.forEach(({ action, to: target }, index) => {
      const back = backs.has(edgeId(key, target));
      const x1 = from.x + (from.w * (index + 1)) / (out.length + 1);
      const to = items.get(target)!;
      const path = back
        ? returning(from, to, x1, rightOf([...all, ...lanes], from, to) + 6 + 5 * (returns++ % 3))
        : through(ways.get(edgeId(key, target))!, x1);
      const low = out.length > 2 ? 14 + 9 * (index % 2) : 16;
      picture.lines.push({
        from: prefix + key,
        to: prefix + target,
        action,
        back,
        path,
        labelX: x1,
        labelY: from.y + from.h + low,
      });
    });
  }
  return picture;
}

function through(way: readonly Item[], x1: number): string {
  const [from, ...rest] = way;
  let [x, y] = [x1, from!.y + from!.h];
  let path = `M${x} ${y}`;
  for (const item of rest) {
    const [x2, y2] = [item.x + item.w / 2, item.y - (item.node ? 2 : 0)];
    const half = (y + y2) / 2;
    path += `C${x} ${half} ${x2} ${half} ${x2} ${y2}`;
    [x, y] = [x2, item.y + item.h];
    if (item.node === null) path += `L${x} ${y}`;
  }
  return path;
}

/** Where the layers between two nodes end. */
function rightOf(items: readonly Item[], from: Item, to: Item): number {
  return Math.max(
    ...items.filter((item) => item.layer >= to.layer && item.layer <= from.layer).map((item) => item.x + item.w),
  );
}

function returning(from: Item, to: Item, x1: number, side: number): string {
  const [y1, x2, y2] = [from.y + from.h, to.x + to.w / 2, to.y];
  if (from === to) {
    const [right, upper, lower] = [from.x + from.w, from.y + from.h * 0.3, from.y + from.h * 0.7];
    return `M${x1} ${y1}C${x1} ${y1 + 22} ${right + 26} ${y1 + 22} ${right + 20} ${lower}C${right + 18} ${upper + 6} ${right + 14} ${upper} ${right + 2} ${upper}`;
  }
  const [low, high] = [y1 + GAP_Y / 2, y2 - GAP_Y / 2];
  return `M${x1} ${y1}C${x1} ${low} ${side} ${low} ${side} ${low - 14}L${side} ${high + 14}C${side} ${high} ${x2} ${high} ${x2} ${y2 - 2}`;
}

function moved(path: string, dx: number, dy: number): string {
  let isX = false;
  return path.replace(/-?\d+(\.\d+)?/g, (number) => {
    isX = !isX;
    return String(Number(number) + (isX ? dx : dy));
  });
}
