// A flow as a picture, or as a list for narrow screens and for those who prefer to read. Node by node it can be reached by keys.
import { useEffect, useMemo, useRef } from "react";
import type { KeyboardEvent, ReactNode } from "react";
import type { Flaw, FlowNode } from "../api/types";
import { layOut } from "../lib/layout";
import type { Line, Placed } from "../lib/layout";
import { useParam } from "../routes";
import { NODES } from "../words";
import type { NodeState } from "../words";
import { Tabs } from "./basics";
import { GraphFrame } from "./graphframe";
import { Icon } from "./icon";

export interface NodeLook {
  state: NodeState;
  note?: string; // "2 of 5", "3 attempts"
  current?: boolean;
}

interface GraphProps {
  nodes: readonly FlowNode[];
  label: string;
  looks?: ReadonlyMap<string, NodeLook>; // none: a definition, not a run
  taken?: ReadonlySet<string>; // "from\naction" of the edges that a run went
  flaws?: readonly Flaw[];
  doubts?: readonly Flaw[];
  chosen?: string;
  choose?: (key: string) => void;
  follow?: boolean;
}

const FORMS = [
  ["graph", "Diagram"],
  ["list", "List"],
] as const;

export function FlowGraph(props: GraphProps): ReactNode {
  const [form, setForm] = useParam("as", matchMedia("(max-width: 640px)").matches ? "list" : "graph");
  if (!props.nodes.length) return <p className="faint">No nodes</p>;
  return (
    <div className="flow-graph">
      <div className="flow-form">
        <Tabs label="Shown as" value={form} options={FORMS} onChange={setForm} />
      </div>
      {form === "list" ? <NodeList {...props} /> : <Picture {...props} />}
    </div>
  );
}

function leadsTo(node: FlowNode): string {
  return node.edges.map(({ action, to }) => (action === "default" ? `then ${to}` : `${action}: ${to}`)).join(", ");
}

/** What it does and where it leads, in a line. */
export function aboutNode(node: FlowNode): string {
  const does = [node.kind, node.what].filter(Boolean).join(" · ");
  return node.edges.length ? `${does} → ${leadsTo(node)}` : does;
}

function said(node: FlowNode, { looks, flaws, doubts }: GraphProps): string {
  const look = looks?.get(node.key);
  const wrong = [...(flaws ?? []), ...(doubts ?? [])].filter((flaw) => flaw.node === node.key);
  return [
    node.key,
    node.kind,
    node.start && "start",
    looks && NODES[look?.state ?? "none"].label,
    look?.note,
    look?.current && "current",
    ...wrong.map((flaw) => flaw.message),
    node.edges.length ? leadsTo(node) : "last node",
  ]
    .filter(Boolean)
    .join(", ");
}

function Picture(props: GraphProps): ReactNode {
  const { nodes, label, looks, follow, taken } = props;
  const picture = useMemo(() => layOut(nodes), [nodes]);
  const box = useRef<HTMLDivElement>(null);
  const current = follow ? ([...(looks ?? [])].find(([, look]) => look.current)?.[0] ?? "") : "";
  useEffect(() => {
    const frame = box.current;
    const at = picture.nodes.find((one) => one.node.key === current);
    if (!frame || !at) return;
    const scale = (frame.querySelector("svg")?.clientWidth ?? picture.w) / picture.w;
    frame.scrollTo({
      top: (at.y + at.h / 2) * scale - frame.clientHeight / 2,
      left: (at.x + at.w / 2) * scale - frame.clientWidth / 2,
      behavior: "smooth",
    });
  }, [current, picture]);
  return (
    <GraphFrame
      size={{ w: picture.w + 8, h: picture.h + 12 }}
      label={`${label}, ${nodes.length} nodes`}
      box={box}
      map={picture.nodes.map(({ node, x, y, w, h }) => (
        <rect
          key={node.key}
          className={`node-${looks ? NODES[looks.get(node.key)?.state ?? "none"].tone : "plain"}`}
          {...{ x, y, width: w, height: h, rx: 12 }}
        />
      ))}
    >
      {(scale) => (
        <svg
          className="graph"
          width={Math.round((picture.w + 8) * scale)}
          height={Math.round((picture.h + 12) * scale)}
          viewBox={`-4 -6 ${picture.w + 8} ${picture.h + 12}`}
        >
          <title>{label}</title>
          <defs>
            {["tip", "tip-went"].map((tip) => (
              <marker
                key={tip}
                id={tip}
                className={tip}
                viewBox="0 0 8 8"
                refX="7"
                refY="4"
                markerWidth="9"
                markerHeight="9"
                markerUnits="userSpaceOnUse"
                orient="auto"
              >
                <path d="M0 0.5L8 4L0 7.5Z" />
              </marker>
            ))}
          </defs>
          {picture.nodes.map((one) => one.box && <Box key={one.node.key} placed={one} {...props} />)}
          {picture.lines.map((line) => (
            <path
              key={`${line.from} ${line.action} ${line.to}`}
              d={line.path}
              className={lineClass(line, looks, taken)}
              markerEnd={taken?.has(`${line.from}\n${line.action}`) ? "url(#tip-went)" : "url(#tip)"}
            />
          ))}
          {picture.lines.map(
            (line) => line.action !== "default" && <Action key={`${line.from} ${line.action}`} line={line} />,
          )}
          {picture.nodes.map((one) => !one.box && <Box key={one.node.key} placed={one} {...props} />)}
        </svg>
      )}
    </GraphFrame>
  );
}

function lineClass(line: Line, looks: GraphProps["looks"], taken: GraphProps["taken"]): string {
  const went = taken?.has(`${line.from}\n${line.action}`);
  return `line ${went ? "went" : looks ? "unwent" : ""} ${line.back ? "back" : ""}`;
}

function Action({ line }: { line: Line }): ReactNode {
  const word = clipped(line.action, 16);
  const w = word.length * 6.4 + 10;
  return (
    <g aria-hidden="true">
      <rect className="action-back" x={line.labelX - w / 2} y={line.labelY - 8} width={w} height={16} rx={8} />
      <text className="action" x={line.labelX} y={line.labelY + 4} textAnchor="middle">
        {word}
      </text>
    </g>
  );
}

function Box({ placed, ...props }: GraphProps & { placed: Placed }): ReactNode {
  const { looks, flaws, doubts, chosen, choose } = props;
  const { node, x, y, w, box } = placed;
  const h = placed.h;
  const look = looks?.get(node.key);
  const word = NODES[look?.state ?? "none"];
  const wrong = flaws?.some((flaw) => flaw.node === node.key);
  const doubt = doubts?.some((flaw) => flaw.node === node.key);
  const name = node.key.split("/").at(-1)!;
  const tone = wrong ? "bad" : doubt ? "wait" : looks ? word.tone : "plain";
  const second = looks
    ? [word.label, look?.note].filter(Boolean).join(" · ")
    : wrong
      ? "has an error"
      : doubt
        ? "has a warning"
        : [node.kind, node.what].filter(Boolean).join(" · ");
  const pressed = (event: KeyboardEvent): void => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose?.(node.key);
  };
  const acts = choose
    ? {
        role: "button",
        tabIndex: 0,
        "aria-pressed": chosen === node.key,
        onClick: () => choose(node.key),
        onKeyDown: pressed,
      }
    : { role: "img" };
  return (
    <g
      className={`node node-${tone} ${chosen === node.key ? "chosen" : ""} ${look?.current ? "current" : ""} ${box ? "box" : ""}`}
    >
      <g aria-hidden="true">
        {look?.current && (
          <rect
            className="halo"
            x={x - 4}
            y={y - 4}
            width={w + 8}
            height={h + 8}
            rx={node.kind === "choice" ? 16 : 13}
          />
        )}
        <rect className="shape" x={x} y={y} width={w} height={h} rx={box ? 12 : 9} />
        <g transform={`translate(${x + 10} ${y + (box ? 9 : h / 2 - 8)})`}>
          <Icon name={wrong || doubt ? "warn" : looks ? word.icon : kindIcon(node.kind)} />
        </g>
        <text className="name" x={x + 34} y={y + (box ? 17 : 22)}>
          {node.start && "▸ "}
          {clipped(name, box ? 40 : 20)}
        </text>
        <text className="what" x={x + 34} y={y + (box ? 32 : 39)}>
          {clipped(second, box ? 40 : 22)}
        </text>
      </g>
      <rect
        {...acts}
        className="hit"
        x={x}
        y={y}
        width={w}
        height={h}
        rx={box ? 12 : 9}
        aria-label={said(node, props)}
        data-node={node.key}
      />
    </g>
  );
}

function kindIcon(kind: string): "cpu" | "graph" | "layers" | "clock" | "chat" | "hand" | "list" | "link" | "dots" {
  const icons = {
    executor: "cpu",
    local: "cpu",
    choice: "graph",
    parallel: "layers",
    foreach: "list",
    timer: "clock",
    wait_event: "chat",
    approval: "hand",
    subflow: "graph",
    flow_ref: "link",
  } as const;
  return icons[kind as keyof typeof icons] ?? "dots";
}

function clipped(text: string, most: number): string {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

function NodeList(props: GraphProps): ReactNode {
  const { nodes, label, looks, flaws, doubts, chosen, choose } = props;
  return (
    <ol className="node-list" aria-label={label}>
      {nodes.map((node) => {
        const look = looks?.get(node.key);
        const word = NODES[look?.state ?? "none"];
        const wrong = [...(flaws ?? []), ...(doubts ?? [])].filter((flaw) => flaw.node === node.key);
        const row = (
          <>
            <Icon name={wrong.length ? "warn" : looks ? word.icon : kindIcon(node.kind)} />
            <span className="grow">
              <b>{node.key}</b>{" "}
              <span className="faint small">{[node.kind, node.what].filter(Boolean).join(" · ")}</span>
              {node.edges.length > 0 && <span className="faint small node-to">→ {leadsTo(node)}</span>}
            </span>
            {looks && (
              <span className={`badge tone-${word.tone}`}>
                {word.label}
                {look?.note && ` · ${look.note}`}
              </span>
            )}
          </>
        );
        return (
          <li key={node.key} style={{ paddingLeft: node.depth * 18 }}>
            {choose ? (
              <button
                type="button"
                className={`node-row ${look?.current ? "current" : ""}`}
                aria-pressed={chosen === node.key}
                data-node={node.key}
                onClick={() => choose(node.key)}
              >
                {row}
              </button>
            ) : (
              <div className="node-row">{row}</div>
            )}
            {wrong.map((flaw) => (
              <p key={flaw.field + flaw.message} className="fault">
                {flaw.message}
              </p>
            ))}
          </li>
        );
      })}
    </ol>
  );
}
