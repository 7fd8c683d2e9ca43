import type { ReactNode } from "react";
import { post } from "../api/client";
import { useAction, useData } from "../api/data";
import type { Explanation, Run as RunShape } from "../api/types";
import { Ago, Badge, Card, Copy, Head, Id, ProblemBox, Skeleton, Sure } from "../components/basics";
import { FlowGraph } from "../components/graph";
import { Icon } from "../components/icon";
import { Json } from "../components/json";
import { NodePanel } from "../components/node";
import { StepLine } from "../components/steps";
import { useEvents } from "../lib/events";
import { useKeys } from "../lib/keys";
import { flowAt, flowIdOf, isOver, looksOf, ofRun, ownShared, stepsOf, takenOf } from "../lib/run";
import { ago, span, useNow } from "../lib/time";
import type { ViewProps } from "../pages";
import { Link, useParam } from "../routes";
import { may, phaseWord } from "../words";

export default function Run({ params }: ViewProps): ReactNode {
  const id = params.id!;
  const run = useData<RunShape>(`/api/v2/runs/${encodeURIComponent(id)}`, ofRun(id));
  if (run.error && run.data?.id !== id)
    return (
      <>
        <Head title="Run" />
        <ProblemBox error={run.error} again={() => void run.refetch()} />
        <p>
          <Link to="/runs">All runs</Link>
        </p>
      </>
    );
  if (run.data?.id !== id) return <Skeleton rows={8} />;
  return <Shown key={id} run={run.data} />;
}

function Shown({ run }: { run: RunShape }): ReactNode {
  const events = useEvents(run.id);
  const steps = stepsOf(events ?? []);
  const [picked, pick] = useParam("node");
  const over = isOver(run);
  const following = !picked;
  const fallen = steps.findLast((step) => step.status === "error" || step.status === "canceled");
  const node = run.nodes.find((one) => one.key === (picked || (over && run.state !== "succeeded" ? fallen?.node : "") || run.current_node)) ?? run.nodes[0];
  useKeys({ f: () => pick("") });
  const looks = looksOf(run, steps);
  return (
    <>
      <Head
        title={
          <>
            <Link to={flowAt(run.flow, flowIdOf(run.flow_version_id))}>{run.flow || "Run"}</Link> <Badge phase={run.phase} />
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
        <Facts run={run} />
        <div className="run-grid">
          <Card
            title="Graph"
            acts={
              !over && (
                <button type="button" className="pill" aria-pressed={following} onClick={() => pick(following ? run.current_node : "")} title="Show the node that the run is at (f)">
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
              choose={pick}
              follow={following && !over}
            />
          </Card>
          {node && <NodePanel key={node.key} run={run} node={node} look={looks.get(node.key)!} steps={steps.filter((step) => step.node === node.key)} />}
        </div>
        <Card title="Timeline">{events === null ? <Skeleton rows={2} /> : <StepLine steps={steps} over={over} chosen={node?.key ?? ""} choose={pick} />}</Card>
        <div className="grid-2">
          <Card title="Parameters">
            <Json value={run.params} label="parameters" />
          </Card>
          <Card title={over ? "Shared state at the end" : "Shared state now"}>
            <Json value={ownShared(run.shared)} label="shared state" />
            {run.shared._rt !== undefined && (
              <details className="engine">
                <summary className="faint small">What the engine noted for itself</summary>
                <Json value={run.shared._rt} label="engine's records" />
              </details>
            )}
          </Card>
        </div>
      </div>
    </>
  );
}

function Acts({ run }: { run: RunShape }): ReactNode {
  const path = `/api/v2/runs/${encodeURIComponent(run.id)}`;
  const cancel = useAction(() => post<RunShape>(`${path}/cancel`), { done: (now) => (now.state === "canceled" ? "Canceled" : "It was asked to stop; what is out is stopped first") });
  return (
    <>
      {may(run, "cancel") && (
        <Sure sure="Cancel it, really?" onSure={() => cancel.run()} disabled={cancel.busy}>
          <Icon name="stop" /> Cancel
        </Sure>
      )}
      <Link to={`/tasks/${encodeURIComponent(run.id)}`} className="button">
        <Icon name="list" /> As a task
      </Link>
    </>
  );
}

/** Said better than the ledger can, which knows only that it waits. */
const WAITS: Record<string, string> = {
  approval: "It waits for a person's word.",
  wait_event: "It waits for a signal.",
  executor: "It waits for the service that it called.",
  local: "It waits for the service that it called.",
  foreach: "It waits for the services that it called.",
  parallel: "It waits for the services that it called.",
  flow_ref: "It waits for the run that it started.",
};

/** What it waits for, or what became of it, in a sentence. */
function Standing({ run }: { run: RunShape }): ReactNode {
  const now = useNow();
  const over = isOver(run);
  const why = useData<Explanation>(over ? null : `/api/v2/tasks/${encodeURIComponent(run.id)}/explain`, ofRun(run.id));
  const { tone, icon } = phaseWord(run.phase);
  if (over)
    return run.error && run.state !== "succeeded" ? (
      <div className={`notice tone-${tone}`} role="status">
        <Icon name={icon} />
        <div>
          <b>{run.error.kind}</b> {run.error.message}
        </div>
      </div>
    ) : null;
  if (!why.data || why.data.phase !== run.phase) return null;
  return (
    <div className={`notice tone-${tone}`} role="status">
      <Icon name={icon} />
      <div>
        At <b>{run.current_node}</b>. {WAITS[run.nodes.find((node) => node.key === run.current_node)?.kind ?? ""] ?? why.data.sentence}
        {why.data.eta !== null && <span> ({ago(why.data.eta, now)})</span>}
      </div>
    </div>
  );
}

function Facts({ run }: { run: RunShape }): ReactNode {
  const facts: readonly (readonly [string, ReactNode])[] = [
    ["version", run.flow_version_id.match(/-v(\d+)$/)?.[1]],
    ["steps", String(run.step_count)],
    ["last action", run.last_action],
    ["began", <Ago at={run.created_at} />],
    ["ended", run.finished_at !== null && <Ago at={run.finished_at} />],
    ["took", run.finished_at !== null && span(run.finished_at - run.created_at)],
    ["forked from", run.forked_from && <Id id={run.forked_from} to={`/runs/${encodeURIComponent(run.forked_from)}`} />],
    ["started by", run.parent_id && <Id id={run.parent_id} to={`/runs/${encodeURIComponent(run.parent_id)}`} />],
    ["request id", run.idempotency_key],
  ];
  return (
    <Card>
      <dl className="facts">
        {facts.map(([name, value]) =>
          value ? (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ) : null,
        )}
      </dl>
    </Card>
  );
}
