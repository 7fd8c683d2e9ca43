import type { ReactNode } from "react";
import { useData } from "../api/data";
import type { Page, Queue, State } from "../api/types";
import { Card, Empty, Head, Loading, num, spoken, Table } from "../components/basics";
import { Icon } from "../components/icon";
import { PauseButton, QueueMarks } from "../components/pause";
import { queueAt, tasksAt } from "../lib/search";
import { number, span } from "../lib/time";
import { Link } from "../routes";

const COLUMNS: readonly State[] = ["queued", "running", "scheduled", "waiting", "succeeded", "failed", "dead"];

export default function Queues(): ReactNode {
  const queues = useData<Page<Queue>>("/api/v2/queues");
  return (
    <>
      <Head title="Queues" lead="Paused queues accept work but do not start it; running tasks continue.">
        <Link to="/limits" className="button">
          <Icon name="gauge" /> Limits
        </Link>
      </Head>
      <Loading from={queues}>
        {({ items }) =>
          items.length ? (
            <Card className="flush">
              <Table
                label="Queues"
                className="cards"
                columns={[
                  "Queue",
                  ...[...COLUMNS, "oldest waits", "workers", "slots"].map((name) => num(name)),
                  spoken("Action"),
                ]}
              >
                {items.map((queue) => (
                  <Row key={queue.name} queue={queue} />
                ))}
              </Table>
            </Card>
          ) : (
            <Empty icon="layers" title="No queues yet" command={`onward submit echo '{"hello": "world"}'`}>
              A queue appears with its first task or its first worker.
            </Empty>
          )
        }
      </Loading>
    </>
  );
}

function Row({ queue }: { queue: Queue }): ReactNode {
  return (
    <tr>
      <td>
        <Link to={queueAt(queue.name)}>{queue.name}</Link>
        <QueueMarks queue={queue} />
      </td>
      {COLUMNS.map((state) => {
        const count = queue.states[state];
        return (
          <td key={state} className={count ? "num" : "num zero"} data-label={state}>
            {count ? (
              <Link to={tasksAt({ queue: queue.name, states: [state] })}>{number(count)}</Link>
            ) : (
              <span className="faint">0</span>
            )}
            {state === "queued" && queue.retrying > 0 && (
              <div className="faint small">{number(queue.retrying)} retrying</div>
            )}
          </td>
        );
      })}
      <td className={queue.queued ? "num" : "num zero"} data-label="oldest waits">
        {queue.queued > 0 && queue.oldest_ms !== null ? span(queue.oldest_ms) : <span className="faint">–</span>}
      </td>
      <td className="num" data-label="workers">
        {number(queue.workers)}
      </td>
      <td className="num" data-label="slots">
        {number(queue.slots)}
      </td>
      <td className="right act-cell">
        <PauseButton queue={queue} />
      </td>
    </tr>
  );
}
