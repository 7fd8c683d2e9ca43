import type { ReactNode } from "react";
import { useLive } from "../api/live";
import type { Change, State } from "../api/types";
import { Card, Command, Empty, Facts, Head, Mark, num, Skeleton, Table } from "../components/basics";
import { Chart } from "../components/chart";
import type { Line } from "../components/chart";
import { Icon } from "../components/icon";
import { tasksAt } from "../lib/search";
import { ago, number, rate, span, useNow } from "../lib/time";
import { Link } from "../routes";
import { phaseWord, STATES } from "../words";

const THROUGHPUT: readonly Line[] = [
  { key: "created", label: "submitted", colour: 1 },
  { key: "succeeded", label: "succeeded", colour: 2, fill: true },
];
const TROUBLE: readonly Line[] = [
  { key: "failed", label: "failed permanently", colour: 3, fill: true },
  { key: "retried", label: "retried", colour: 4 },
];
const DEPTH: readonly Line[] = [
  { key: "primary", label: "new", colour: 1, fill: true },
  { key: "retry", label: "retries", colour: 4 },
  { key: "running", label: "running", colour: 2 },
];
const DURATIONS: readonly Line[] = [
  { key: "run_p50", label: "median", colour: 2 },
  { key: "run_p95", label: "p95", colour: 1 },
  { key: "wait_p95", label: "queue wait p95", colour: 4 },
];
const BUSY: readonly State[] = ["queued", "running", "scheduled", "dead"];

export default function Overview(): ReactNode {
  const { now, points } = useLive();
  return (
    <>
      <Head title="Overview" />
      {now === null ? (
        <Skeleton rows={8} />
      ) : (
        <div className="stack">
          <Tiles now={now} />
          {!Object.keys(now.states).length && (
            <Card>
              <Empty icon="bolt" title="No tasks yet" command={`onward submit countdown '{"seconds": 3}' --wait`}>
                Submit a first task and watch it, from a shell or in the <Link to="/playground">Playground</Link>:
              </Empty>
            </Card>
          )}
          <div className="grid-2">
            <Card>
              <Chart title="Throughput (per second)" points={points} lines={THROUGHPUT} show={rate} />
            </Card>
            <Card>
              <Chart title="Failures (per second)" points={points} lines={TROUBLE} show={rate} />
            </Card>
            <Card>
              <Chart title="Queue depth" points={points} lines={DEPTH} show={number} />
            </Card>
            <Card>
              <Chart title="Run time" points={points} lines={DURATIONS} show={span} />
            </Card>
          </div>
          <div className="grid-2">
            <Queues now={now} />
            <div className="stack">
              <Workers now={now} />
              <Breakers now={now} />
            </div>
          </div>
        </div>
      )}
    </>
  );
}

function Tiles({ now }: { now: Change }): ReactNode {
  return (
    <ul className="tiles">
      {STATES.map((state) => {
        const { label, tone, icon } = phaseWord(state);
        const count = now.states[state] ?? 0;
        const to = state === "dead" ? "/dead-letters" : tasksAt({ states: [state] });
        return (
          <li key={state}>
            <Link to={to} className={`tile ${count ? "" : "none"}`}>
              <span className="tile-number">{number(count)}</span>
              <span className={`dot-${tone}`}>
                <Icon name={icon} size={13} /> {label}
              </span>
            </Link>
          </li>
        );
      })}
    </ul>
  );
}

function Queues({ now }: { now: Change }): ReactNode {
  const busiest = Object.entries(now.queues).slice(0, 8);
  return (
    <Card title="Busiest queues" acts={<Link to="/queues">All queues</Link>} className="flush">
      {busiest.length ? (
        <Table label="Busiest queues" columns={["Queue", ...BUSY.map((state) => num(state))]}>
          {busiest.map(([queue, counts]) => (
            <tr key={queue}>
              <td>
                <Link to={tasksAt({ queue })}>{queue}</Link>{" "}
                {now.paused.includes(queue) && <Mark tone="wait">paused</Mark>}
              </td>
              {BUSY.map((state) => (
                <td key={state} className="num">
                  {counts[state] ? (
                    <Link to={tasksAt({ states: [state], queue })}>{number(counts[state])}</Link>
                  ) : (
                    <span className="faint">0</span>
                  )}
                </td>
              ))}
            </tr>
          ))}
        </Table>
      ) : (
        <Empty icon="layers" title="No queues yet" />
      )}
    </Card>
  );
}

function Workers({ now }: { now: Change }): ReactNode {
  const transports = Object.entries(now.workers).sort((one, other) => other[1] - one[1]);
  return (
    <Card title="Workers" acts={<Link to="/workers">All workers</Link>}>
      {transports.length ? (
        <div className="big">
          <Facts
            facts={[
              ...transports.map(
                ([transport, count]) =>
                  [
                    transport,
                    <Link to={`/workers?transport=${encodeURIComponent(transport)}`}>{number(count)}</Link>,
                  ] as const,
              ),
              ["draining", now.draining > 0 && number(now.draining)],
              [
                "slots in use",
                <>
                  <Link to={tasksAt({ states: ["running"] })}>{number(now.busy)}</Link>{" "}
                  <span className="faint">/ {number(now.slots)}</span>
                </>,
              ],
              ["retry budget", `${Math.round(now.retry_share * 100)} %`],
            ]}
          />
        </div>
      ) : (
        <>
          <p className="faint">No worker is connected; tasks wait until one connects.</p>
          <Command text="onward worker module:attr" />
        </>
      )}
    </Card>
  );
}

function Breakers({ now }: { now: Change }): ReactNode {
  const time = useNow();
  const told = Object.entries(now.breakers).filter(([, breaker]) => breaker.state !== "closed");
  return (
    <Card title="Circuit breakers">
      {told.length ? (
        <ul className="stack">
          {told.map(([queue, breaker]) => (
            <li key={queue} className="row">
              <Mark tone={breaker.state === "open" ? "bad" : "wait"} icon="bolt">
                {breaker.state === "open" ? "open" : "half-open"}
              </Mark>
              <Link to={tasksAt({ queue })}>{queue}</Link>
              <span className="faint small">
                {breaker.failures} of {breaker.calls} calls failed; next try {ago(breaker.until, time)}
              </span>
            </li>
          ))}
        </ul>
      ) : (
        <p className="row">
          <Mark tone="good" icon="check">
            all closed
          </Mark>
          <span className="faint">No service is cut off.</span>
        </p>
      )}
    </Card>
  );
}
