import type { ReactNode } from "react";
import { useData } from "../api/data";
import type { Flow, Page } from "../api/types";
import { Act } from "../components/act";
import { Ago, Card, Empty, Head, Loading, num, spoken, Table } from "../components/basics";
import { FlowEditor } from "../components/floweditor";
import { Icon } from "../components/icon";
import { useRowKeys } from "../lib/keys";
import { flowAt } from "../lib/run";
import { go, Link, setParams, to, useParam } from "../routes";

export default function Flows(): ReactNode {
  const [writing, setWriting] = useParam("new");
  const flows = useData<Page<Flow>>("/api/v2/flows");
  const items = flows.data?.items ?? [];
  const [at] = useRowKeys(writing ? [] : items.map((one) => one.id), (index) =>
    go(flowAt(items[index]!.name, items[index]!.id)),
  );
  if (writing)
    return (
      <>
        <Head title="New flow" lead="Errors are shown as you type. Publishing creates version 1.">
          <button type="button" onClick={() => setWriting("")}>
            All flows
          </button>
        </Head>
        <FlowEditor flow={null} definition={null} newest={null} after={(made) => go(flowAt(made.name, made.flow_id))} />
      </>
    );
  return (
    <>
      <Head
        title="Flows"
        lead="Multi-step work: services called in sequence or in parallel, with approvals in between."
      >
        <Link to="/runs" className="button">
          <Icon name="play" /> Runs
        </Link>
        <Act needs="operate" className="primary" onClick={() => setParams({ new: "1" })}>
          <Icon name="graph" /> New flow
        </Act>
      </Head>
      <Loading from={flows}>
        {(page) =>
          page.items.length ? (
            <Card className="flush">
              <Table label="Flows" columns={["Flow", num("Version"), num("Created"), spoken("Actions")]}>
                {page.items.map((flow, index) => (
                  <tr key={flow.id} className={index === at ? "at" : ""}>
                    <td>
                      <Link to={flowAt(flow.name, flow.id)}>{flow.name}</Link>
                    </td>
                    <td className="num">{flow.version || <span className="faint">none</span>}</td>
                    <td className="num">
                      <Ago at={flow.created_at} />
                    </td>
                    <td className="right">
                      <Link to={to("/runs", { flow: flow.name })} className="spaced">
                        Runs<span className="sr"> of {flow.name}</span>
                      </Link>
                      <Link to={to(flowAt(flow.name, flow.id), { tab: "edit" })}>
                        Edit<span className="sr"> {flow.name}</span>
                      </Link>
                    </td>
                  </tr>
                ))}
              </Table>
            </Card>
          ) : (
            <Empty icon="graph" title="No flows yet" command="onward demo flow">
              Write one here, publish one with <code>onward flow apply</code>, or run the demo:
            </Empty>
          )
        }
      </Loading>
    </>
  );
}
