// One node of one run: how it stands, every attempt of it, and what may be done at it.
import { useState } from "react";
import type { ReactNode } from "react";
import { parse, post, Problem, url } from "../api/client";
import { never, useAction, useData } from "../api/data";
import { useName } from "../api/me";
import type { Approval, FlowNode, NodeRun, Run, SharedState } from "../api/types";
import { callsOf, decoded, isOver, ofRun, ownShared } from "../lib/run";
import type { Step } from "../lib/run";
import { decide, useMade } from "../lib/decision";
import { useWhole } from "../lib/masked";
import { clock, span, useNow } from "../lib/time";
import { go, Link } from "../routes";
import { atIt, NODES } from "../words";
import { Act } from "./act";
import { Ago, Card, Facts, Form, Loading, Mark, Refusal } from "./basics";
import { Dialog } from "./dialog";
import type { NodeLook } from "./graph";
import { aboutNode } from "./graph";
import { Icon } from "./icon";
import { Json, JsonEdit } from "./json";
import { Undo } from "./undo";
import { faultOf, pretty } from "../lib/json";

const SHOWN = 20;

export function NodePanel({
  run,
  node,
  look,
  steps,
}: {
  run: Run;
  node: FlowNode;
  look: NodeLook;
  steps: readonly Step[];
}): ReactNode {
  const [forking, setForking] = useState(false);
  const rows = run.node_runs.filter((row) => row.node_key === node.key);
  const word = NODES[look.state];
  const here = look.current && !isOver(run);
  const step = steps.at(-1);
  return (
    <Card
      className="node-panel"
      title={
        <span className="row">
          {node.key}
          <Mark tone={word.tone} icon={word.icon}>
            {word.label}
          </Mark>
        </span>
      }
      acts={
        <Act
          needs="operate"
          onClick={() => setForking(true)}
          title="Starts a new run at this node; this run is not changed"
        >
          <Icon name="redo" size={14} /> Fork from here
        </Act>
      }
    >
      <div className="stack">
        <p className="faint small">{aboutNode(node)}</p>
        {here && node.kind === "approval" && step?.child && <Decide run={run} child={step.child} />}
        {here && node.kind === "wait_event" && <SignalForm run={run} node={node} />}
        {step && (node.kind === "foreach" || node.kind === "parallel") && <Fan step={step} rows={rows} />}
        {step?.child && node.kind === "flow_ref" && (
          <p>
            <Link to={`/runs/${encodeURIComponent(step.child)}`}>Run of {node.what}</Link>
          </p>
        )}
        {step?.error && rows.at(-1)?.error_text !== step.error && <p className="fault">{step.error}</p>}
        <NodeRuns run={run} node={node} rows={rows} step={step} />
      </div>
      {forking && <Fork run={run} node={node.key} step={step} onClose={() => setForking(false)} />}
    </Card>
  );
}

function Fan({ step, rows }: { step: Step; rows: readonly NodeRun[] }): ReactNode {
  const { done, failed, begun } = callsOf(rows);
  const total = Math.max(step.total ?? 0, step.calls, begun);
  return (
    <div className="stack-tight">
      <progress value={done + failed} max={Math.max(total, 1)} aria-label={`${done + failed} of ${total} items`} />
      <p className="small">
        {done} of {total} done{failed > 0 && `, ${failed} failed`}
        {begun - done - failed > 0 && `, ${begun - done - failed} running`}
      </p>
    </div>
  );
}

function NodeRuns({
  run,
  node,
  rows,
  step,
}: {
  run: Run;
  node: FlowNode;
  rows: readonly NodeRun[];
  step: Step | undefined;
}): ReactNode {
  const [most, setMost] = useState(SHOWN);
  const now = useNow();
  if (!rows.length)
    return step?.child && !isOver(run) ? (
      <p>
        <Link to={`/tasks/${encodeURIComponent(step.child)}`}>The call</Link> has not started yet.
      </p>
    ) : (
      <p className="faint">Not reached</p>
    );
  return (
    <ol className="node-runs" aria-label="Runs of this node">
      {rows.slice(-most).map((row, index, shown) => (
        <li key={row.id}>
          <Attempt row={row} run={run} node={node} now={now} open={index === shown.length - 1} />
        </li>
      ))}
      {rows.length > most && (
        <li>
          <button type="button" className="plain" onClick={() => setMost(most + 200)}>
            Show {rows.length - most} earlier
          </button>
        </li>
      )}
    </ol>
  );
}

function Attempt({
  row,
  run,
  node,
  now,
  open,
}: {
  row: NodeRun;
  run: Run;
  node: FlowNode;
  now: number;
  open: boolean;
}): ReactNode {
  const word = NODES[row.status === "running" ? atIt(node.kind) : row.status];
  const call = row.id.slice(0, row.id.lastIndexOf(":"));
  return (
    <details open={open}>
      <summary>
        <Mark tone={word.tone} icon={word.icon}>
          {word.label}
        </Mark>
        <span className="grow">{call === run.id ? "" : `attempt ${row.attempt_no}`}</span>
        {row.action && row.action !== "default" && <span className="faint small">→ {row.action}</span>}
        <span className="faint small num">
          {row.started_at !== null && span((row.finished_at ?? Math.max(now, row.started_at)) - row.started_at)}
        </span>
      </summary>
      <div className="stack-tight">
        <Facts
          facts={[
            ["worker", row.worker_id && <span className="mono small">{row.worker_id}</span>],
            ["address", row.worker_url && <span className="mono small">{row.worker_url}</span>],
            ["started", row.started_at !== null && clock(row.started_at)],
            ["call", call !== run.id && <Link to={`/tasks/${encodeURIComponent(call)}`}>view task</Link>],
          ]}
        />
        {row.error_text && <p className="fault">{row.error_text}</p>}
        {row.exec_input_json && (
          <div>
            <h3 className="faint">Input</h3>
            <Json value={decoded(row.exec_input_json)} label={`input of attempt ${row.attempt_no}`} />
          </div>
        )}
        {row.exec_output_json && (
          <div>
            <h3 className="faint">Output</h3>
            <Json value={decoded(row.exec_output_json)} label={`output of attempt ${row.attempt_no}`} />
          </div>
        )}
      </div>
    </details>
  );
}

/** Approve or reject, where the run waits for it. */
function Decide({ run, child }: { run: Run; child: string }): ReactNode {
  const approval = useData<Approval>(`/api/v2/approvals/${encodeURIComponent(child)}`, ofRun(run.id));
  const { name: by, setName } = useName();
  const [comment, setComment] = useState("");
  const made = useMade(approval.data?.id ?? "");
  if (approval.data?.status !== "open") return null;
  const say = (word: "approve" | "reject"): void => decide({ approval: approval.data!, word, comment, by });
  const { payload, reason, expires_at } = approval.data;
  const input = (payload as { input?: unknown } | null)?.input;
  return (
    <form
      className="decide"
      onSubmit={(event) => {
        event.preventDefault();
        const { submitter } = event.nativeEvent;
        if (submitter instanceof HTMLButtonElement) say(submitter.value as "approve" | "reject");
      }}
    >
      {reason && <p>{reason}</p>}
      {input != null && <Json value={input} label="input to approve" />}
      {expires_at !== null && (
        <p className="faint small">
          auto-{approval.data.default === "approve" ? "approves" : "rejects"} <Ago at={expires_at} />
        </p>
      )}
      <div className="fields">
        <label className="field">
          <span>Comment</span>
          <input
            value={comment}
            maxLength={4000}
            placeholder="recorded with the decision"
            onChange={(event) => setComment(event.target.value)}
          />
        </label>
        {setName && (
          <label className="field">
            <span>Your name</span>
            <input value={by} required maxLength={128} onChange={(event) => setName(event.target.value)} />
          </label>
        )}
      </div>
      <Refusal of={{ error: made?.error ?? null }} />
      {made && !made.error ? (
        <Undo made={made} />
      ) : (
        <div className="dialog-acts">
          <Act needs="approve" type="submit" value="reject">
            <Icon name="cross" /> Reject
          </Act>
          <Act needs="approve" type="submit" className="primary" value="approve">
            <Icon name="check" /> Approve
          </Act>
        </div>
      )}
    </form>
  );
}

function SignalForm({ run, node }: { run: Run; node: FlowNode }): ReactNode {
  const [text, setText] = useState("true");
  const signal = useAction(
    () => post(`/api/v2/runs/${encodeURIComponent(run.id)}/signal`, { name: node.key, value: parse(text) }),
    { done: "Signal sent", quiet: true },
  );
  return (
    <Form className="decide" onSubmit={() => signal.run()}>
      <p>Waiting for a signal{node.what && <> ({node.what})</>}.</p>
      <JsonEdit label="Value" value={text} onChange={setText} rows={2} />
      <Refusal of={signal} />
      <div className="dialog-acts">
        <Act needs="operate" type="submit" className="primary" disabled={signal.busy || faultOf(text) !== null}>
          <Icon name="chat" /> Send signal
        </Act>
      </div>
    </Form>
  );
}

/** With the state before the node's last visit; of one that was not reached, the state as it is. */
function Fork({
  run,
  node,
  step,
  onClose,
}: {
  run: Run;
  node: string;
  step: Step | undefined;
  onClose: () => void;
}): ReactNode {
  const path = `/api/v2/runs/${encodeURIComponent(run.id)}`;
  const before = step ? url(`${path}/shared`, { at: step.seq }) : null;
  const state = useData<SharedState>(before, never);
  return (
    <Dialog title={`Fork from ${node}`} onClose={onClose} wide>
      {before === null ? (
        <ForkForm run={run} node={node} path={path} seen={run} part="shared" />
      ) : (
        <Loading from={state}>
          {(found) => <ForkForm run={run} node={node} path={before} seen={found} part="before" />}
        </Loading>
      )}
    </Dialog>
  );
}

function ForkForm<T extends object>({
  run,
  node,
  path,
  seen,
  part,
}: {
  run: Run;
  node: string;
  path: string;
  seen: T;
  part: keyof T;
}): ReactNode {
  const { shown, hidden, reveal } = useWhole(path, seen, [part]);
  const [typed, setTyped] = useState<string | null>(null);
  const before = pretty(ownShared(shown[part] ?? {}));
  const text = typed ?? before;
  const fork = useAction(
    (anyway: boolean) =>
      post<Run>(`/api/v2/runs/${encodeURIComponent(run.id)}/fork`, {
        from_node: node,
        anyway,
        ...(text === before ? {} : { shared: parse(text) }),
      }),
    {
      done: "Forked; this is the new run",
      quiet: true,
      after: (made) => go(`/runs/${encodeURIComponent(made.id)}`),
    },
  );
  const refused = fork.error instanceof Problem && fork.error.status === 409;
  return (
    <Form onSubmit={() => fork.run(false)}>
      <p className="faint">
        Starts a new run of the same version, with the same parameters, at {node}. This run is not changed.
      </p>
      {hidden ? (
        <p>
          <button type="button" onClick={() => reveal()}>
            Reveal hidden values and edit
          </button>
        </p>
      ) : (
        <JsonEdit label="Initial shared state" value={text} onChange={setTyped} rows={12} />
      )}
      <Refusal of={fork} />
      <div className="dialog-acts">
        {text !== before && (
          <button type="button" onClick={() => setTyped(null)}>
            Discard edits
          </button>
        )}
        {refused && (
          <button type="button" className="danger" disabled={fork.busy} onClick={() => fork.run(true)}>
            Fork anyway
          </button>
        )}
        <button className="primary" disabled={fork.busy || faultOf(text) !== null}>
          <Icon name="redo" /> Fork
        </button>
      </div>
    </Form>
  );
}
