import { useState } from "react";
import type { ReactNode } from "react";
import { remove } from "../api/client";
import { queries, useAction, useData } from "../api/data";
import type { ScheduleShown } from "../api/types";
import { Act } from "../components/act";
import { Ago, Card, Detail, Facts, Head, Id, Table } from "../components/basics";
import { Confirm } from "../components/confirm";
import { Icon } from "../components/icon";
import { Json } from "../components/json";
import { ScheduleForm } from "../components/scheduleform";
import { useWhole } from "../lib/masked";
import { inZone, scheduleApi } from "../lib/schedule";
import { sessionAt } from "../lib/search";
import { useTitle } from "../lib/title";
import type { ViewProps } from "../pages";
import { go, Link } from "../routes";
import { Paused, RunsWhat, ScheduleActs, workAt } from "./Schedules";

export default function Schedule({ params }: ViewProps): ReactNode {
  const schedule = useData<ScheduleShown>(scheduleApi(params.name!));
  return (
    <Detail
      from={schedule}
      same={(one) => one.name === params.name}
      title="Schedule"
      back={["/schedules", "All schedules"]}
    >
      {(found) => <Shown schedule={found} />}
    </Detail>
  );
}

function Shown({ schedule: seen }: { schedule: ScheduleShown }): ReactNode {
  const { shown: schedule, reveal } = useWhole(scheduleApi(seen.name), seen, ["payload"]);
  useTitle(seen.name);
  const [editing, setEditing] = useState(false);
  const drop = useAction(
    async () => {
      await remove(scheduleApi(schedule.name));
      queries.removeQueries({ queryKey: [scheduleApi(schedule.name)] }); // it would be read again, and is gone
      go("/schedules");
    },
    { done: `${schedule.name} was deleted`, quiet: true },
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
        <Act needs="operate" onClick={() => reveal(() => setEditing(true))}>
          Edit
        </Act>
        <Confirm
          question="Delete this schedule?"
          act="Delete schedule"
          action={drop}
          about={
            <p>
              {schedule.name}: {schedule.description}. Tasks that it has submitted are kept.
            </p>
          }
        >
          Delete
        </Confirm>
      </Head>
      <div className="stack">
        <Card>
          <Facts facts={factsOf(schedule)} />
        </Card>
        <div className="grid-2">
          <Card title={`Next runs (${schedule.timezone})`}>
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
              <p className="faint">{schedule.paused ? "Paused" : "None: the schedule is finished."}</p>
            )}
          </Card>
          <Card title={schedule.flow === null ? "Payload" : "Parameters"}>
            <Json
              value={schedule.flow === null ? schedule.payload : (schedule.params ?? {})}
              label={schedule.flow === null ? "payload" : "parameters"}
            />
          </Card>
        </div>
        <Card title="Recent runs" className="flush">
          <History schedule={schedule} />
        </Card>
      </div>
      {editing && <ScheduleForm schedule={schedule} onClose={() => setEditing(false)} />}
    </>
  );
}

function factsOf(schedule: ScheduleShown): readonly (readonly [string, ReactNode])[] {
  return [
    ["runs", <RunsWhat schedule={schedule} />],
    ["cron", schedule.cron && <code>{schedule.cron}</code>],
    ["missed", schedule.missed],
    ["overlap", schedule.overlap],
    ["queue", schedule.queue],
    ["priority", schedule.priority],
    ["retries", schedule.max_retries?.toString()],
    ["timeout", schedule.timeout_ms && `${schedule.timeout_ms} ms`],
    ["session", schedule.session_id && <Link to={sessionAt(schedule.session_id)}>{schedule.session_id}</Link>],
    ["approval", schedule.requires_approval && "required"],
    ["created", <Ago at={schedule.created_at} />],
  ];
}

function History({ schedule }: { schedule: ScheduleShown }): ReactNode {
  if (!schedule.history.length) return <p className="faint pad">No runs yet</p>;
  return (
    <Table label="History" columns={["At", "Outcome", "Work"]}>
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
    </Table>
  );
}
