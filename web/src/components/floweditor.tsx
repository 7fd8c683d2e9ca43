// A definition to write: drawn as it stands, with everything that is wrong at the node it belongs to.
import { lazy, Suspense, useMemo, useState } from "react";
import type { ReactNode } from "react";
import { parse, post } from "../api/client";
import { useAction, useTyped } from "../api/data";
import type { Drawn, Flaw, Flow, Validated } from "../api/types";
import { atNodes, outlineOf } from "../lib/definition";
import { useDraft } from "../lib/kept";
import { Act } from "./act";
import { Card, Form, Notice, Refusal, Skeleton } from "./basics";
import type { Mark, Spot } from "./codeeditor";
import { Dialog } from "./dialog";
import { Diff } from "./diff";
import { FlowGraph } from "./graph";
import { Icon } from "./icon";
import { pretty } from "../lib/json";
import { jsonFault } from "../lib/jsonfault";

const CodeEditor = lazy(() => import("./codeeditor")); // larger than all the rest of this view

const EXAMPLE = {
  description: "Sums a list; a sum over 100 needs approval.",
  start: "total",
  nodes: {
    total: { kind: "executor", service: "sum", prep: { input_key: "$params.prices" }, post: { output_key: "total" } },
    large: { kind: "choice", choice_cases: [{ action: "ask", expr: { gt: ["$shared.total", 100] } }] },
    ask: { kind: "approval", params: { reason: "More than 100: continue?" } },
    label: {
      kind: "executor",
      service: "transform",
      params: { op: "upper" },
      prep: { input_key: "$params.label" },
      post: { output_key: "label" },
    },
  },
  edges: [
    { from: "total", to: "large" },
    { from: "large", action: "ask", to: "ask" },
    { from: "large", to: "label" },
    { from: "ask", action: "approved", to: "label" },
  ],
};
const PAUSE_MS = 350; // after the last key

export function FlowEditor({
  flow,
  definition,
  newest,
  after,
}: {
  flow: Pick<Flow, "id" | "name" | "version"> | null;
  definition: unknown; // to begin with
  newest: unknown; // what is published, to compare with
  after: (made: Drawn) => void;
}): ReactNode {
  const [name, setName] = useState(flow?.name ?? "");
  const [draft, setDraft] = useDraft(flow?.id ?? "");
  const version = flow?.version ?? 0;
  const begin = pretty(definition ?? EXAMPLE);
  const text = draft?.text ?? begin;
  const setText = (next: string): void =>
    setDraft(next === begin ? null : { base: draft?.base ?? version, text: next });
  const [reviewing, setReviewing] = useState(false);
  const [chosen, choose] = useState("");
  const [spot, setSpot] = useState<Spot | null>(null);
  const broken = useMemo(() => jsonFault(text), [text]);
  const read = useMemo(() => (broken === null ? parse(text) : null), [text, broken]);
  const nodes = useMemo(() => outlineOf(read), [read]);
  const { data: checked, stale } = useTyped("check", broken === null ? text : null, PAUSE_MS, (written) =>
    post<Validated>("/api/v2/flows/validate", { definition: parse(written) }),
  );
  const publish = useAction(
    () =>
      flow
        ? post<Drawn>(`/api/v2/flows/${encodeURIComponent(flow.id)}/versions`, { definition: read })
        : post<Drawn>("/api/v2/flows", { name, definition: read }),
    {
      done: (made) => `Published ${made.name}, version ${made.version}`,
      quiet: true,
      after: (made) => {
        setDraft(null);
        after(made);
      },
    },
  );
  const unchanged = flow !== null && pretty(newest) === pretty(read);
  const faults = useMemo(() => atNodes(checked?.faults ?? [], read), [checked, read]);
  const marks = useMemo((): readonly Mark[] => {
    if (broken) return [{ from: broken.offset, to: broken.offset + 1, message: broken.message, tone: "bad" }];
    const at = (flaws: readonly Flaw[], tone: Mark["tone"]): Mark[] =>
      flaws.flatMap(({ node, message }) => {
        const found = spotOf(text, node);
        return found ? [{ ...found, message, tone }] : [];
      });
    return [...at(faults, "bad"), ...at(checked?.warnings ?? [], "wait")];
  }, [broken, text, faults, checked]);
  const show = (node: string | null): void => {
    choose(node ?? "");
    setSpot(spotOf(text, node));
  };
  return (
    <Form onSubmit={() => setReviewing(true)}>
      <div className="row">
        {!flow && (
          <label className="field grow">
            <span>Name</span>
            <input value={name} required maxLength={200} onChange={(event) => setName(event.target.value)} />
          </label>
        )}
        {draft && (
          <span className="faint">
            Draft, kept in this browser
            {draft.base !== version && `; it began with version ${draft.base}, the newest is ${version}`}
          </span>
        )}
        {draft && (
          <button type="button" onClick={() => setDraft(null)}>
            Discard draft
          </button>
        )}
        {unchanged && <span className="faint push">No changes since version {version}</span>}
        <Act
          needs="operate"
          type="submit"
          className={`primary ${unchanged ? "" : "push"}`}
          disabled={broken !== null || stale || faults.length > 0 || unchanged || (!flow && !name)}
        >
          <Icon name="check" /> Review and publish
        </Act>
      </div>
      {reviewing && (
        <Dialog
          title={flow ? `Publish version ${version + 1} of ${flow.name}?` : `Publish ${name}?`}
          onClose={() => setReviewing(false)}
          wide
        >
          <p className="faint">
            New runs use what is published; runs that have begun keep their version.
            {checked && checked.warnings.length > 0 && ` Warnings: ${checked.warnings.length}.`}
          </p>
          <Diff before={flow ? newest : {}} after={read} />
          <Refusal of={publish} />
          <div className="dialog-acts">
            <button type="button" onClick={() => setReviewing(false)} data-focus>
              Keep editing
            </button>
            <button type="button" className="primary" disabled={publish.busy} onClick={() => publish.run()}>
              Publish {flow ? `version ${version + 1}` : ""}
            </button>
          </div>
        </Dialog>
      )}
      <div className="grid-2">
        <div className="field">
          <span aria-hidden="true">Definition</span>
          <Suspense fallback={<Skeleton rows={12} />}>
            <CodeEditor label="Definition" value={text} onChange={setText} marks={marks} spot={spot} />
          </Suspense>
          {broken && (
            <button
              type="button"
              className="plain fault"
              onClick={() => setSpot({ from: broken.offset, to: broken.offset + 1 })}
            >
              Line {broken.line}, column {broken.column}: {broken.message}
            </button>
          )}
        </div>
        <div className="stack">
          {broken === null && checked && <Found faults={faults} warnings={checked.warnings} show={show} />}
          <Card title="Preview">
            <FlowGraph
              nodes={nodes}
              label="Preview of the flow"
              flaws={faults}
              doubts={checked?.warnings ?? []}
              chosen={chosen}
              choose={show}
            />
          </Card>
        </div>
      </div>
    </Form>
  );
}

/** Where a node is written, as near as its name tells. */
function spotOf(text: string, node: string | null): Spot | null {
  const name = node === null ? "" : JSON.stringify(node.split("/").at(-1));
  const from = name ? text.search(new RegExp(`${name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}\\s*:`)) : -1;
  return from < 0 ? null : { from, to: from + name.length };
}

function Found({
  faults,
  warnings,
  show,
}: {
  faults: readonly Flaw[];
  warnings: readonly Flaw[];
  show: (node: string | null) => void;
}): ReactNode {
  if (!faults.length && !warnings.length)
    return (
      <Notice tone="good" icon="check">
        Valid
      </Notice>
    );
  return (
    <div className="stack-tight" role="status">
      <FlawList flaws={faults} word="error" tone="bad" show={show} />
      <FlawList flaws={warnings} word="warning" tone="wait" show={show} />
    </div>
  );
}

export function FlawList({
  flaws,
  word,
  tone,
  show,
}: {
  flaws: readonly Flaw[];
  word: string;
  tone: "bad" | "wait";
  show: (node: string | null) => void;
}): ReactNode {
  if (!flaws.length) return null;
  return (
    <div className={`notice tone-${tone}`}>
      <Icon name="warn" />
      <div className="grow">
        <b>
          {flaws.length} {flaws.length === 1 ? word : `${word}s`}
        </b>
        <ul className="flaws">
          {flaws.map((flaw) => (
            <li key={`${flaw.node} ${flaw.field} ${flaw.message}`}>
              {flaw.node !== null && (
                <button type="button" className="plain" onClick={() => show(flaw.node)}>
                  {flaw.node}
                </button>
              )}
              {flaw.message}
            </li>
          ))}
        </ul>
      </div>
    </div>
  );
}
