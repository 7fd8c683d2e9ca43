// What was done, drawn: rates, failures, depth and times over a range, of all services or of one.
import type { ReactNode } from "react";
import { useLive } from "../api/live";
import type { SeriesView, ServiceSeries, State } from "../api/types";
import type { Values } from "../lib/chart";
import { serviceAt, tasksAt } from "../lib/search";
import type { Search } from "../lib/search";
import { bucketsOf, inWords, perMinute, useSeries, withinRange } from "../lib/series";
import { number, percent, rate, span } from "../lib/time";
import { between } from "../lib/within";
import { go, Link } from "../routes";
import { Card, num, ProblemBox, Skeleton, Table } from "./basics";
import { Chart, Sparkline } from "./chart";
import type { Line, Range } from "./chart";

const THROUGHPUT: readonly Line[] = [
  { key: "submitted", label: "submitted", colour: 1 },
  { key: "succeeded", label: "succeeded", colour: 2, fill: true },
];
const LIVE_THROUGHPUT = THROUGHPUT.map((line) => (line.key === "submitted" ? { ...line, key: "created" } : line));
const TROUBLE: readonly Line[] = [
  { key: "failed", label: "failed permanently", colour: 3, fill: true },
  { key: "retried", label: "retried", colour: 4 },
];
const DEPTH: readonly Line[] = [
  { key: "queued", label: "queued", colour: 1, fill: true },
  { key: "running", label: "running", colour: 2 },
];
const LIVE_DEPTH: readonly Line[] = [
  { key: "primary", label: "new", colour: 1, fill: true },
  { key: "retry", label: "retries", colour: 4 },
  { key: "running", label: "running", colour: 2 },
];
const DURATIONS: readonly Line[] = [
  { key: "run_p50", label: "median", colour: 2 },
  { key: "run_p95", label: "p95", colour: 1 },
  { key: "wait_p95", label: "queue wait p95", colour: 4 },
];
const FAILED: readonly State[] = ["failed", "dead"];

/** Live: as it comes, each step. Otherwise from the ledger; a click on a step leads to its tasks. */
export function Work({
  range,
  service = "",
  queue = "",
  live = false,
}: {
  range: string;
  service?: string;
  queue?: string;
  live?: boolean;
}): ReactNode {
  const series = useSeries(range, { ...(service && { service }), ...(queue && { queue }) });
  const { points } = useLive();
  if (!series.data)
    return series.error ? (
      <ProblemBox error={series.error} again={() => void series.refetch()} />
    ) : (
      <Skeleton rows={6} />
    );
  if (live) return <Charts points={points} unit="second" live series={series.data} />;
  const { points: steps, until, step_ms } = series.data;
  return (
    <Charts
      points={perMinute(series.data)}
      range={{ from: steps[0]?.at ?? until - step_ms, until, step: step_ms }}
      unit="minute"
      series={series.data}
      pick={(search) => go(tasksAt({ type: service, queue, ...search }))}
    />
  );
}

function Charts({
  points,
  range,
  unit,
  live = false,
  series,
  pick,
}: {
  points: readonly Values[];
  range?: Range;
  unit: string;
  live?: boolean;
  series: SeriesView;
  pick?: (search: Partial<Search>) => void;
}): ReactNode {
  const common = { points, ...(range && { range }) };
  /** To the tasks of the step that was clicked. */
  const to = (at: "created" | "finished", states: readonly State[] = []) =>
    pick ? { pick: (from: number, until: number) => pick({ states, [at]: between(from, until) }) } : {};
  return (
    <div className="grid-2 charts">
      <Card>
        <Chart
          {...common}
          {...to("finished", ["succeeded"])}
          title={`Throughput (per ${unit})`}
          lines={live ? LIVE_THROUGHPUT : THROUGHPUT.filter((line) => points.some((one) => one[line.key] != null))}
          show={rate}
        />
      </Card>
      <Card>
        <Chart {...common} {...to("finished", FAILED)} title={`Failures (per ${unit})`} lines={TROUBLE} show={rate} />
      </Card>
      <Card>
        <Chart
          {...common}
          {...to("created")}
          title="Queue depth"
          lines={live ? LIVE_DEPTH : DEPTH}
          show={(value) => number(Math.round(value))}
        />
      </Card>
      <Card>
        <Chart
          {...common}
          {...to("finished")}
          title="Run time and wait (log scale)"
          lines={DURATIONS}
          show={span}
          log
        />
      </Card>
      <Card>
        <Histogram title="Run time" of={series.run} />
      </Card>
      <Card>
        <Histogram title="Queue wait" of={series.wait} />
      </Card>
    </div>
  );
}

/** How many ran, or waited, how long. */
function Histogram({ title, of }: { title: string; of: SeriesView["run"] }): ReactNode {
  const buckets = bucketsOf(of);
  const most = Math.max(...buckets.map(({ count }) => count), 1);
  const total = buckets.reduce((sum, { count }) => sum + count, 0);
  return (
    <figure className="chart">
      <figcaption>
        <span className="chart-title">{title}, by duration</span>
        <span className="legend">
          {number(total)} {total === 1 ? "attempt" : "attempts"}
        </span>
      </figcaption>
      {buckets.length ? (
        <ol className="histogram">
          {buckets.map(({ from, to, count }) => (
            <li key={from}>
              <span className="sr">
                {to === null ? `more than ${span(from)}` : `${span(from)} to ${span(to)}`}: {number(count)}
              </span>
              <span className="histogram-bar" aria-hidden="true">
                <span style={{ height: `${(count / most) * 100}%` }} title={number(count)} />
              </span>
              <span className="histogram-bound" aria-hidden="true">
                {to === null ? `> ${span(from)}` : `≤ ${span(to)}`}
              </span>
            </li>
          ))}
        </ol>
      ) : (
        <p className="faint histogram">None in this range</p>
      )}
    </figure>
  );
}

export function ServiceTable({ services, range }: { services: readonly ServiceSeries[]; range: string }): ReactNode {
  return (
    <Card title={`Services, ${inWords(range)}`} className="flush">
      <Table
        label="Services"
        columns={[
          "Service",
          "Ended",
          num("Succeeded"),
          num("Failed"),
          num("Failure share"),
          num("Retries", true),
          num("Run p50", true),
          num("Run p95"),
          num("Wait p95", true),
        ]}
      >
        {services.map((one) => (
          <tr key={one.name}>
            <td>
              <Link to={serviceAt(one.name)}>{one.name}</Link>
            </td>
            <td>
              <Sparkline values={one.ended} label={`Ended by step: ${one.ended.join(", ")}`} />
            </td>
            <td className="num">{number(one.succeeded)}</td>
            <td className="num">
              {one.failed ? (
                <Link to={tasksAt({ states: FAILED, type: one.name, finished: withinRange(range) })}>
                  {number(one.failed)}
                </Link>
              ) : (
                <span className="faint">0</span>
              )}
            </td>
            <td className={`num ${one.failure_share ? "tone-bad-text" : "faint"}`}>
              {one.failure_share === null ? "–" : percent(one.failure_share)}
            </td>
            <td className="num wide-only">{number(one.retried)}</td>
            <td className="num wide-only">{one.run_p50 === null ? "–" : span(one.run_p50)}</td>
            <td className="num">{one.run_p95 === null ? "–" : span(one.run_p95)}</td>
            <td className="num wide-only">{one.wait_p95 === null ? "–" : span(one.wait_p95)}</td>
          </tr>
        ))}
      </Table>
    </Card>
  );
}
