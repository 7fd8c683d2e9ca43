import { useEffect, useRef, useState } from "react";
import type { ReactNode } from "react";
import { parse, url } from "../api/client";
import { useData } from "../api/data";
import type { Approval, Page } from "../api/types";
import { Ago, Card, Empty, Head, Id, Loading, Mark, Tabs } from "../components/basics";
import { Icon } from "../components/icon";
import { Json, JsonEdit } from "../components/json";
import { faultOf, pretty } from "../lib/json";
import { useDecision } from "../lib/decision";
import type { Decision } from "../lib/decision";
import { useIdentity } from "../lib/kept";
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
const TONES: Record<string, Tone> = {
  open: "wait",
  approved: "good",
  rejected: "bad",
  expired: "off",
  canceled: "off",
};

export default function Approvals(): ReactNode {
  const [status, setStatus] = useParam("status", "open");
  const [task] = useParam("task");
  const approvals = useData<Page<Approval>>(url("/api/v2/approvals", { status }));
  const [by, setBy] = useIdentity();
  return (
    <>
      <Head title="Approvals" lead="Tasks waiting for approval.">
        <label className="row">
          <span className="faint">deciding as</span>
          <input
            className="narrow"
            value={by}
            placeholder="your name"
            maxLength={128}
            onChange={(event) => setBy(event.target.value)}
          />
        </label>
      </Head>
      <div className="stack">
        <Tabs label="Status" value={status} options={STATUSES} onChange={setStatus} />
        <Loading from={approvals}>
          {({ items }) => (
            <Inbox
              key={status}
              approvals={task ? items.filter((one) => one.task_id === task) : items}
              by={by}
              open={status === "open"}
            />
          )}
        </Loading>
      </div>
    </>
  );
}

function Inbox({ approvals, by, open }: { approvals: readonly Approval[]; by: string; open: boolean }): ReactNode {
  const decide = useDecision(by);
  const quick = (word: "approve" | "reject") => (index: number) => {
    const approval = approvals[index];
    if (approval?.status === "open") decide.run({ approval, word, comment: "" });
  };
  const [at] = useRowKeys(approvals.length, (index) => go(`/tasks/${encodeURIComponent(approvals[index]!.task_id)}`), {
    a: quick("approve"),
    r: quick("reject"),
  });
  const list = useRef<HTMLUListElement>(null);
  useEffect(() => {
    list.current?.children[at]?.scrollIntoView({ block: "nearest" });
  }, [at]);
  if (!approvals.length)
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
      {approvals.map((approval, index) => (
        <li key={approval.id}>
          <One approval={approval} at={index === at} decide={decide.run} busy={decide.busy} />
        </li>
      ))}
    </ul>
  );
}

function One({
  approval,
  at,
  decide,
  busy,
}: {
  approval: Approval;
  at: boolean;
  decide: (decision: Decision) => void;
  busy: boolean;
}): ReactNode {
  const [comment, setComment] = useState("");
  const { shown, hidden, reveal } = useWhole(`/api/v2/approvals/${encodeURIComponent(approval.id)}`, approval, [
    "payload",
  ]);
  const [editing, setEditing] = useState(false);
  const [typed, setTyped] = useState<string | null>(null);
  const text = editing ? (typed ?? pretty(shown.payload)) : null;
  const open = approval.status === "open";
  const run = approval.type === "flow:approval" ? (approval.payload as { run?: string } | null)?.run : undefined;
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
          {run ? <Link to={`/runs/${encodeURIComponent(run)}`}>flow run</Link> : approval.type}{" "}
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
          <Json value={shown.payload} label={`payload of ${approval.type}`} />
        ) : (
          <JsonEdit label="Payload" value={text} onChange={setTyped} />
        )}
        {hidden && (
          <p>
            <button type="button" onClick={() => reveal()}>
              Reveal hidden values
            </button>
          </p>
        )}
        {open ? (
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
            <button type="button" disabled={busy} onClick={() => decide({ approval, word: "reject", comment })}>
              <Icon name="cross" /> Reject
            </button>
            <button
              type="button"
              className="primary"
              disabled={busy || (text !== null && faultOf(text) !== null)}
              onClick={() =>
                decide({ approval, word: "approve", comment, ...(edited ? { payload: parse(text) } : {}) })
              }
            >
              <Icon name="check" /> {edited ? "Approve as edited" : "Approve"}
            </button>
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
