import { useState } from "react";
import type { ReactNode } from "react";
import { remove } from "../api/client";
import { queries, useAction, useData } from "../api/data";
import type { ScheduleShown } from "../api/types";
import { Ago, Card, Head, Id, ProblemBox, Skeleton, Sure } from "../components/basics";
import { Icon } from "../components/icon";
import { Json } from "../components/json";
import { ScheduleForm } from "../components/scheduleform";
import { inZone, scheduleApi } from "../lib/schedule";
import type { ViewProps } from "../pages";
import { go, Link } from "../routes";
import { Paused, RunsWhat, ScheduleActs, workAt } from "./Schedules";

export default function Schedule({ params }: ViewProps): ReactNode {
  const schedule = useData<ScheduleShown>(scheduleApi(params.name!));
  if (schedule.error && schedule.data?.name !== params.name)
    return (
      <>
        <Head title="Schedule" />
        <ProblemBox error={schedule.error} again={() => void schedule.refetch()} />
        <p>
          <Link to="/schedules">All schedules</Link>
        </p>
      </>
    );
  if (schedule.data?.name !== params.name) return <Skeleton rows={6} />;
  return <Shown schedule={schedule.data!} />;
}

function Shown({ schedule }: { schedule: ScheduleShown }): ReactNode {
  const [editing, setEditing] = useState(false);
  const drop = useAction(
    async () => {
      await remove(scheduleApi(schedule.name));
      queries.removeQueries({ queryKey: [scheduleApi(schedule.name)] }); // nobody reads again what is gone
      go("/schedules");
    },
    { done: `${schedule.name} is no more` },
  );
  return (
    <>
      <Head
        title={
          <>
            {schedule.name} {schedule.paused && <Paused />}
          </>
        }
        lead={`${schedule.description}${schedule.cron ? ` (${schedule.timezone})` : ""}`}
      >
        <ScheduleActs schedule={schedule} />
        <button type="button" onClick={() => setEditing(true)}>
          Edit
        </button>
        <Sure sure="Remove it, really?" onSure={() => drop.run()} disabled={drop.busy}>
          Remove
        </Sure>
      </Head>
      <div className="stack">
        <Card>
          <Facts schedule={schedule} />
        </Card>
        <div className="grid-2">
          <Card title={`Next times, in ${schedule.timezone}`}>
            {schedule.upcoming.length && !schedule.paused ? (
              <ol className="times">
                {schedule.upcoming.map((at) => (
                  <li key={at}>
                    {inZone(at, schedule.timezone)}{" "}
                    <span className="faint">
                      <Ago at={at} />
                    </span>
                  </li>
                ))}
              </ol>
            ) : (
              <p className="faint">{schedule.paused ? "It rests until somebody resumes it." : "None: it is over."}</p>
            )}
          </Card>
          <Card title={schedule.flow === null ? "Payload" : "Parameters"}>
            <Json value={schedule.flow === null ? schedule.payload : (schedule.params ?? {})} label="what it runs with" />
          </Card>
        </div>
        <Card title="What became of the last ones" className="flush">
          <History schedule={schedule} />
        </Card>
      </div>
      {editing && <ScheduleForm schedule={schedule} onClose={() => setEditing(false)} />}
    </>
  );
}

function Facts({ schedule }: { schedule: ScheduleShown }): ReactNode {
  const facts: readonly (readonly [string, ReactNode])[] = [
    ["runs", <RunsWhat schedule={schedule} />],
    ["cron", schedule.cron && <code>{schedule.cron}</code>],
    ["missed", schedule.missed],
    ["overlap", schedule.overlap],
    ["queue", schedule.queue],
    ["priority", schedule.priority],
    ["retries", schedule.max_retries?.toString()],
    ["timeout", schedule.timeout_ms && `${schedule.timeout_ms} ms`],
    ["session", schedule.session_id],
    ["approval", schedule.requires_approval && "asks for it"],
    ["made", <Ago at={schedule.created_at} />],
  ];
  return (
    <dl className="facts">
      {facts.map(([name, value]) =>
        value ? (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ) : null,
      )}
    </dl>
  );
}

function History({ schedule }: { schedule: ScheduleShown }): ReactNode {
  if (!schedule.history.length) return <p className="faint pad">It has not run yet.</p>;
  return (
    <div className="scroll" tabIndex={0} role="region" aria-label="History">
      <table>
        <thead>
          <tr>
            <th>At</th>
            <th>Outcome</th>
            <th>Work</th>
          </tr>
        </thead>
        <tbody>
          {schedule.history.map((entry, index) => (
            <tr key={`${entry.at} ${index}`}>
              <td>
                <Ago at={entry.at} />
              </td>
              <td>
                <Icon name={entry.task_id ? "check" : "dots"} size={12} /> {entry.outcome}
                {entry.reason && <div className="small">{entry.reason}</div>}
              </td>
              <td>{entry.task_id && <Id id={entry.task_id} to={workAt(schedule, entry.task_id)} />}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
