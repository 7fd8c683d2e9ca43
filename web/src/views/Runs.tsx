import type { ReactNode } from "react";
import { seldom, useData } from "../api/data";
import type { Flow, Page, RunBrief, State } from "../api/types";
import { Ago, Badge, Empty, Head, shortId } from "../components/basics";
import { Cell, Rows } from "../components/rows";
import { older, useList } from "../lib/list";
import { span, useNow } from "../lib/time";
import { Link, useParam } from "../routes";
import { phaseWord, STATES } from "../words";

const runAt = (run: RunBrief): string => `/runs/${encodeURIComponent(run.id)}`;

export default function Runs(): ReactNode {
  const [flow, setFlow] = useParam("flow");
  const [state, setState] = useParam("state");
  const flows = useData<Page<Flow>>("/api/v2/flows", seldom);
  return (
    <>
      <Head title="Runs" lead="Runs of flows: where they are and how they ended.">
        <label className="row">
          <span className="faint">flow</span>
          <select className="narrow" value={flow} onChange={(event) => setFlow(event.target.value)}>
            <option value="">all</option>
            {(flows.data?.items ?? []).map((one) => (
              <option key={one.id}>{one.name}</option>
            ))}
          </select>
        </label>
      </Head>
      <div className="stack">
        <div className="pills" role="group" aria-label="States">
          {STATES.map((one) => (
            <button
              key={one}
              type="button"
              className="pill"
              aria-pressed={one === state}
              onClick={() => setState(one === state ? "" : one)}
            >
              {phaseWord(one).label}
            </button>
          ))}
        </div>
        <RunList flow={flow} state={state as State | ""} />
      </div>
    </>
  );
}

export function RunList({ flow, state = "" }: { flow: string; state?: State | "" }): ReactNode {
  const list = useList<RunBrief>({
    path: "/api/v2/runs",
    params: { flow, state, brief: true },
    below: older,
    fits: (run) => !state || run.state === state,
  });
  return (
    <Rows
      list={list}
      label="Runs"
      what={["run", "runs"]}
      kind="runs"
      at={runAt}
      empty={
        <Empty
          icon="graph"
          title={flow || state ? "No matching runs" : "No runs yet"}
          command={flow ? `onward flow run ${JSON.stringify(flow)}` : "onward demo flow"}
        />
      }
      head={
        <>
          <Cell head>State</Cell>
          <Cell head>Run</Cell>
          <Cell head className="wide-only">
            {" "}
            Node
          </Cell>
          <Cell head className="wide-only right">
            Steps
          </Cell>
          <Cell head className="right">
            {" "}
            Duration
          </Cell>
          <Cell head className="right">
            {" "}
            Started
          </Cell>
        </>
      }
    >
      {(run) => (
        <>
          <Cell>
            <Badge phase={run.phase} />
          </Cell>
          <Cell className="list-what">
            <Link to={runAt(run)} className="clip">
              {run.flow} <span className="mono faint">{shortId(run.id)}</span>
            </Link>
            {run.error && run.state !== "succeeded" && <span className="clip faint small">{run.error.message}</span>}
          </Cell>
          <Cell className={`wide-only clip ${phaseWord(run.phase).live ? "" : "faint"}`}>{run.current_node}</Cell>
          <Cell className="wide-only num right">{run.step_count}</Cell>
          <Cell className="num right list-low">
            <Length run={run} />
          </Cell>
          <Cell className="num right faint list-high">
            <Ago at={run.created_at} />
          </Cell>
        </>
      )}
    </Rows>
  );
}

function Length({ run }: { run: RunBrief }): ReactNode {
  const now = useNow();
  return span(Math.max(0, (run.finished_at ?? now) - run.created_at));
}
