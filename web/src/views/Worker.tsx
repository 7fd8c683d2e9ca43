import type { ReactNode } from "react";
import { url } from "../api/client";
import { useData } from "../api/data";
import type { Page, Task, Worker as WorkerShape } from "../api/types";
import { Ago, Badge, Card, Copy, Empty, Facts, Head, Id, Loading, Mark, num, Table, Took } from "../components/basics";
import { DrainButton } from "../components/drain";
import { queueAt } from "../lib/search";
import { number } from "../lib/time";
import { useTitle } from "../lib/title";
import type { ViewProps } from "../pages";
import { Link } from "../routes";

export default function Worker({ params }: ViewProps): ReactNode {
  const id = params.id!;
  useTitle(id);
  const workers = useData<Page<WorkerShape>>("/api/v2/workers");
  return (
    <Loading from={workers}>
      {({ items }) => {
        const worker = items.find((one) => one.id === id);
        return worker ? (
          <Shown worker={worker} />
        ) : (
          <>
            <Head title="Worker" />
            <Empty icon="cpu" title={`${id} is not connected`}>
              <Link to="/workers">All workers</Link>
            </Empty>
          </>
        );
      }}
    </Loading>
  );
}

function Shown({ worker }: { worker: WorkerShape }): ReactNode {
  return (
    <>
      <Head
        title={
          <>
            <span className="mono">{worker.id}</span> <Copy text={worker.id} label="Copy id" />{" "}
            {worker.draining && <Mark tone="wait">draining</Mark>}
          </>
        }
      >
        <DrainButton worker={worker} />
      </Head>
      <div className="stack">
        <Card>
          <Facts
            facts={[
              ["transport", worker.transport],
              ["busy / slots", `${worker.busy === null ? "–" : number(worker.busy)} / ${number(worker.slots)}`],
              ["connected", <Ago at={worker.connected_at} />],
              [
                "queues",
                <span className="row">
                  {worker.queues.map((queue) => (
                    <Link key={queue} to={queueAt(queue)}>
                      {queue}
                    </Link>
                  ))}
                </span>,
              ],
            ]}
          />
        </Card>
        <Running worker={worker.id} />
      </div>
    </>
  );
}

const LOOKED_AT = 1000;

/** What it runs now, among the tasks that run. */
function Running({ worker }: { worker: string }): ReactNode {
  const tasks = useData<Page<Task>>(url("/api/v2/tasks", { state: "running", brief: true, limit: LOOKED_AT }));
  return (
    <Card title="Running now" className="flush">
      <Loading from={tasks}>
        {({ items, next }) => {
          const mine = items.filter((task) => task.worker === worker);
          return (
            <>
              {mine.length ? (
                <Table label="Running tasks" columns={["State", "Task", "Type", num("Duration")]}>
                  {mine.map((task) => (
                    <tr key={task.id}>
                      <td>
                        <Badge phase={task.phase} progress={task.progress} />
                      </td>
                      <td>
                        <Id id={task.id} to={`/tasks/${encodeURIComponent(task.id)}`} />
                      </td>
                      <td>{task.type}</td>
                      <td className="num">
                        <Took task={task} />
                      </td>
                    </tr>
                  ))}
                </Table>
              ) : (
                <p className="faint padded">Nothing</p>
              )}
              {next && <p className="faint small padded">Among the {number(LOOKED_AT)} newest running tasks.</p>}
            </>
          );
        }}
      </Loading>
    </Card>
  );
}
