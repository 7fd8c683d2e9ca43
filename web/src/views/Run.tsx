import { useState } from "react";
import type { ReactNode } from "react";
import { Act } from "../components/act";
import { post } from "../api/client";
import { useAction, useData } from "../api/data";
import type { Explanation, Run as RunShape } from "../api/types";
import { Ago, Badge, Card, Copy, Detail, Facts, Head, Id, Notice, Skeleton } from "../components/basics";
import { Confirm } from "../components/confirm";
import { FlowGraph } from "../components/graph";
import { Icon } from "../components/icon";
import { Json } from "../components/json";
import { NodePanel } from "../components/node";
import { RunCompare } from "../components/runcompare";
import { RunForm } from "../components/runform";
import { RunTimeline } from "../components/runtimeline";
import { SharedAt } from "../components/shared";
import { useEvents } from "../lib/events";
import { useKeys } from "../lib/keys";
import { flowAt, flowIdOf, isOver, looksOf, ofRun, stepsOf, takenOf } from "../lib/run";
import { useWhole } from "../lib/masked";
import { ago, span, useNow } from "../lib/time";
import { useTitle } from "../lib/title";
import type { ViewProps } from "../pages";
import { Link, setParams, useParam } from "../routes";
import { may, phaseWord } from "../words";

export default function Run({ params }: ViewProps): ReactNode {
  const id = params.id!;
  const run = useData<RunShape>(`/api/v2/runs/${encodeURIComponent(id)}`, ofRun(id));
  return (
    <Detail from={run} same={(one) => one.id === id} title="Run" back={["/runs", "All runs"]}>
      {(found) => <Shown key={id} run={found} />}
    </Detail>
  );
}

function Shown({ run }: { run: RunShape }): ReactNode {
  useTitle(`${run.flow} ${phaseWord(run.phase).label}`, phaseWord(run.phase).tone);
  const events = useEvents(run.id);
  const steps = stepsOf(events ?? []);
  const [picked, pick] = useParam("node");
  const [at] = useParam("step");
  const over = isOver(run);
  const following = !picked && !at;
  const fallen = steps.findLast((step) => step.status === "error" || step.status === "canceled");
  const step = at === "" ? undefined : steps.find((one) => one.seq === Number(at));
  const node =
    run.nodes.find(
      (one) =>
        one.key ===
        (step?.node || picked || (over && run.state !== "succeeded" ? fallen?.node : "") || run.current_node),
    ) ?? run.nodes[0];
  /** A node, and the state of the run when it was last there. */
  const show = (key: string): void =>
    setParams({ node: key, step: String(steps.findLast((one) => one.node === key)?.seq ?? "") }, { replace: true });
  const toStep = (seq: number | null): void =>
    setParams({ node: "", step: seq === null ? "" : String(seq) }, { replace: true });
  useKeys({ f: () => toStep(null) });
  const looks = looksOf(run, steps);
  return (
    <>
      <Head
        title={
          <>
            <Link to={flowAt(run.flow, flowIdOf(run.flow_version_id))}>{run.flow || "Run"}</Link>{" "}
            <Badge phase={run.phase} />
          </>
        }
        lead={
          <span className="mono">
            {run.id} <Copy text={run.id} label="Copy id" />
          </span>
        }
      >
        <Acts run={run} />
      </Head>
      <div className="stack">
        <Standing run={run} />
        <Card>
          <Facts facts={factsOf(run)} />
        </Card>
        <div className="run-grid">
          <Card
            title="Graph"
            acts={
              !over && (
                <button
                  type="button"
                  className="pill"
                  aria-pressed={following}
                  onClick={() => (following ? pick(run.current_node) : toStep(null))}
                  title="Show the current node (f)"
                >
                  <Icon name="play" size={12} /> Follow
                </button>
              )
            }
          >
            <FlowGraph
              nodes={run.nodes}
              label={`Graph of ${run.flow}`}
              looks={looks}
              taken={takenOf(run, steps)}
              chosen={node?.key ?? ""}
              choose={show}
              follow={following && !over}
            />
          </Card>
          {node && (
            <NodePanel
              key={node.key}
              run={run}
              node={node}
              look={looks.get(node.key)!}
              steps={steps.filter((one) => one.node === node.key)}
            />
          )}
        </div>
        <Card title="Timeline">
          {events === null ? (
            <Skeleton rows={2} />
          ) : (
            <RunTimeline
              run={run}
              steps={steps}
              chosen={(one) => (step ? one.seq === step.seq : one.node === node?.key)}
              choose={toStep}
            />
          )}
        </Card>
        <Compare run={run} />
        <Card title="Shared state">
          <SharedAt run={run} steps={steps} at={at === "" ? null : Number(at)} choose={toStep} />
        </Card>
        <div className="grid-2">
          <Card title="Parameters">
            <Json value={run.params} label="parameters" />
          </Card>
          {run.shared._rt !== undefined && (
            <Card title="Engine state">
              <Json value={run.shared._rt} label="engine state" />
            </Card>
          )}
        </div>
      </div>
    </>
  );
}

/** Beside the last good run, once somebody asks. */
function Compare({ run }: { run: RunShape }): ReactNode {
  const [shown, setShown] = useState(false);
  return (
    <Card
      title="Compared with the last success"
      acts={
        <button type="button" className="pill" aria-pressed={shown} onClick={() => setShown(!shown)}>
          Compare
        </button>
      }
    >
      {shown ? (
        <RunCompare run={run} />
      ) : (
        <p className="faint">Which nodes went another way or took longer, and what they were given.</p>
      )}
    </Card>
  );
}

function Acts({ run: seen }: { run: RunShape }): ReactNode {
  const path = `/api/v2/runs/${encodeURIComponent(seen.id)}`;
  const { shown: run, reveal } = useWhole(path, seen, ["params"]);
  const [again, setAgain] = useState<RunShape | null>(null);
  const cancel = useAction(() => post<RunShape>(`${path}/cancel`), {
    done: (now) => (now.state === "canceled" ? "Canceled" : "Canceling: running calls are stopped first"),
    quiet: true,
  });
  return (
    <>
      {may(run, "cancel") && (
        <Confirm
          question="Cancel this run?"
          act="Cancel run"
          action={cancel}
          about={
            <p>
              {run.flow} <span className="mono">{run.id}</span>, {phaseWord(run.phase).label}
              {run.current_node && ` at ${run.current_node}`}
            </p>
          }
        >
          <Icon name="stop" /> Cancel
        </Confirm>
      )}
      <Act needs="submit" onClick={() => reveal((whole) => setAgain(whole))}>
        <Icon name="redo" /> Run again
      </Act>
      <Link to={`/tasks/${encodeURIComponent(run.id)}`} className="button">
        <Icon name="list" /> View task
      </Link>
      {again && (
        <RunForm
          flow={run.flow}
          version={Number(run.flow_version_id.match(/-v(\d+)$/)?.[1])}
          definition={null}
          given={again.params ?? {}}
          onClose={() => setAgain(null)}
        />
      )}
    </>
  );
}

/** More exact than the explanation of the task, which knows only that it waits. */
const WAITS: Record<string, string> = {
  approval: "Waiting for approval.",
  wait_event: "Waiting for a signal.",
  executor: "Waiting for the service it called.",
  local: "Waiting for the service it called.",
  foreach: "Waiting for the services it called.",
  parallel: "Waiting for the services it called.",
  flow_ref: "Waiting for the run it started.",
};

/** What it waits for, or what became of it, in a sentence. */
function Standing({ run }: { run: RunShape }): ReactNode {
  const now = useNow();
  const over = isOver(run);
  const why = useData<Explanation>(over ? null : `/api/v2/tasks/${encodeURIComponent(run.id)}/explain`, ofRun(run.id));
  const { tone, icon } = phaseWord(run.phase);
  if (over)
    return run.error && run.state !== "succeeded" ? (
      <Notice tone={tone} icon={icon}>
        <b>{run.error.kind}</b> {run.error.message}
      </Notice>
    ) : null;
  if (!why.data || why.data.phase !== run.phase) return null;
  const kind = run.nodes.find((node) => node.key === run.current_node)?.kind ?? "";
  return (
    <Notice tone={tone} icon={icon}>
      At <b>{run.current_node}</b>. {WAITS[kind] ?? why.data.sentence}
      {why.data.eta !== null && (
        <span>
          {" "}
          ({(kind === "approval" || kind === "wait_event") && "expires "}
          {ago(why.data.eta, now)})
        </span>
      )}
    </Notice>
  );
}

function factsOf(run: RunShape): readonly (readonly [string, ReactNode])[] {
  return [
    ["version", run.flow_version_id.match(/-v(\d+)$/)?.[1]],
    ["steps", String(run.step_count)],
    ["last action", run.last_action],
    ["started", <Ago at={run.created_at} />],
    ["finished", run.finished_at !== null && <Ago at={run.finished_at} />],
    ["duration", run.finished_at !== null && span(run.finished_at - run.created_at)],
    ["forked from", run.forked_from && <Id id={run.forked_from} to={`/runs/${encodeURIComponent(run.forked_from)}`} />],
    ["started by", run.parent_id && <Id id={run.parent_id} to={`/runs/${encodeURIComponent(run.parent_id)}`} />],
    ["request id", run.idempotency_key],
  ];
}
