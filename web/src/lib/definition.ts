// A definition as somebody is writing it: what can be drawn of it, what it asks for, how two of them differ.
import type { Flaw, FlowNode } from "../api/types";
import { pretty } from "./json";

type Fields = Record<string, unknown>;

const DEEPEST = 8;

function fields(value: unknown): Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Fields) : {};
}

const text = (value: unknown): string => (typeof value === "string" ? value : "");

/** The nodes that a text describes, right or wrong: the server draws only what is without a fault. */
export function outlineOf(definition: unknown, prefix = "", depth = 0): FlowNode[] {
  const graph = fields(definition);
  const edges = (Array.isArray(graph.edges) ? graph.edges : []).map(fields);
  return Object.entries(fields(graph.nodes)).flatMap(([key, raw]) => {
    const node = fields(raw);
    const own: FlowNode = {
      key: prefix + key,
      kind: text(node.kind),
      what:
        text(node.service) ||
        text(fields(node.params).reason) ||
        text(fields(node.params).signal_key) ||
        text(fields(node.params).flow),
      depth,
      start: graph.start === key,
      status: null,
      edges: edges
        .filter((edge) => edge.from === key)
        .map((edge) => ({ action: text(edge.action) || "default", to: text(edge.to) })),
    };
    return [own, ...(depth < DEEPEST && node.subflow ? outlineOf(node.subflow, `${own.key}/`, depth + 1) : [])];
  });
}

/** A node as it stands in its definition. */
export function nodeAt(definition: unknown, path: string): unknown {
  const keys = path.split("/");
  let graph = fields(definition);
  for (const key of keys.slice(0, -1)) graph = fields(fields(fields(graph.nodes)[key]).subflow);
  return fields(graph.nodes)[keys.at(-1)!];
}

/** What is wrong with an edge is shown at the node that it leaves. */
export function atNodes(flaws: readonly Flaw[], definition: unknown): Flaw[] {
  return flaws.map((flaw) => {
    const number = /(?:^|\.)edges\[(\d+)\]/.exec(flaw.field)?.[1];
    if (number === undefined) return flaw;
    const graph = flaw.node === null ? fields(definition) : fields(fields(nodeAt(definition, flaw.node)).subflow);
    const from = Array.isArray(graph.edges) ? text(fields(graph.edges[Number(number)]).from) : "";
    return from && from in fields(graph.nodes)
      ? { ...flaw, node: flaw.node === null ? from : `${flaw.node}/${from}` }
      : flaw;
  });
}

/** The names of the parameters that its paths speak of, in the order in which they come. */
export function paramsOf(definition: unknown): string[] {
  const own = new Set(outlineOwn(definition));
  const found = new Set<string>();
  const look = (value: unknown): void => {
    if (typeof value === "string") {
      const name = /^\$params\.([^.[\]]+)/.exec(value)?.[1];
      if (name && !own.has(name)) found.add(name);
    } else if (typeof value === "object" && value !== null) Object.values(value).forEach(look);
  };
  look(definition);
  return [...found];
}

/** Parameters that every node which speaks of them brings along itself. */
function outlineOwn(definition: unknown): string[] {
  const nodes = Object.values(fields(fields(definition).nodes)).map(fields);
  const speaks = (node: Fields, name: string): boolean => JSON.stringify(node).includes(`$params.${name}`);
  const names = new Set(nodes.flatMap((node) => Object.keys(fields(node.params))));
  return [...names].filter((name) => nodes.every((node) => !speaks(node, name) || name in fields(node.params)));
}

export interface DiffLine {
  sign: "+" | "-" | " ";
  text: string;
}

const MOST = 4_000_000; // comparisons; beyond it the middle is shown as one change

export function diffOf(before: unknown, after: unknown): DiffLine[] {
  const a = pretty(before).split("\n");
  const b = pretty(after).split("\n");
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a.at(-1 - tail) === b.at(-1 - tail)) tail++;
  const same = (lines: string[]): DiffLine[] => lines.map((line) => ({ sign: " ", text: line }));
  const middle = between(a.slice(head, a.length - tail), b.slice(head, b.length - tail));
  return [...same(a.slice(0, head)), ...middle, ...same(tail ? a.slice(-tail) : [])];
}

function between(a: string[], b: string[]): DiffLine[] {
  const gone = (line: string): DiffLine => ({ sign: "-", text: line });
  const come = (line: string): DiffLine => ({ sign: "+", text: line });
  if (a.length * b.length > MOST) return [...a.map(gone), ...b.map(come)];
  const common = Array.from({ length: a.length + 1 }, () => new Uint32Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      common[i]![j] = a[i] === b[j] ? common[i + 1]![j + 1]! + 1 : Math.max(common[i + 1]![j]!, common[i]![j + 1]!);
  const lines: DiffLine[] = [];
  for (let i = 0, j = 0; i < a.length || j < b.length;) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      lines.push({ sign: " ", text: a[i++]! });
      j++;
    } else if (j >= b.length || (i < a.length && common[i + 1]![j]! >= common[i]![j + 1]!)) lines.push(gone(a[i++]!));
    else lines.push(come(b[j++]!));
  }
  return lines;
}
