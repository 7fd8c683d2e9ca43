import { useState } from "react";
import type { ReactNode } from "react";
import { post, url } from "../api/client";
import { seldom, useAction, useData } from "../api/data";
import { useLive } from "../api/live";
import type { Abandoned, DeadGroup, Page, Task } from "../api/types";
import { Act } from "../components/act";
import { Ago, Card, Empty, Head, Id, Loading, num, spoken, Table } from "../components/basics";
import { Confirm } from "../components/confirm";
import { Icon } from "../components/icon";
import { Json } from "../components/json";
import { Replay } from "../components/replay";
import type { Chosen } from "../components/replay";
import { usePaced } from "../lib/kept";
import type { Paced } from "../lib/kept";
import { useRowKeys } from "../lib/keys";
import { useSteady } from "../lib/steady";
import { tasksAt } from "../lib/search";
import { number, span, useNow } from "../lib/time";
import { Link, useParam } from "../routes";

export default function DeadLetters(): ReactNode {
  const { now } = useLive();
  const dead = now?.states.dead ?? 0;
  // A group costs a look at every dead letter in it: read again when their number changed, not at every move.
  const groups = useData<Page<DeadGroup>>("/api/v2/dead-letters", seldom, dead);
  const [open, setOpen] = useParam("group");
  const [replaying, setReplaying] = useState<Chosen | null>(null);
  const [under, setUnder] = usePaced();
  const items = useSteady(groups.data?.items ?? [], (group) => group.fingerprint);
  const [at] = useRowKeys(
    items.map((one) => one.fingerprint),
    (index) => setOpen(items[index]!.fingerprint),
  );
  const all: Chosen = {
    what: "all dead letters",
    cause: "Every dead letter, whatever its cause.",
    count: items.reduce((sum, group) => sum + group.count, 0),
    wanted: { filter: {} },
    sample: null,
  };
  return (
    <>
      <Head title="Dead letters" lead="Tasks that failed permanently, grouped by cause. Fix the cause, then retry.">
        {items.length > 1 && (
          <Act needs="operate" onClick={() => setReplaying(all)}>
            <Icon name="redo" /> Retry all
          </Act>
        )}
      </Head>
      <div className="stack">
        {under.map((one) => (
          <Progress key={one.from} under={one} onClose={() => setUnder(under.filter((other) => other !== one))} />
        ))}
        <Loading from={groups}>
          {() =>
            items.length ? (
              <ul className="stack">
                {items.map((group, index) => (
                  <li key={group.fingerprint}>
                    <Group
                      group={group}
                      at={index === at}
                      open={group.fingerprint === open}
                      toggle={() => setOpen(group.fingerprint === open ? "" : group.fingerprint)}
                      replay={setReplaying}
                    />
                  </li>
                ))}
              </ul>
            ) : (
              <Empty icon="check" title="No dead letters">
                A task becomes a dead letter when its retries are used up, or when a retry cannot succeed.
              </Empty>
            )
          }
        </Loading>
      </div>
      {replaying && (
        <Replay
          chosen={replaying}
          onClose={() => setReplaying(null)}
          onPaced={(paced) => setUnder([...under, paced])}
        />
      )}
    </>
  );
}

function Group({
  group,
  at,
  open,
  toggle,
  replay,
}: {
  group: DeadGroup;
  at: boolean;
  open: boolean;
  toggle: () => void;
  replay: (chosen: Chosen) => void;
}): ReactNode {
  const abandon = useAction(
    () => post<Abandoned>("/api/v2/dead-letters/abandon", { filter: { fingerprint: group.fingerprint } }),
    {
      done: (out) => `${number(out.abandoned)} abandoned`,
      quiet: true,
    },
  );
  return (
    <Card className={at ? "at" : ""}>
      <div className="group">
        <button
          type="button"
          className="plain"
          aria-expanded={open}
          aria-label={`${open ? "Hide" : "Show"} the tasks that failed with ${group.kind}`}
          onClick={toggle}
        >
          <Icon name={open ? "down" : "right"} />
        </button>
        <span className="tile-number">{number(group.count)}</span>
        <div className="grow">
          <p className="clamp">
            <b className="tone-bad-text">{group.kind || "unknown"}</b> {group.message}
          </p>
          <p className="faint small">
            {group.types.map((type) => (
              <Link key={type} to={tasksAt({ type, states: ["dead"] })} className="spaced">
                {type}
              </Link>
            ))}
            last <Ago at={group.last_at} />
            {group.count > 1 && (
              <>
                , first <Ago at={group.first_at} />
              </>
            )}
          </p>
        </div>
        <div className="row">
          <Confirm
            question={`Abandon ${tasksIn(group.count)}?`}
            act={`Abandon ${tasksIn(group.count)}`}
            action={abandon}
            about={<About group={group} />}
          >
            Abandon
          </Confirm>
          <Act
            needs="operate"
            className="primary"
            onClick={() =>
              replay({
                what: tasksIn(group.count),
                cause: `${group.types.join(", ")} failed with ${group.kind || "unknown"}: ${group.message}`,
                count: group.count,
                wanted: { filter: { fingerprint: group.fingerprint } },
                sample: group.sample,
              })
            }
          >
            <Icon name="redo" /> Retry
          </Act>
        </div>
      </div>
      {open && <Members group={group} replay={replay} />}
    </Card>
  );
}

const tasksIn = (count: number): string => (count === 1 ? "1 task" : `${number(count)} tasks`);

/** What would be abandoned: the cause that they share, and some of them. */
function About({ group }: { group: DeadGroup }): ReactNode {
  return (
    <>
      <p className="clamp">
        {group.types.join(", ")} failed with <b>{group.kind || "unknown"}</b> {group.message}
      </p>
      <ul className="stack-tight">
        {group.task_ids.slice(0, 5).map((id) => (
          <li key={id}>
            <Id id={id} />
          </li>
        ))}
        {group.count > 5 && <li className="faint">and {number(group.count - 5)} more</li>}
      </ul>
      <p className="faint">Abandoned tasks count as failed; each can still be retried from its own page.</p>
    </>
  );
}

function Members({ group, replay }: { group: DeadGroup; replay: (chosen: Chosen) => void }): ReactNode {
  const tasks = useData<Page<Task>>(
    url("/api/v2/dead-letters", { fingerprint: group.fingerprint, limit: 50 }),
    seldom,
    group.count,
  );
  return (
    <div className="stack members">
      <div>
        <h2 className="minor">Newest payload</h2>
        <Json value={group.sample.payload} label="sample payload" />
      </div>
      <Loading from={tasks}>
        {({ items, next }) => (
          <div>
            <Table
              label="Tasks of this group"
              className="cards"
              columns={["Task", "Type", "Error", num("Attempts"), num("Failed"), spoken("Action")]}
            >
              {items.map((task) => (
                <tr key={task.id}>
                  <td>
                    <Id id={task.id} to={`/tasks/${encodeURIComponent(task.id)}`} />
                  </td>
                  <td>{task.type}</td>
                  <td className="small">{task.error?.message}</td>
                  <td className="num" data-label="attempts">
                    {task.attempt}
                  </td>
                  <td className="num">
                    <Ago at={task.finished_at} />
                  </td>
                  <td className="right act-cell">
                    <Act
                      needs="operate"
                      onClick={() =>
                        replay({
                          what: task.type,
                          cause: `${task.id} failed with ${group.kind || "unknown"}: ${group.message}`,
                          count: 1,
                          wanted: { ids: [task.id] },
                          sample: task,
                        })
                      }
                    >
                      Edit and retry<span className="sr"> {task.id}</span>
                    </Act>
                  </td>
                </tr>
              ))}
            </Table>
            {next && (
              <p className="faint small">
                The 50 newest. <Link to={tasksAt({ states: ["dead"] })}>All dead tasks</Link>
              </p>
            )}
          </div>
        )}
      </Loading>
    </div>
  );
}

/** A retry at a rate: each task is scheduled for its own instant, so the clock tells how far it is. */
function Progress({ under, onClose }: { under: Paced; onClose: () => void }): ReactNode {
  const now = useNow();
  const share = Math.min(1, (now - under.from) / Math.max(1, under.until - under.from));
  return (
    <Card>
      <div className="row" role="status">
        <span className="grow">
          Retrying {under.what}: {number(Math.min(under.count, Math.floor(share * under.count) + 1))} of{" "}
          {number(under.count)} started
          {share < 1 && <span className="faint">, the last one in {span(under.until - now)}</span>}
        </span>
        <progress value={share} max={1} aria-label="Progress of the retry" />
        <Link to={tasksAt({ states: ["scheduled"] })}>remaining</Link>
        <button type="button" className="plain" aria-label="Dismiss" onClick={onClose}>
          <Icon name="cross" />
        </button>
      </div>
    </Card>
  );
}
