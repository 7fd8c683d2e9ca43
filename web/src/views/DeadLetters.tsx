import { useState } from "react";
import type { ReactNode } from "react";
import { parse, post, url } from "../api/client";
import { seldom, useAction, useData } from "../api/data";
import { useLive } from "../api/live";
import type { Abandoned, DeadGroup, Page, Replayed, Task } from "../api/types";
import { Ago, Card, Empty, Form, Head, Id, Loading, Notice, num, spoken, Sure, Table } from "../components/basics";
import { Dialog } from "../components/dialog";
import { Icon } from "../components/icon";
import { Json, JsonEdit } from "../components/json";
import { faultOf, pretty } from "../lib/json";
import { useRowKeys } from "../lib/keys";
import { useWhole } from "../lib/masked";
import { tasksAt } from "../lib/search";
import { number, span, useNow } from "../lib/time";
import { Link, useParam } from "../routes";

/** What a bulk request is about: a whole group, or some tasks of it. */
interface Chosen {
  what: string;
  count: number;
  wanted: { ids: string[] } | { filter: { fingerprint?: string } };
  sample: Task | null;
}

interface Under {
  what: string;
  count: number;
  from: number;
  until: number;
}

export default function DeadLetters(): ReactNode {
  const { now } = useLive();
  const dead = now?.states.dead ?? 0;
  // A group costs a look at every dead letter in it: read again when their number changed, not at every move.
  const groups = useData<Page<DeadGroup>>("/api/v2/dead-letters", seldom, dead);
  const [open, setOpen] = useParam("group");
  const [replaying, setReplaying] = useState<Chosen | null>(null);
  const [under, setUnder] = useState<readonly Under[]>([]);
  const items = useSteady(groups.data?.items ?? []);
  const [at] = useRowKeys(items.length, (index) => setOpen(items[index]!.fingerprint));
  const all: Chosen = {
    what: "all dead letters",
    count: items.reduce((sum, group) => sum + group.count, 0),
    wanted: { filter: {} },
    sample: null,
  };
  return (
    <>
      <Head title="Dead letters" lead="Tasks that failed permanently, grouped by cause. Fix the cause, then retry.">
        {items.length > 1 && (
          <button type="button" onClick={() => setReplaying(all)}>
            <Icon name="redo" /> Retry all
          </button>
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

/** Groups keep their places while the page is open; new ones come first. The server sorts by the last death. */
function useSteady(groups: readonly DeadGroup[]): readonly DeadGroup[] {
  const [known, setKnown] = useState<readonly string[]>([]);
  const added = groups.map((group) => group.fingerprint).filter((one) => !known.includes(one));
  if (added.length) setKnown([...added, ...known]);
  const places = new Map([...added, ...known].map((fingerprint, place) => [fingerprint, place]));
  return groups.toSorted((one, other) => places.get(one.fingerprint)! - places.get(other.fingerprint)!);
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
          <Sure
            sure={group.count === 1 ? "Abandon this task?" : `Abandon ${number(group.count)} tasks?`}
            onSure={() => abandon.run()}
            disabled={abandon.busy}
          >
            Abandon
          </Sure>
          <button
            type="button"
            className="primary"
            onClick={() =>
              replay({
                what: `${group.count === 1 ? "1 task" : `${number(group.count)} tasks`} (${group.kind})`,
                count: group.count,
                wanted: { filter: { fingerprint: group.fingerprint } },
                sample: group.sample,
              })
            }
          >
            <Icon name="redo" /> Retry
          </button>
        </div>
      </div>
      {open && <Members group={group} replay={replay} />}
    </Card>
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
        <h3>Newest payload</h3>
        <Json value={group.sample.payload} label="sample payload" />
      </div>
      <Loading from={tasks}>
        {({ items, next }) => (
          <div>
            <Table
              label="Tasks of this group"
              columns={["Task", "Type", "Error", num("Attempts"), num("Failed"), spoken("Action")]}
            >
              {items.map((task) => (
                <tr key={task.id}>
                  <td>
                    <Id id={task.id} to={`/tasks/${encodeURIComponent(task.id)}`} />
                  </td>
                  <td>{task.type}</td>
                  <td className="small">{task.error?.message}</td>
                  <td className="num">{task.attempt}</td>
                  <td className="num">
                    <Ago at={task.finished_at} />
                  </td>
                  <td className="right">
                    <button
                      type="button"
                      onClick={() =>
                        replay({
                          what: `${task.type} …${task.id.slice(-6)}`,
                          count: 1,
                          wanted: { ids: [task.id] },
                          sample: task,
                        })
                      }
                    >
                      Edit and retry<span className="sr"> {task.id}</span>
                    </button>
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

function Replay({
  chosen,
  onClose,
  onPaced,
}: {
  chosen: Chosen;
  onClose: () => void;
  onPaced: (under: Under) => void;
}): ReactNode {
  const { shown, hidden, reveal } = useWhole<Pick<Task, "payload">>(
    `/api/v2/tasks/${encodeURIComponent(chosen.sample?.id ?? "")}`,
    chosen.sample ?? { payload: null },
    ["payload"],
  );
  const [editing, setEditing] = useState(chosen.sample !== null && chosen.count === 1 && !hidden);
  const [typed, setTyped] = useState<string | null>(null);
  const [rate, setRate] = useState("");
  const before = pretty(shown.payload);
  const text = editing ? (typed ?? before) : null;
  const edited = text !== null && (chosen.count > 1 || text !== before);
  const body = (dry: boolean): unknown => ({
    ...chosen.wanted,
    ...(edited ? { payload: parse(text) } : {}),
    ...(rate ? { rate: Number(rate) } : {}),
    ...(dry ? { dry_run: true } : {}),
  });
  const now = useNow();
  const dry = useAction(() => post<Replayed>("/api/v2/dead-letters/replay", body(true)));
  const replay = useAction(() => post<Replayed>("/api/v2/dead-letters/replay", body(false)), {
    done: (out) =>
      `${number(out.replayed)} requeued${out.refused.length ? `, ${number(out.refused_count)} refused: ${out.refused[0]!.reason}` : ""}`,
    after: (out) => {
      if (out.until !== null && out.until - now > 2000)
        onPaced({ what: chosen.what, count: out.replayed, from: now, until: out.until });
      onClose();
    },
  });
  const broken = (edited && faultOf(text) !== null) || (rate !== "" && !(Number(rate) > 0));
  return (
    <Dialog title={`Retry ${chosen.what}`} onClose={onClose} wide>
      <Form onSubmit={() => replay.run()}>
        {text === null ? (
          <p className="row">
            <span className="faint">
              {chosen.count > 1
                ? "Each task runs again with its own payload."
                : "The task runs again with its own payload."}
            </span>
            {chosen.sample && (
              <button type="button" className="plain link" onClick={() => reveal(() => setEditing(true))}>
                {chosen.count > 1 ? "Replace the payload for all" : "Reveal hidden values and edit"}
              </button>
            )}
          </p>
        ) : (
          <JsonEdit
            label={chosen.count > 1 ? `Payload for all ${number(chosen.count)}` : "Payload"}
            value={text}
            onChange={setTyped}
            rows={12}
          />
        )}
        {chosen.count > 1 && (
          <label className="field">
            <span>Rate limit per second (blank: no limit)</span>
            <input
              className="narrow"
              type="number"
              min="0.01"
              max="10000"
              step="any"
              value={rate}
              onChange={(event) => setRate(event.target.value)}
            />
            {Number(rate) > 0 && (
              <span className="faint small">
                The last one starts after {span((chosen.count / Number(rate)) * 1000)}.
              </span>
            )}
          </label>
        )}
        {dry.result && (
          <Notice tone="idle" icon="check">
            Dry run: {number(dry.result.matched - dry.result.refused_count)} would be requeued
            {dry.result.refused.length > 0 &&
              `, ${number(dry.result.refused_count)} refused: ${dry.result.refused[0]!.reason}`}
            . No task was changed.
          </Notice>
        )}
        <div className="dialog-acts">
          <button type="button" disabled={dry.busy || broken} onClick={() => dry.run()}>
            Dry run
          </button>
          <button className="primary" disabled={replay.busy || broken}>
            <Icon name="redo" /> {edited ? "Retry with this payload" : "Retry"}
          </button>
        </div>
      </Form>
    </Dialog>
  );
}

/** A retry at a rate: each task is scheduled for its own instant, so the clock tells how far it is. */
function Progress({ under, onClose }: { under: Under; onClose: () => void }): ReactNode {
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
