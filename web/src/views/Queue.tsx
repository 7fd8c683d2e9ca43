import type { ReactNode } from "react";
import { useData } from "../api/data";
import type { Page, Queue as QueueShape, State, Worker } from "../api/types";
import { Card, Detail, Empty, Facts, Head, Loading, Tabs } from "../components/basics";
import { LimitUses } from "../components/limits";
import { PauseButton, QueueMarks } from "../components/pause";
import { TaskList } from "../components/tasklist";
import { Work } from "../components/work";
import { parseSearch, serviceAt, tasksAt } from "../lib/search";
import { RANGES } from "../lib/series";
import type { RangeName } from "../lib/series";
import { number, span } from "../lib/time";
import { useTitle } from "../lib/title";
import type { ViewProps } from "../pages";
import { Link, useParam } from "../routes";
import { phaseWord } from "../words";

const SHOWN: readonly State[] = ["queued", "running", "scheduled", "waiting", "succeeded", "failed", "dead"];

export default function Queue({ params }: ViewProps): ReactNode {
  const name = params.name!;
  const queue = useData<QueueShape>(`/api/v2/queues/${encodeURIComponent(name)}`);
  return (
    <Detail from={queue} same={(one) => one.name === name} title="Queue" back={["/queues", "All queues"]}>
      {(found) => <Shown queue={found} />}
    </Detail>
  );
}

function Shown({ queue }: { queue: QueueShape }): ReactNode {
  useTitle(queue.name);
  const [range, setRange] = useParam("range", "1h");
  const { name } = queue;
  return (
    <>
      <Head title={name} lead={<QueueMarks queue={queue} />}>
        <Tabs
          label="Range"
          value={range as RangeName}
          options={RANGES.map(([one, label]) => [one, label] as const)}
          onChange={setRange}
        />
        <PauseButton queue={queue} />
      </Head>
      <div className="stack">
        <Card>
          <div className="big">
            <Facts
              facts={[
                ...SHOWN.map(
                  (state) =>
                    [
                      phaseWord(state).label,
                      <Link to={tasksAt({ queue: name, states: [state] })}>{number(queue.states[state] ?? 0)}</Link>,
                    ] as const,
                ),
                ["retrying", queue.retrying > 0 && number(queue.retrying)],
                ["oldest has waited", !!queue.oldest_ms && queue.queued > 0 && span(queue.oldest_ms)],
                ["slots", number(queue.slots)],
              ]}
            />
          </div>
        </Card>
        <Work range={range} queue={name} service={name} />
        <p className="faint small">
          Rates and times are those of the service <Link to={serviceAt(name)}>{name}</Link>; the depth is this
          queue&apos;s.
        </p>
        <LimitUses uses={queue.limits} />
        <ServedBy queue={name} />
        <h2>Tasks</h2>
        <TaskList search={{ ...parseSearch(""), queue: name }} empty={<Empty icon="list" title="No tasks yet" />} />
      </div>
    </>
  );
}

/** The workers that are handed its tasks. */
export function ServedBy({ queue }: { queue: string }): ReactNode {
  const workers = useData<Page<Worker>>("/api/v2/workers");
  return (
    <Card title="Workers">
      <Loading from={workers}>
        {({ items }) => {
          const mine = items.filter((worker) => worker.queues.includes(queue));
          return mine.length ? (
            <ul className="stack-tight">
              {mine.map((worker) => (
                <li key={worker.id} className="row">
                  <Link to={`/workers/${encodeURIComponent(worker.id)}`} className="mono">
                    {worker.id}
                  </Link>
                  <span className="faint">
                    {worker.transport}, {worker.busy === null ? "" : `${number(worker.busy)} of `}
                    {number(worker.slots)} slots{worker.draining && ", draining"}
                  </span>
                </li>
              ))}
            </ul>
          ) : (
            <p className="faint">No worker serves it now.</p>
          );
        }}
      </Loading>
    </Card>
  );
}
