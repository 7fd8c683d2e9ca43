import { useEffect, useRef, useState } from "react";
import type { ReactNode } from "react";
import { parse, url } from "../api/client";
import { never, useData } from "../api/data";
import { useLack, useName } from "../api/me";
import type { Approval, Page, Task } from "../api/types";
import { Act } from "../components/act";
import { Ago, Card, Empty, Head, Id, Loading, Mark, Refusal, Tabs } from "../components/basics";
import { say } from "../components/toasts";
import { Undo } from "../components/undo";
import { Icon } from "../components/icon";
import { Json } from "../components/json";
import { PayloadEdit } from "../components/payload";
import { faultOf, pretty } from "../lib/json";
import { decide, undo, useMade } from "../lib/decision";
import type { Decision } from "../lib/decision";
import { useRowKeys } from "../lib/keys";
import { useWhole } from "../lib/masked";
import { go, Link, useParam } from "../routes";
import type { Tone } from "../words";

const STATUSES = [
  ["open", "Open"],
  ["approved", "Approved"],
  ["rejected", "Rejected"],
  ["expired", "Expired"],
  ["all", "All"],
] as const;
const MOST = 100;
const TONES: Record<string, Tone> = {
  open: "wait",
  approved: "good",
  rejected: "bad",
  expired: "off",
  canceled: "off",
};

export default function Approvals(): ReactNode {
  const [status, setStatus] = useParam("status", "open");
  const [task, setTask] = useParam("task");
  const approvals = useData<Page<Approval>>(url("/api/v2/approvals", { status, limit: MOST }));
  const { name: by, setName } = useName();
  const lack = useLack("approve");
  const [nameless, setNameless] = useState(false);
  const name = useRef<HTMLInputElement>(null);
  /** Who decided is recorded: without a name nothing is sent. */
  const decideAs = (decision: Omit<Decision, "by">): void => {
    if (lack) return say(lack, { bad: true });
    setNameless(!by);
    if (by) decide({ ...decision, by });
    else name.current?.focus();
  };
  return (
    <>
      <Head title="Approvals" lead="Tasks waiting for approval.">
        {setName ? (
          <label className="row">
            <span className={nameless && !by ? "fault" : "faint"}>
              {nameless && !by ? "Enter your name, it is recorded" : "deciding as"}
            </span>
            <input
              ref={name}
              className="narrow"
              value={by}
              placeholder="your name"
              maxLength={128}
              aria-invalid={nameless && !by}
              onChange={(event) => setName(event.target.value)}
            />
          </label>
        ) : (
          <span className="faint">deciding as {by}</span>
        )}
      </Head>
      <div className="stack">
        <Tabs label="Status" value={status} options={STATUSES} onChange={setStatus} />
        {task && (
          <p className="row">
            Only the approval of task <Id id={task} to={`/tasks/${encodeURIComponent(task)}`} />
            <button type="button" onClick={() => setTask("")}>
              Show all
            </button>
          </p>
        )}
        {/* The cards of the tab before would stay: they keep their places. */}
        <Loading
          from={{
            data: approvals.isPlaceholderData ? undefined : approvals.data,
            error: approvals.error,
            refetch: () => approvals.refetch(),
          }}
        >
          {({ items, next }) => (
            <>
              <Inbox
                key={`${status} ${task}`}
                approvals={task ? items.filter((one) => one.task_id === task) : items}
                decideAs={decideAs}
                open={status === "open"}
              />
              {next && <p className="faint">The newest {MOST}.</p>}
            </>
          )}
        </Loading>
      </div>
    </>
  );
}

/** Cards stay where they are, also when they were decided; new ones come last. */
function usePlaced(approvals: readonly Approval[]): readonly Approval[] {
  const [seen, setSeen] = useState<ReadonlyMap<string, Approval>>(new Map());
  if (approvals.every((one) => seen.get(one.id) === one)) return [...seen.values()];
  const now = new Map(seen);
  for (const one of approvals) now.set(one.id, one);
  setSeen(now);
  return [...now.values()];
}

function Inbox({
  approvals,
  decideAs,
  open,
}: {
  approvals: readonly Approval[];
  decideAs: (decision: Omit<Decision, "by">) => void;
  open: boolean;
}): ReactNode {
  const placed = usePlaced(approvals);
  const there = new Set(approvals.map((one) => one.id));
  const list = useRef<HTMLUListElement>(null);
  // The card's own button: what was written into its fields goes with the decision.
  const quick = (word: "approve" | "reject") => (index: number) =>
    document.getElementById(placed[index]!.id)?.querySelector<HTMLElement>(`button[value=${word}]`)?.click();
  const [at] = useRowKeys(
    placed.map((one) => one.id),
    (index) => go(`/tasks/${encodeURIComponent(placed[index]!.task_id)}`),
    { a: quick("approve"), r: quick("reject"), u: (index) => undo(placed[index]!.id) },
  );
  useEffect(() => {
    list.current?.children[at]?.scrollIntoView({ block: "nearest" });
  }, [at]);
  if (!placed.length)
    return (
      <Empty
        icon="hand"
        title={open ? "No open approvals" : "Nothing here"}
        command={`curl -s ${location.origin}/api/v2/tasks -d '{"type": "echo", "payload": {"amount": 100}, "requires_approval": true}'`}
      >
        A task needs approval when its submission, its service or its flow requires it.
      </Empty>
    );
  return (
    <ul className="stack" ref={list}>
      {placed.map((approval, index) => (
        <li key={approval.id} id={approval.id}>
          <One approval={approval} at={index === at} decideAs={decideAs} gone={!there.has(approval.id)} />
        </li>
      ))}
    </ul>
  );
}

interface FlowPayload {
  run?: string;
  input?: unknown;
}

/** Which flow asks, with the way to its run. */
function FlowOf({ run }: { run: string }): ReactNode {
  const task = useData<Task>(`/api/v2/tasks/${encodeURIComponent(run)}`, never);
  return <Link to={`/runs/${encodeURIComponent(run)}`}>{task.data?.type.replace(/^flow:/, "") ?? "flow"} run</Link>;
}

function One({
  approval: asked,
  at,
  decideAs,
  gone,
}: {
  approval: Approval;
  at: boolean;
  decideAs: (decision: Omit<Decision, "by">) => void;
  gone: boolean; // no longer in the list that is shown
}): ReactNode {
  const made = useMade(asked.id);
  const approval = made?.result ?? asked;
  const { shown, hidden, reveal } = useWhole(`/api/v2/approvals/${encodeURIComponent(asked.id)}`, asked, ["payload"]);
  const [comment, setComment] = useState("");
  const [editing, setEditing] = useState(false);
  const [typed, setTyped] = useState<string | null>(null);
  const text = editing ? (typed ?? pretty(shown.payload)) : null;
  const open = approval.status === "open";
  const question = approval.type === "flow:approval" ? (shown.payload as FlowPayload | null) : null;
  const run = question?.run;
  const edited = text !== null && text !== pretty(shown.payload);
  return (
    <Card
      className={at ? "at" : ""}
      title={
        <span className="row">
          <Mark
            tone={TONES[approval.status] ?? "idle"}
            icon={approval.status === "approved" ? "check" : open ? "hand" : "cross"}
          >
            {approval.status}
          </Mark>
          {run ? <FlowOf run={run} /> : approval.type}{" "}
          <Id id={approval.task_id} to={`/tasks/${encodeURIComponent(approval.task_id)}`} />
        </span>
      }
      acts={
        <span className="faint small">
          requested <Ago at={approval.requested_at} />
          {open && approval.expires_at !== null && (
            <>
              , auto-{approval.default === "approve" ? "approves" : "rejects"} <Ago at={approval.expires_at} />
            </>
          )}
        </span>
      }
    >
      <div className="stack">
        {approval.reason && <p>{approval.reason}</p>}
        {text === null ? (
          <Json
            value={question ? (question.input ?? null) : shown.payload} // the rest is the engine's
            label={`payload of ${approval.type} ${approval.task_id}`}
          />
        ) : (
          <PayloadEdit type={approval.type} label="Payload" value={text} onChange={setTyped} />
        )}
        {made?.error && <Refusal of={{ error: made.error }} />}
        {hidden && (
          <p>
            <Act needs="reveal" onClick={() => reveal()}>
              Reveal hidden values
            </Act>
          </p>
        )}
        {made && !made.result && !made.error ? (
          <Undo made={made} />
        ) : open && gone ? (
          <p className="faint">No longer open: decided elsewhere, expired or canceled.</p>
        ) : open ? (
          <form className="row" onSubmit={(event) => event.preventDefault()}>
            <input
              className="grow"
              aria-label="Comment"
              placeholder="Reason (recorded)"
              value={comment}
              maxLength={4000}
              onChange={(event) => setComment(event.target.value)}
            />
            <button
              type="button"
              className="plain link"
              onClick={() => (editing ? (setEditing(false), setTyped(null)) : reveal(() => setEditing(true)))}
            >
              {text === null ? "Edit payload" : "Discard edits"}
            </button>
            <Act needs="approve" value="reject" onClick={() => decideAs({ approval, word: "reject", comment })}>
              <Icon name="cross" /> Reject
            </Act>
            <Act
              needs="approve"
              value="approve"
              className="primary"
              disabled={text !== null && faultOf(text) !== null}
              onClick={() =>
                decideAs({ approval, word: "approve", comment, ...(edited ? { payload: parse(text) } : {}) })
              }
            >
              <Icon name="check" /> {edited ? "Approve as edited" : "Approve"}
            </Act>
          </form>
        ) : (
          <p className="faint">
            {approval.status} {approval.by && `by ${approval.by}`} <Ago at={approval.decided_at} />
            {approval.comment && `: ${approval.comment}`}
          </p>
        )}
      </div>
    </Card>
  );
}
