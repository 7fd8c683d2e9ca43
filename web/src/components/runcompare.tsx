// A run beside the last one of its flow that went well: which nodes differ, and in what they were given.
import type { ReactNode } from "react";
import { url } from "../api/client";
import { never, useData } from "../api/data";
import type { Page, Run, RunBrief } from "../api/types";
import { pairsOf } from "../lib/comparison";
import type { NodeLength } from "../lib/comparison";
import { ownShared } from "../lib/run";
import { span } from "../lib/time";
import { Ago, Id, Loading, Mark, num, Table } from "./basics";
import { Diff } from "./diff";

export function RunCompare({ run }: { run: Run }): ReactNode {
  const good = useData<Page<RunBrief>>(
    url("/api/v2/runs", { flow: run.flow, state: "succeeded", brief: true, limit: 2 }),
    never,
  );
  const id = good.data?.items.find((one) => one.id !== run.id)?.id;
  const other = useData<Run>(id ? `/api/v2/runs/${encodeURIComponent(id)}` : null, never);
  if (good.data && !id) return <p className="faint">No other run of this flow has succeeded.</p>;
  return <Loading from={other}>{(found) => <Compared here={run} there={found} />}</Loading>;
}

function Compared({ here, there }: { here: Run; there: Run }): ReactNode {
  const pairs = pairsOf(here, there);
  return (
    <div className="stack">
      <p className="faint">
        Beside <Id id={there.id} to={`/runs/${encodeURIComponent(there.id)}`} />, which succeeded{" "}
        <Ago at={there.finished_at} />
        {here.flow_version_id !== there.flow_version_id && " with another version of the flow"}.
      </p>
      <Table
        label="Nodes of both runs"
        columns={["Node", "This run", num("Duration"), "Last success", num("Duration")]}
      >
        {pairs.map(({ key, here: one, there: other, differs }) => (
          <tr key={key} className={differs ? "differs" : ""}>
            <td>
              {key} {differs && <Mark tone="wait">differs</Mark>}
            </td>
            <Side of={one} />
            <Side of={other} />
          </tr>
        ))}
      </Table>
      <div className="grid-2">
        <div>
          <h3 className="faint">Parameters, from the last success to this run</h3>
          <Diff before={there.params ?? {}} after={here.params ?? {}} />
        </div>
        <div>
          <h3 className="faint">Shared state at the end</h3>
          <Diff before={ownShared(there.shared ?? {})} after={ownShared(here.shared ?? {})} />
        </div>
      </div>
    </div>
  );
}

function Side({ of }: { of: NodeLength | null }): ReactNode {
  if (!of)
    return (
      <>
        <td className="faint">not reached</td>
        <td />
      </>
    );
  return (
    <>
      <td>
        {of.status}
        {of.attempts > 1 && <span className="faint">, {of.attempts} attempts</span>}
      </td>
      <td className="num">{of.ms === null ? "–" : span(of.ms)}</td>
    </>
  );
}
