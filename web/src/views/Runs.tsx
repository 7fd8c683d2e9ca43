import type { ReactNode } from "react";
import { url } from "../api/client";
import { useData } from "../api/data";
import type { Flow, Page, RunBrief, State } from "../api/types";
import { Ago, Badge, Card, Empty, Head, Id, Loading } from "../components/basics";
import { useRowKeys } from "../lib/keys";
import { span, useNow } from "../lib/time";
import { go, Link, useParam } from "../routes";
import { phaseWord, STATES } from "../words";

const PAGE = 100;
const runAt = (run: RunBrief): string => `/runs/${encodeURIComponent(run.id)}`;

export default function Runs(): ReactNode {
  const [flow, setFlow] = useParam("flow");
  const [state, setState] = useParam("state");
  const flows = useData<Page<Flow>>("/api/v2/flows", (changed) => changed === null);
  return (
    <>
      <Head title="Runs" lead="Flows that were started: where they are, and how they ended.">
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
            <button key={one} type="button" className="pill" aria-pressed={one === state} onClick={() => setState(one === state ? "" : one)}>
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
  const [limit, setLimit] = useParam("limit", String(PAGE));
  const runs = useData<Page<RunBrief>>(url("/api/v2/runs", { flow, state, limit: Math.min(Number(limit) || PAGE, 1000) }));
  const items = runs.data?.items ?? [];
  const [at] = useRowKeys(items.length, (index) => go(runAt(items[index]!)));
  return (
    <Loading from={runs}>
      {(page) =>
        page.items.length ? (
          <Card className="flush">
            <div className="scroll" tabIndex={0} role="region" aria-label="Runs">
              <table>
                <thead>
                  <tr>
                    <th>Run</th>
                    <th>State</th>
                    <th>At</th>
                    <th className="num wide-only">Steps</th>
                    <th className="num wide-only">Took</th>
                    <th className="num">Began</th>
                  </tr>
                </thead>
                <tbody>
                  {page.items.map((run, index) => (
                    <tr key={run.id} className={index === at ? "at" : ""}>
                      <td>
                        <Link to={runAt(run)}>{run.flow}</Link>
                        <div className="small">
                          <Id id={run.id} to={runAt(run)} />
                        </div>
                      </td>
                      <td>
                        <Badge phase={run.phase} />
                        {run.error && run.state !== "succeeded" && <div className="small clamp">{run.error.message}</div>}
                      </td>
                      <td>{phaseWord(run.phase).live ? run.current_node : <span className="faint">{run.current_node}</span>}</td>
                      <td className="num wide-only">{run.step_count}</td>
                      <td className="num wide-only">
                        <Length run={run} />
                      </td>
                      <td className="num">
                        <Ago at={run.created_at} />
                      </td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
            {page.next && (
              <p className="more">
                {Number(limit) < 1000 ? (
                  <button type="button" onClick={() => setLimit("1000")}>
                    Show more
                  </button>
                ) : (
                  <span className="faint">The newest thousand. Narrow it down by flow and state.</span>
                )}
              </p>
            )}
          </Card>
        ) : (
          <Empty icon="graph" title={flow || state ? "No such run" : "No flow was run yet"} command={flow ? `onward flow run ${JSON.stringify(flow)}` : "onward demo flow"} />
        )
      }
    </Loading>
  );
}

function Length({ run }: { run: RunBrief }): ReactNode {
  const now = useNow();
  return span(Math.max(0, (run.finished_at ?? now) - run.created_at));
}
