import { useState } from "react";
import type { ReactNode } from "react";
import { post } from "../api/client";
import { useAction, useData } from "../api/data";
import { useName } from "../api/me";
import type { Page, Queue, State } from "../api/types";
import { Act } from "../components/act";
import { Card, Empty, Form, Head, Loading, Mark, num, Refusal, spoken, Table } from "../components/basics";
import { Dialog } from "../components/dialog";
import { Icon } from "../components/icon";
import { tasksAt } from "../lib/search";
import { ago, number, useNow } from "../lib/time";
import { Link } from "../routes";

const COLUMNS: readonly State[] = ["queued", "running", "scheduled", "waiting", "succeeded", "failed", "dead"];

export default function Queues(): ReactNode {
  const queues = useData<Page<Queue>>("/api/v2/queues");
  const [pausing, setPausing] = useState<Queue | null>(null);
  return (
    <>
      <Head title="Queues" lead="Paused queues accept work but do not start it; running tasks continue." />
      <Loading from={queues}>
        {({ items }) =>
          items.length ? (
            <Card className="flush">
              <Table
                label="Queues"
                className="cards"
                columns={["Queue", spoken("Action"), ...[...COLUMNS, "workers", "slots"].map((name) => num(name))]}
              >
                {items.map((queue) => (
                  <Row key={queue.name} queue={queue} pause={() => setPausing(queue)} />
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
      {pausing && <Pause queue={pausing} onClose={() => setPausing(null)} />}
    </>
  );
}

function Row({ queue, pause }: { queue: Queue; pause: () => void }): ReactNode {
  const now = useNow();
  const resume = useAction(() => post(`/api/v2/queues/${encodeURIComponent(queue.name)}/resume`), {
    done: `${queue.name} resumed`,
  });
  const { paused, breaker } = queue;
  const waits = queue.queued > 0 && queue.workers === 0;
  return (
    <tr>
      <td>
        <Link to={tasksAt({ queue: queue.name })}>{queue.name}</Link>
        <div className="row small">
          {paused && (
            <Mark tone="wait" icon="pause">
              paused{paused.by && ` by ${paused.by}`}
            </Mark>
          )}
          {paused?.reason && <span className="faint">{paused.reason}</span>}
          {breaker && breaker.state !== "closed" && (
            <Mark tone="bad" icon="bolt">
              breaker {breaker.state === "open" ? "open" : "half-open"}, next try {ago(breaker.until, now)}
            </Mark>
          )}
          {waits && (
            <Mark tone="bad" icon="warn">
              no worker
            </Mark>
          )}
        </div>
      </td>
      <td className="act-cell">
        {paused ? (
          <Act needs="operate" onClick={() => resume.run()} disabled={resume.busy}>
            <Icon name="play" size={14} /> Resume<span className="sr"> {queue.name}</span>
          </Act>
        ) : (
          <Act needs="operate" onClick={pause}>
            <Icon name="pause" size={14} /> Pause<span className="sr"> {queue.name}</span>
          </Act>
        )}
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
      <td className="num" data-label="workers">
        {number(queue.workers)}
      </td>
      <td className="num" data-label="slots">
        {number(queue.slots)}
      </td>
    </tr>
  );
}

function Pause({ queue, onClose }: { queue: Queue; onClose: () => void }): ReactNode {
  const { name: by, setName } = useName();
  const [reason, setReason] = useState("");
  const pause = useAction(
    () =>
      post(`/api/v2/queues/${encodeURIComponent(queue.name)}/pause`, { ...(by && { by }), ...(reason && { reason }) }),
    { done: `${queue.name} paused`, after: onClose, quiet: true },
  );
  return (
    <Dialog title={`Pause ${queue.name}`} onClose={onClose}>
      <Form onSubmit={() => pause.run()}>
        <p className="faint">The queue keeps accepting tasks but starts none until it is resumed.</p>
        <label className="field">
          <span>Reason (recorded)</span>
          <input value={reason} maxLength={1000} onChange={(event) => setReason(event.target.value)} />
        </label>
        {setName && (
          <label className="field">
            <span>Your name</span>
            <input value={by} maxLength={200} onChange={(event) => setName(event.target.value)} />
          </label>
        )}
        <Refusal of={pause} />
        <div className="dialog-acts">
          <button className="primary" disabled={pause.busy}>
            Pause
          </button>
        </div>
      </Form>
    </Dialog>
  );
}
