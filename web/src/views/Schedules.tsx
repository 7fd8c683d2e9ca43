import type { ReactNode } from "react";
import { post } from "../api/client";
import { useAction, useData } from "../api/data";
import type { Page, Schedule, Task } from "../api/types";
import { Act } from "../components/act";
import { Ago, Card, Empty, Head, Loading, Mark, num, spoken, Table } from "../components/basics";
import { Icon } from "../components/icon";
import { ScheduleForm } from "../components/scheduleform";
import { say } from "../components/toasts";
import { useKeys, useRowKeys } from "../lib/keys";
import { scheduleApi, scheduleAt } from "../lib/schedule";
import { go, Link, useParam } from "../routes";

export default function Schedules(): ReactNode {
  const schedules = useData<Page<Schedule>>("/api/v2/schedules?limit=1000");
  const [asked, setAsked] = useParam("new");
  const adding = asked !== "";
  const setAdding = (on: boolean): void => setAsked(on ? "1" : "");
  const items = schedules.data?.items ?? [];
  const [at] = useRowKeys(
    items.map((one) => one.name),
    (index) => go(scheduleAt(items[index]!.name)),
  );
  useKeys({ n: () => setAdding(true) });
  return (
    <>
      <Head title="Schedules" lead="One-off, interval and cron schedules.">
        <Act needs="operate" className="primary" onClick={() => setAdding(true)}>
          <Icon name="calendar" /> New schedule
        </Act>
      </Head>
      <Loading from={schedules}>
        {(page) =>
          page.items.length ? (
            <Card className="flush">
              <Table
                label="Schedules"
                className="cards"
                columns={["Schedule", "Runs", "When", num("Next"), num("Last", true), spoken("Actions")]}
              >
                {page.items.map((schedule, index) => (
                  <Row key={schedule.name} schedule={schedule} at={index === at} />
                ))}
              </Table>
            </Card>
          ) : (
            <Empty
              icon="calendar"
              title="No schedules yet"
              command={`onward schedule add nightly echo '{"hello": "night"}' --cron "0 3 * * *"`}
            />
          )
        }
      </Loading>
      {adding && <ScheduleForm schedule={null} onClose={() => setAdding(false)} />}
    </>
  );
}

function Row({ schedule, at }: { schedule: Schedule; at: boolean }): ReactNode {
  return (
    <tr className={at ? "at" : ""}>
      <td>
        <Link to={scheduleAt(schedule.name)}>{schedule.name}</Link>
        {schedule.paused && (
          <div>
            <Paused />
          </div>
        )}
      </td>
      <td>
        <RunsWhat schedule={schedule} />
      </td>
      <td>
        {schedule.description}
        {schedule.cron && (
          <div className="faint small">
            <code>{schedule.cron}</code> {schedule.timezone}
          </div>
        )}
      </td>
      <td className="num" data-label="next">
        <Ago at={schedule.paused ? null : schedule.next_run_at} />
      </td>
      <td className="num wide-only">
        <Ago at={schedule.last_run_at} />
        {schedule.last_outcome && <div className="faint small">{schedule.last_outcome}</div>}
      </td>
      <td className="right act-cell">
        <ScheduleActs schedule={schedule} />
      </td>
    </tr>
  );
}

export function Paused(): ReactNode {
  return (
    <Mark tone="wait" icon="pause">
      paused
    </Mark>
  );
}

export function RunsWhat({ schedule }: { schedule: Schedule }): ReactNode {
  return schedule.flow !== null ? (
    <>
      <Icon name="graph" size={12} /> <Link to={`/flows/${encodeURIComponent(schedule.flow)}`}>{schedule.flow}</Link>
    </>
  ) : (
    <>{schedule.type}</>
  );
}

/** Where the work that it made is shown. */
export function workAt(schedule: Schedule, id: string): string {
  return `/${schedule.flow === null ? "tasks" : "runs"}/${encodeURIComponent(id)}`;
}

export function ScheduleActs({ schedule }: { schedule: Schedule }): ReactNode {
  const path = scheduleApi(schedule.name);
  const trigger = useAction(() => post<Task>(`${path}/trigger`), {
    after: (task) => say(`${schedule.name} triggered`, { to: workAt(schedule, task.id) }),
  });
  const pause = useAction(() => post(`${path}/pause`), { done: `${schedule.name} paused` });
  const resume = useAction(() => post(`${path}/resume`), { done: `${schedule.name} resumed` });
  const named = <span className="sr"> {schedule.name}</span>;
  return (
    <span className="row acts">
      <Act
        needs="operate"
        onClick={() => trigger.run()}
        disabled={trigger.busy}
        title="Run now, in addition to the schedule"
      >
        <Icon name="bolt" size={14} /> Trigger{named}
      </Act>
      {schedule.paused ? (
        <Act needs="operate" onClick={() => resume.run()} disabled={resume.busy}>
          <Icon name="play" size={14} /> Resume{named}
        </Act>
      ) : (
        <Act needs="operate" onClick={() => pause.run()} disabled={pause.busy}>
          <Icon name="pause" size={14} /> Pause{named}
        </Act>
      )}
    </span>
  );
}
