import { useState } from "react";
import type { ReactNode } from "react";
import { get, post } from "../api/client";
import { seldom, useAction, useData } from "../api/data";
import type { Drawn, FlowShown, FlowVersion } from "../api/types";
import { Act } from "../components/act";
import {
  Ago,
  Card,
  Detail,
  Empty,
  Head,
  Loading,
  num,
  ProblemBox,
  Skeleton,
  spoken,
  Table,
  Tabs,
} from "../components/basics";
import { Confirm } from "../components/confirm";
import { Diff } from "../components/diff";
import { FlawList, FlowEditor } from "../components/floweditor";
import { aboutNode, FlowGraph } from "../components/graph";
import { Icon } from "../components/icon";
import { Json } from "../components/json";
import { RunForm } from "../components/runform";
import { nodeAt } from "../lib/definition";
import { useKeys } from "../lib/keys";
import { useTitle } from "../lib/title";
import type { ViewProps } from "../pages";
import { setParams, useParam } from "../routes";
import { RunList } from "./Runs";

const TABS = [
  ["graph", "Graph"],
  ["definition", "Definition"],
  ["versions", "Versions"],
  ["runs", "Runs"],
  ["edit", "Edit"],
] as const;

export default function Flow({ params }: ViewProps): ReactNode {
  const path = `/api/v2/flows/${encodeURIComponent(params.flow!)}`;
  const flow = useData<FlowShown>(path, seldom);
  const [number] = useParam("version");
  const older = useData<Drawn>(
    number && Number(number) !== flow.data?.version ? `${path}/versions/${encodeURIComponent(number)}` : null,
    seldom,
  );
  return (
    <Detail from={flow} same={() => true} title="Flow" back={["/flows", "All flows"]}>
      {(found) => {
        if (older.error) return <ProblemBox error={older.error} again={() => setParams({ version: "" })} />;
        const newest = found.definition === undefined ? null : (found as FlowShown & Drawn);
        const asked = number && Number(number) !== found.version ? older.data : newest;
        return asked === undefined ? (
          <Skeleton rows={8} />
        ) : (
          <Shown key={found.id} flow={found} drawn={asked} path={path} />
        );
      }}
    </Detail>
  );
}

function Shown({ flow, drawn, path }: { flow: FlowShown; drawn: Drawn | null; path: string }): ReactNode {
  useTitle(flow.name);
  const [tab, setTab] = useParam("tab", drawn ? "graph" : "edit");
  const [running, setRunning] = useState(false);
  useKeys(drawn ? { r: () => setRunning(true), e: () => setTab("edit") } : {});
  return (
    <>
      <Head title={flow.name} lead={drawn ? <Said drawn={drawn} newest={flow.version} /> : "No version published yet."}>
        {flow.versions.length > 1 && (
          <VersionChoice
            label="version"
            versions={flow.versions}
            value={String(drawn?.version ?? "")}
            choose={(chosen) => setParams({ version: Number(chosen) === flow.version ? "" : chosen })}
          />
        )}
        {drawn && (
          <Act needs="submit" className="primary" onClick={() => setRunning(true)}>
            <Icon name="play" /> Run
          </Act>
        )}
      </Head>
      <div className="stack">
        <Tabs label="Shown" value={tab as (typeof TABS)[number][0]} options={TABS} onChange={setTab} />
        {tab === "edit" ? (
          <FlowEditor
            key={drawn?.version_id ?? ""}
            flow={flow}
            definition={drawn?.definition ?? null}
            newest={flow.definition ?? {}}
            after={() => setParams({ tab: "", version: "" })}
          />
        ) : tab === "runs" ? (
          <RunList flow={flow.name} />
        ) : !drawn ? (
          <Empty icon="graph" title="No version published" />
        ) : tab === "versions" ? (
          <Versions versions={flow.versions} path={path} />
        ) : tab === "definition" ? (
          <Card>
            <Json value={drawn.definition} label="definition" />
          </Card>
        ) : (
          <Graph drawn={drawn} />
        )}
      </div>
      {running && drawn && (
        <RunForm
          flow={flow.name}
          version={drawn.version}
          definition={drawn.definition}
          onClose={() => setRunning(false)}
        />
      )}
    </>
  );
}

function Said({ drawn, newest }: { drawn: Drawn; newest: number }): ReactNode {
  const { description } = drawn.definition as { description?: unknown };
  return (
    <>
      {typeof description === "string" && `${description} `}Version {drawn.version}
      {drawn.version !== newest && ` (latest: ${newest})`}, published <Ago at={drawn.published_at} />.
    </>
  );
}

function Graph({ drawn }: { drawn: Drawn }): ReactNode {
  const [picked, pick] = useParam("node");
  const node = drawn.nodes.find((one) => one.key === picked) ?? drawn.nodes[0];
  return (
    <>
      <FlawList flaws={drawn.warnings} word="warning" tone="wait" show={(key) => pick(key ?? "")} />
      <div className="run-grid">
        <Card>
          <FlowGraph
            nodes={drawn.nodes}
            label={`Graph of ${drawn.name}`}
            doubts={drawn.warnings}
            chosen={node?.key ?? ""}
            choose={pick}
          />
        </Card>
        {node && (
          <Card title={node.key} className="node-panel">
            <div className="stack">
              <p className="faint small">{aboutNode(node)}</p>
              <Json value={nodeAt(drawn.definition, node.key)} label={`definition of ${node.key}`} />
            </div>
          </Card>
        )}
      </div>
    </>
  );
}

function VersionChoice({
  label,
  versions,
  value,
  choose,
}: {
  label: string;
  versions: readonly FlowVersion[];
  value: string;
  choose: (version: string) => void;
}): ReactNode {
  return (
    <label className="row">
      <span className="faint">{label}</span>
      <select className="narrow" value={value} onChange={(event) => choose(event.target.value)}>
        {versions.map(({ version }) => (
          <option key={version}>{version}</option>
        ))}
      </select>
    </label>
  );
}

/** An older definition is published anew: what was between stays in the list. */
function RollBack({ path, version, newest }: { path: string; version: number; newest: number }): ReactNode {
  const older = `${path}/versions/${version}`;
  const back = useAction(
    async () => {
      const { definition } = await get<Drawn>(older);
      return post<Drawn>(`${path}/versions`, { definition });
    },
    { done: (made) => `Published version ${made.version}, as version ${version} was`, quiet: true },
  );
  return (
    <Confirm
      question={`Roll back to version ${version}?`}
      act={`Publish version ${newest + 1}`}
      action={back}
      about={<Changes from={`${path}/versions/${newest}`} to={older} />}
    >
      Roll back<span className="sr"> to version {version}</span>
    </Confirm>
  );
}

/** From one version to another. */
function Changes({ from, to }: { from: string; to: string }): ReactNode {
  const before = useData<Drawn>(from, seldom);
  const after = useData<Drawn>(to, seldom);
  return (
    <Loading from={before}>
      {(old) => <Loading from={after}>{(now) => <Diff before={old.definition} after={now.definition} />}</Loading>}
    </Loading>
  );
}

function Versions({ versions, path }: { versions: readonly FlowVersion[]; path: string }): ReactNode {
  const newest = versions[0]!.version;
  const [from, setFrom] = useParam("from", String(Math.max(newest - 1, 1)));
  const [until, setUntil] = useParam("until", String(newest));
  return (
    <>
      <Card className="flush">
        <Table label="Versions" columns={["Version", "Status", num("Published"), spoken("Action")]}>
          {versions.map((one) => (
            <tr key={one.version}>
              <td>
                <button
                  type="button"
                  className="plain"
                  onClick={() => setParams({ tab: "", version: one.version === newest ? "" : String(one.version) })}
                >
                  {one.version}
                </button>
              </td>
              <td>{one.status}</td>
              <td className="num">
                <Ago at={one.published_at} />
              </td>
              <td className="right">
                {one.version !== newest && <RollBack path={path} version={one.version} newest={newest} />}
              </td>
            </tr>
          ))}
        </Table>
      </Card>
      {newest > 1 && (
        <Card
          title="What changed"
          acts={
            <>
              <VersionChoice label="from" versions={versions} value={from} choose={setFrom} />
              <VersionChoice label="to" versions={versions} value={until} choose={setUntil} />
            </>
          }
        >
          <Changes
            from={`${path}/versions/${encodeURIComponent(from)}`}
            to={`${path}/versions/${encodeURIComponent(until)}`}
          />
        </Card>
      )}
    </>
  );
}
