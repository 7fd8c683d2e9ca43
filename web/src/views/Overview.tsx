import type { ReactNode } from "react";
import { useLive } from "../api/live";
import type { Change, SeriesView, State } from "../api/types";
import { Attention } from "../components/attention";
import { Card, Command, Empty, Facts, Head, Mark, num, ProblemBox, Skeleton, Table, Tabs } from "../components/basics";
import { Figures } from "../components/figures";
import { FirstSteps } from "../components/firststeps";
import { ServiceTable, Work } from "../components/work";
import { queueAt, tasksAt } from "../lib/search";
import { RANGES, useSeries } from "../lib/series";
import type { RangeName } from "../lib/series";
import { number } from "../lib/time";
import { Link, useParam } from "../routes";

const BUSY: readonly State[] = ["queued", "running", "scheduled", "dead"];
const LIVE = "15m"; // as it comes, in steps of five seconds

export default function Overview(): ReactNode {
  const { now } = useLive();
  const [range, setRange] = useParam("range", "1h");
  const [service, setService] = useParam("service");
  const every = useSeries(range);
  return (
    <>
      <Head title="Overview">
        <ServiceChoice every={every.data} service={service} choose={setService} />
        <Tabs
          label="Range"
          value={range as RangeName}
          options={RANGES.map(([name, label]) => [name, label] as const)}
          onChange={setRange}
        />
      </Head>
      {now === null ? (
        <Skeleton rows={8} />
      ) : (
        <div className="stack">
          <Attention now={now} />
          <Figures now={now} series={every.data} range={range} />
          <FirstSteps now={now} />
          <Work range={range} service={service} live={range === LIVE && !service} />
          {every.error && !every.data && <ProblemBox error={every.error} again={() => void every.refetch()} />}
          {every.data && every.data.services.length > 0 && (
            <ServiceTable services={every.data.services} range={range} />
          )}
          <div className="grid-2">
            <Queues now={now} />
            <Workers now={now} />
          </div>
        </div>
      )}
    </>
  );
}

function ServiceChoice({
  every,
  service,
  choose,
}: {
  every: SeriesView | undefined;
  service: string;
  choose: (service: string) => void;
}): ReactNode {
  const names = new Set([...(every?.services ?? []).map((one) => one.name), ...(service ? [service] : [])]);
  if (!names.size) return null;
  return (
    <label className="row">
      <span className="faint">service</span>
      <select className="narrow" value={service} onChange={(event) => choose(event.target.value)}>
        <option value="">all</option>
        {[...names].sort().map((name) => (
          <option key={name}>{name}</option>
        ))}
      </select>
    </label>
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
                <Link to={queueAt(queue)}>{queue}</Link> {now.paused.includes(queue) && <Mark tone="wait">paused</Mark>}
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
