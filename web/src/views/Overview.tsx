import type { ReactNode } from "react";
import { seldom, useData } from "../api/data";
import { useLive } from "../api/live";
import type { AttentionItem, Change, Page, State } from "../api/types";
import { Card, Command, Empty, Facts, Head, Mark, Notice, num, Skeleton, Table } from "../components/basics";
import { Chart } from "../components/chart";
import type { Line } from "../components/chart";
import { Icon } from "../components/icon";
import type { IconName } from "../components/icon";
import { tasksAt } from "../lib/search";
import { ago, number, rate, span, useNow } from "../lib/time";
import { Link } from "../routes";
import { phaseWord, STATES } from "../words";
import type { Tone } from "../words";

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
          <Attention now={now} />
          <Tiles now={now} />
          <FirstSteps now={now} />
          <div className="grid-2 charts">
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
            <Workers now={now} />
          </div>
        </div>
      )}
    </>
  );
}

/** Until a task has succeeded: what is done, and the command for what is next. */
function FirstSteps({ now }: { now: Change }): ReactNode {
  if (now.states.succeeded) return null;
  const connected = Object.values(now.workers).some((count) => count > 0);
  const submitted = Object.keys(now.states).length > 0;
  const steps: readonly (readonly [boolean, ReactNode, string])[] = [
    [true, "The server is running", ""],
    [connected, "A worker is connected", "onward worker module:attr"],
    [
      submitted,
      <>
        A first task is submitted, from a shell or in the <Link to="/playground?door=native">Playground</Link>
      </>,
      `onward submit countdown '{"seconds": 3}' --wait`,
    ],
    [false, "A first task has succeeded", ""],
  ];
  const next = steps.findIndex(([done]) => !done);
  return (
    <Card title="First steps">
      <ol className="first-steps">
        {steps.map(([done, what, command], index) => (
          <li key={index} className={done ? "faint" : ""}>
            <Mark tone={done ? "good" : "idle"} icon={done ? "check" : "dots"}>
              {done ? "done" : index === next ? "next" : "later"}
            </Mark>
            <div className="grow stack-tight">
              <p>{what}</p>
              {!done && index === next && command && <Command text={command} />}
            </div>
          </li>
        ))}
      </ol>
    </Card>
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

const RULES: Record<AttentionItem["rule"], readonly [tone: Tone, icon: IconName, label: string]> = {
  breaker_open: ["bad", "bolt", "circuit breaker open"],
  no_worker: ["bad", "warn", "no worker"],
  dead: ["bad", "skull", "dead letters"],
  oldest_waiting: ["wait", "clock", "waits too long"],
  approval_open: ["wait", "hand", "approval open"],
  schedule_refused: ["bad", "stop", "schedule refused"],
  queue_paused: ["wait", "pause", "paused"],
};
const EVERY_MS = 15_000;

/** What needs a person, worst first, each with the way there. Which it is, the server decides. */
function Attention({ now }: { now: Change }): ReactNode {
  const time = useNow();
  // Read again when another queue is concerned and, because some rules go by the clock, now and then; not at every task.
  const shut = Object.entries(now.breakers).map(([queue, { state }]) => [queue, state]);
  const held = Object.entries(now.queues).map(([queue, { queued, dead }]) => [queue, !!queued, dead]);
  const edition = JSON.stringify([shut, now.paused, held, now.workers, Math.floor(time / EVERY_MS)]);
  const found = useData<Page<AttentionItem>>("/api/v2/attention", seldom, edition);
  if (!found.data) return <Skeleton rows={1} />;
  if (!found.data.items.length)
    return (
      <Notice tone="good" icon="check">
        Nothing needs attention: every queue with work has a worker, no circuit breaker is open, nothing waits too long.
      </Notice>
    );
  return (
    <Card title="Needs attention">
      <ul className="stack-tight attention">
        {found.data.items.map(({ rule, target, since, message, link }) => {
          const [tone, icon, label] = RULES[rule];
          return (
            <li key={`${rule} ${target}`} className="row">
              <Mark tone={tone} icon={icon}>
                {label}
              </Mark>
              <span className="grow">{message}</span>
              {since !== null && <span className="faint">{ago(since, time)}</span>}
              <Link to={link.replace(/^\/ui/, "")}>Open</Link>
            </li>
          );
        })}
      </ul>
    </Card>
  );
}
