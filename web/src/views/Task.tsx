import { useState } from "react";
import type { ReactNode } from "react";
import { parse, post } from "../api/client";
import { of, useAction, useData } from "../api/data";
import type { Explanation, Task as TaskShape, TaskEvent } from "../api/types";
import { Act } from "../components/act";
import { Attempts } from "../components/attempts";
import { Bars } from "../components/bars";
import type { Bar } from "../components/bars";
import {
  Ago,
  Badge,
  Card,
  Copy,
  copyText,
  Detail,
  Facts,
  forHere,
  Form,
  Head,
  Id,
  Notice,
  Refusal,
  Skeleton,
  Took,
} from "../components/basics";
import { PayloadCompare } from "../components/compare";
import { Confirm } from "../components/confirm";
import { Dialog } from "../components/dialog";
import { Diff } from "../components/diff";
import { Icon } from "../components/icon";
import { Json } from "../components/json";
import { PayloadEdit } from "../components/payload";
import { TaskLogs } from "../components/tasklogs";
import { faultOf, pretty } from "../lib/json";
import { taskAsCurl, taskAsPython } from "../lib/code";
import { useEvents } from "../lib/events";
import { lifeOf } from "../lib/life";
import type { Stretch } from "../lib/life";
import { useKeys } from "../lib/keys";
import { useLogs } from "../lib/logs";
import { useWhole } from "../lib/masked";
import { batchAt, limitAt, queueAt, serviceAt, sessionAt, tasksAt } from "../lib/search";
import { useTitle } from "../lib/title";
import { ago, clock, full, useNow } from "../lib/time";
import type { ViewProps } from "../pages";
import { Link } from "../routes";
import { eventTone, may, phaseWord } from "../words";

export default function Task({ params }: ViewProps): ReactNode {
  const id = params.id!;
  const task = useData<TaskShape>(`/api/v2/tasks/${encodeURIComponent(id)}`, of(id));
  return (
    <Detail from={task} same={(one) => one.id === id} title="Task" back={["/tasks", "All tasks"]}>
      {(found) => <Shown key={id} task={found} />}
    </Detail>
  );
}

function Shown({ task: seen }: { task: TaskShape }): ReactNode {
  const {
    shown: task,
    hidden,
    reveal,
  } = useWhole(`/api/v2/tasks/${encodeURIComponent(seen.id)}`, seen, ["payload", "result"]);
  useTitle(`${task.type} ${phaseWord(task.phase).label}`, phaseWord(task.phase).tone);
  const events = useEvents(task.id);
  const life = lifeOf(events ?? [], task.run_at);
  const running = task.state === "running";
  const lines = useLogs(task.id, running);
  const [comparing, setComparing] = useState(false);
  return (
    <>
      <Head
        title={
          <>
            {task.type} <Badge phase={task.phase} progress={task.state === "running" ? task.progress : null} />
          </>
        }
        lead={
          <span className="mono">
            {task.id} <Copy text={task.id} label="Copy id" />
          </span>
        }
      >
        {hidden && (
          <Act needs="reveal" owner={task.owner} onClick={() => reveal()}>
            Reveal hidden values
          </Act>
        )}
        <Acts task={task} reveal={reveal} />
      </Head>
      <div className="stack">
        {task.state !== "succeeded" && <Why task={task} />}
        {task.state === "running" && task.progress !== null && (
          <div className="row">
            <progress className="grow" value={task.progress} max={1} aria-label="Progress" />
            <span className="faint">{task.progress_message}</span>
          </div>
        )}
        <Card>
          <Facts facts={factsOf(task)} />
        </Card>
        <Card title="Timeline">
          {events === null ? <Skeleton rows={2} /> : <Bars bars={life.map(barOf)} empty="No events yet" />}
        </Card>
        <div className="grid-2">
          <Card
            title="Payload"
            acts={
              <button type="button" aria-pressed={comparing} className="pill" onClick={() => setComparing(!comparing)}>
                Compare with the last success
              </button>
            }
          >
            {comparing ? <PayloadCompare task={task} /> : <Json value={task.payload} label="payload" />}
          </Card>
          <Outcome task={task} events={events ?? []} />
        </div>
        {life.some((one) => one.attempt !== null) && (
          <Card title="Attempts" className="flush">
            <Attempts life={life} lines={lines ?? []} />
          </Card>
        )}
        <TaskLogs lines={lines} running={running} />
        <Log events={events} />
      </div>
    </>
  );
}

function barOf(stretch: Stretch, index: number): Bar {
  const { attempt, generation } = stretch;
  return {
    ...stretch,
    key: index,
    title: stretch.worker ?? undefined,
    thin: attempt === null,
    name: (
      <>
        {attempt === null ? stretch.what : `attempt ${attempt}`}
        {generation > 1 && <span className="faint"> (retry {generation - 1})</span>}
      </>
    ),
  };
}

function Acts({ task, reveal }: { task: TaskShape; reveal: (then: (whole: TaskShape) => void) => void }): ReactNode {
  const [editing, setEditing] = useState(false);
  const path = `/api/v2/tasks/${encodeURIComponent(task.id)}`;
  const cancel = useAction(() => post<TaskShape>(`${path}/cancel`), {
    done: (now) => (now.state === "canceled" ? "Canceled" : "Canceling: the worker was asked to stop"),
    quiet: true,
  });
  const abandon = useAction(() => post("/api/v2/dead-letters/abandon", { ids: [task.id] }), {
    done: "Abandoned; the task counts as failed",
    quiet: true,
  });
  const live = phaseWord(task.phase).live;
  const edit = (): void => reveal(() => setEditing(true)); // what is edited must be the thing itself
  useKeys(may(task, "retry") ? { r: edit } : {});
  return (
    <>
      {may(task, "approve") && (
        <Link to={`/approvals?task=${encodeURIComponent(task.id)}`} className="button">
          <Icon name="hand" /> Review
        </Link>
      )}
      {task.type.startsWith("flow:") && task.type !== "flow:approval" && (
        <Link to={`/runs/${encodeURIComponent(task.id)}`} className="button">
          <Icon name="graph" /> View run
        </Link>
      )}
      {task.type === "onward:batch" && (
        <Link to={batchAt(task.id)} className="button">
          <Icon name="layers" /> View batch
        </Link>
      )}
      {may(task, "cancel") && (
        <Confirm
          question="Cancel this task?"
          act="Cancel task"
          action={cancel}
          owner={task.owner}
          about={<About task={task} />}
        >
          <Icon name="stop" /> Cancel
        </Confirm>
      )}
      {may(task, "retry") && (
        <Act needs="operate" className="primary" onClick={edit}>
          <Icon name="redo" /> Retry
        </Act>
      )}
      {may(task, "abandon") && (
        <Confirm question="Abandon this task?" act="Abandon task" action={abandon} about={<About task={task} />}>
          Abandon
        </Confirm>
      )}
      <button
        type="button"
        onClick={() =>
          reveal((whole) => copyText(taskAsCurl({ ...task, ...whole }), "Copied a curl command that submits it again"))
        }
      >
        <Icon name="copy" /> curl
      </button>
      <button
        type="button"
        onClick={() =>
          reveal((whole) => copyText(taskAsPython({ ...task, ...whole }), "Copied a program that submits it again"))
        }
      >
        <Icon name="copy" /> Python
      </button>
      {editing && !live && <Retry task={task} onClose={() => setEditing(false)} />}
    </>
  );
}

function About({ task }: { task: TaskShape }): ReactNode {
  return (
    <p>
      {task.type} <span className="mono">{task.id}</span>, {phaseWord(task.phase).label}
    </p>
  );
}

function Retry({ task, onClose }: { task: TaskShape; onClose: () => void }): ReactNode {
  const before = pretty(task.payload);
  const [text, setText] = useState(before);
  const retry = useAction(
    () =>
      post(
        `/api/v2/tasks/${encodeURIComponent(task.id)}/retry`,
        text === before ? undefined : { payload: parse(text) },
      ),
    { done: "Requeued", after: onClose, quiet: true },
  );
  return (
    <Dialog title={`Retry ${task.type}`} onClose={onClose} wide>
      <Form onSubmit={() => retry.run()}>
        <PayloadEdit type={task.type} label="Payload" value={text} onChange={setText} rows={14} />
        <p className="faint small">
          The task keeps its id. The payload is {text === before ? "unchanged" : "replaced"}.
        </p>
        {text !== before && faultOf(text) === null && <Diff before={task.payload} after={parse(text)} />}
        <Refusal of={retry} />
        <div className="dialog-acts">
          {text !== before && (
            <button type="button" onClick={() => setText(before)}>
              Discard edits
            </button>
          )}
          <button className="primary" disabled={retry.busy || faultOf(text) !== null}>
            {text === before ? "Retry" : "Retry with this payload"}
          </button>
        </div>
      </Form>
    </Dialog>
  );
}

/** Why is it not running? */
function Why({ task }: { task: TaskShape }): ReactNode {
  const now = useNow();
  const why = useData<Explanation>(
    `/api/v2/tasks/${encodeURIComponent(task.id)}/explain`,
    () => phaseWord(task.phase).live,
  );
  if (!why.data || why.data.phase !== task.phase) return null;
  const { tone, icon } = phaseWord(task.phase);
  const eta = why.data.eta === null ? null : etaOf(why.data, now);
  return (
    <Notice tone={tone} icon={icon}>
      <span className="clamp">
        {why.data.sentence}
        {eta !== null && <span> ({eta})</span>}
      </span>
      {why.data.limit && (
        <div className="small">
          <Link to={limitAt(why.data.limit.name)}>{`Show the limit ${why.data.limit.name}`}</Link>
        </div>
      )}
      {why.data.hint && <Hint task={task} text={why.data.hint} />}
    </Notice>
  );
}

/** What to do about it, for which there is a page or a command; for what a button above does, nothing. */
function Hint({ task, text }: { task: TaskShape; text: string }): ReactNode {
  if (may(task, "retry") || may(task, "approve")) return null;
  const page = text.startsWith("onward queue resume")
    ? ([queueAt(task.queue), "Open the queue to resume it"] as const)
    : text.startsWith("GET /health")
      ? (["/settings", "Show the circuit breakers"] as const)
      : text.startsWith("GET /api/v2/services/")
        ? ([serviceAt(task.type), "Show the service and its schema"] as const)
        : null;
  if (page)
    return (
      <div className="small">
        <Link to={page[0]}>{page[1]}</Link>
      </div>
    );
  const at = text.indexOf("onward ");
  return (
    <div className="small">
      {at < 0 ? text : text.slice(0, at)}
      {at >= 0 && <code>{forHere(text.slice(at))}</code>}
    </div>
  );
}

/** What its instant means; null where the sentence has said so. */
function etaOf({ reason, eta }: Explanation, now: number): string | null {
  if (reason === "parked") return `gives up ${ago(eta!, now)}`;
  if (reason === "running" || reason === "overdue") return `expected to end ${ago(eta!, now)}`;
  return null;
}

function factsOf(task: TaskShape): readonly (readonly [string, ReactNode])[] {
  return [
    ["queue", <Link to={tasksAt({ queue: task.queue })}>{task.queue}</Link>],
    ["priority", task.priority],
    ["attempt", `${task.attempt}${task.generation > 1 ? ` (retry ${task.generation - 1})` : ""}`],
    ["failures", String(task.failures)],
    ["retries", String(task.retries)],
    ["worker", task.worker && <span className="mono small">{task.worker}</span>],
    ["created", <Ago at={task.created_at} />],
    ["started", task.started_at && <Ago at={task.started_at} />],
    ["finished", task.finished_at && <Ago at={task.finished_at} />],
    ["duration", task.started_at && <Took task={task} />],
    ["not before", task.run_at !== null && task.state === "scheduled" && full(task.run_at)],
    ["session", task.session_id && <Link to={sessionAt(task.session_id)}>{task.session_id}</Link>],
    ["batch", task.batch && <Id id={task.batch} to={batchAt(task.batch)} />],
    ["partition", task.partition && <Link to={tasksAt({ partition: task.partition })}>{task.partition}</Link>],
    [
      "tags",
      task.tags.length > 0 && (
        <span className="row">
          {task.tags.map((tag) => (
            <Link key={tag} to={tasksAt({ tags: [tag] })}>
              {tag}
            </Link>
          ))}
        </span>
      ),
    ],
    ["parent", task.parent_id && <Id id={task.parent_id} to={`/tasks/${encodeURIComponent(task.parent_id)}`} />],
    ["idempotency key", task.idempotency_key],
    ["callback", task.callback_url && <span className="mono small">{task.callback_url}</span>],
    ["owner", task.owner && <span className="mono small">{task.owner}</span>],
  ];
}

function Outcome({ task, events }: { task: TaskShape; events: readonly TaskEvent[] }): ReactNode {
  const chunks = events.filter((event) => event.type === "task.chunk");
  const spoken = chunks.length > 0 && chunks.every((event) => typeof event.data === "string");
  return (
    <Card title={task.error && task.state !== "succeeded" ? "Error" : "Result"}>
      {task.error && task.state !== "succeeded" ? (
        <div className="stack">
          <p className="clamp">
            <b className="tone-bad-text">{task.error.kind}</b> {task.error.message}
          </p>
          <Json value={task.error} label="error" />
        </div>
      ) : task.state === "succeeded" ? (
        <Json value={task.result} label="result" />
      ) : spoken ? (
        <p className="json pre">{chunks.map((event) => event.data as string).join("")}</p>
      ) : (
        <p className="faint">{phaseWord(task.phase).live ? "Pending" : "None"}</p>
      )}
    </Card>
  );
}

const SHOWN = 200;

function Log({ events }: { events: readonly TaskEvent[] | null }): ReactNode {
  const [all, setAll] = useState(false);
  const shown = all ? (events ?? []) : (events ?? []).slice(-SHOWN);
  return (
    <Card title={`Events${events ? ` (${events.length})` : ""}`}>
      {events === null ? (
        <Skeleton />
      ) : (
        <ol className="log" tabIndex={0} aria-label="Events">
          {events.length > shown.length && (
            <li>
              <button type="button" className="plain" onClick={() => setAll(true)}>
                Show {events.length - shown.length} earlier
              </button>
            </li>
          )}
          {shown.map((event) => (
            <Entry key={event.n} event={event} />
          ))}
        </ol>
      )}
    </Card>
  );
}

function Entry({ event }: { event: TaskEvent }): ReactNode {
  const text = JSON.stringify(event.data);
  return (
    <li>
      <span className="faint num">{event.n}</span>
      <time className="num faint" dateTime={new Date(event.at).toISOString()} title={full(event.at)}>
        {clock(event.at)}
      </time>
      <span className={`log-type dot-${eventTone(event.type)}`}>{event.type}</span>
      {text && text !== "{}" && (
        <span className="log-data mono small">{text.length > 400 ? `${text.slice(0, 400)}…` : text}</span>
      )}
    </li>
  );
}
