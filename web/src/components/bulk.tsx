// What is asked before something is done to many tasks, and how far the server is with it.
import { useEffect, useState } from "react";
import type { ReactNode } from "react";
import { get, post, url } from "../api/client";
import { never, useAction } from "../api/data";
import type { Operation, Page, Task } from "../api/types";
import { useQuery } from "@tanstack/react-query";
import {
  ACTS,
  among,
  dismiss,
  filterOf,
  follow,
  isUnderWay,
  MOST_NAMED,
  searchFor,
  useFollowed,
  useOperations,
} from "../lib/operations";
import type { BulkAct } from "../lib/operations";
import { formatSearch, searchParams } from "../lib/search";
import type { Search } from "../lib/search";
import { number, span } from "../lib/time";
import { Link } from "../routes";
import { Act } from "./act";
import { Badge, Id, ProblemBox, Refusal } from "./basics";
import { Answer } from "./confirm";
import { Dialog } from "./dialog";

const SAMPLE = 5;
const tasksIn = (count: number): string => (count === 1 ? "1 task" : `${number(count)} tasks`);

interface Found {
  count: number;
  sample: readonly Task[];
}

/** How many an operation would be about; the server counts them without doing anything. */
function useMatching(search: Search | null, act: BulkAct): { found: Found | undefined; error: Error | null } {
  const able = search && searchFor(search, act);
  const asked = useQuery({
    queryKey: ["matching", act, able],
    queryFn: async ({ signal }): Promise<Found> => {
      if (!able!.states.length) return { count: 0, sample: [] };
      const [counted, page] = await Promise.all([
        post<Operation>(`/api/v2/tasks/${act}`, { filter: filterOf(able!), dry_run: true }),
        get<Page<Task>>(url("/api/v2/tasks", { ...searchParams(able!), brief: true, limit: SAMPLE }), signal),
      ]);
      return { count: counted.matched, sample: page.items };
    },
    enabled: able !== null,
    gcTime: 0,
    meta: { concerns: never },
  });
  return { found: asked.data, error: asked.error };
}

/** How many, by which filter, and some of them: known before the question can be answered. */
export function BulkQuestion({
  act,
  search,
  tasks,
  onClose,
  after,
}: {
  act: BulkAct;
  search: Search | null; // null: of `tasks` only
  tasks: readonly Task[];
  onClose: () => void;
  after: () => void;
}): ReactNode {
  const { able, skipped } = among(tasks, act);
  const matching = useMatching(search, act);
  const found = search ? matching.found : { count: able.length, sample: able.slice(0, SAMPLE) };
  const [rate, setRate] = useState("");
  const filter = search && formatSearch(search);
  const { label, done } = ACTS[act];
  const start = useAction(
    () =>
      post<Operation>(`/api/v2/tasks/${act}`, {
        ...(search ? { filter: filterOf(searchFor(search, act)) } : { ids: able.map((task) => task.id) }),
        ...(rate && { rate: Number(rate) }),
      }),
    {
      quiet: true,
      after: (begun) => {
        follow([begun]);
        after();
      },
    },
  );
  const count = found?.count ?? 0;
  const tooMany = !search && count > MOST_NAMED;
  const broken = rate !== "" && !(Number(rate) > 0);
  return (
    <Dialog title={found ? `${label} ${tasksIn(count)}?` : `${label} all matching tasks?`} onClose={onClose}>
      <p>
        {search === null ? (
          "The selected tasks."
        ) : filter ? (
          <>
            Every task that matches <code>{filter}</code> and can be {done}.
          </>
        ) : (
          <b>Every task that can be {done}: no filter is set.</b>
        )}
        {search === null && skipped > 0 && ` ${tasksIn(skipped)} cannot be ${done}: skipped.`}
      </p>
      {act === "delete" && <p>They are removed with payload, result, log and events. This cannot be undone.</p>}
      {matching.error ? (
        <ProblemBox error={matching.error} />
      ) : !found ? (
        <p role="status">Counting…</p>
      ) : (
        <ul className="stack-tight sample">
          {found.sample.map((task) => (
            <li key={task.id} className="row">
              <Badge phase={task.phase} /> <span className="clip">{task.type}</span> <Id id={task.id} />
            </li>
          ))}
          {count > found.sample.length && <li className="faint">and {number(count - found.sample.length)} more</li>}
        </ul>
      )}
      {count > 1 && (
        <label className="field">
          <span>Rate limit per second (blank: no limit)</span>
          <input
            className="narrow"
            type="number"
            min="0.01"
            max="1000000"
            step="any"
            value={rate}
            onChange={(event) => setRate(event.target.value)}
          />
          {Number(rate) > 0 && (
            <span className="faint small">The last one follows after {span(((count - 1) / Number(rate)) * 1000)}.</span>
          )}
        </label>
      )}
      {tooMany && (
        <p className="fault">
          At most {number(MOST_NAMED)} tasks can be named at once: choose “Select all matching” instead.
        </p>
      )}
      <Refusal of={start} />
      <Answer
        act={found ? `${label} ${tasksIn(count)}` : label}
        busy={start.busy || !count || tooMany || broken}
        keep={onClose}
        onAct={() => start.run()}
      />
    </Dialog>
  );
}

/** Those under way, on every view and in every browser; those that ended while this page was open, until dismissed. */
export function BulkBars(): ReactNode {
  const operations = useOperations().data?.items;
  const followed = useFollowed();
  useEffect(() => follow((operations ?? []).filter(isUnderWay)), [operations]);
  const shown = (operations ?? []).filter(({ id }) => id && followed.has(id));
  if (!shown.length) return null;
  return (
    <div className="bulks">
      {shown.map((operation) => (
        <BulkBar key={operation.id} operation={operation} />
      ))}
    </div>
  );
}

function BulkBar({ operation }: { operation: Operation }): ReactNode {
  const { id, matched, done, failed, owner } = operation;
  const running = isUnderWay(operation);
  return (
    <div className="bulk" role="status" aria-label="Action on many tasks">
      <progress value={done + failed} max={Math.max(1, matched)} aria-label="Progress" />
      <span className="grow">
        <Progress operation={operation} />
      </span>
      <Link to="/operations">All operations</Link>
      {running ? (
        <StopButton id={id!} owner={owner ?? null} />
      ) : (
        <button type="button" onClick={() => dismiss(id!)}>
          Done
        </button>
      )}
    </div>
  );
}

/** How far it is, in words. */
export function Progress({ operation }: { operation: Operation }): ReactNode {
  const { action, matched, done, failed, state } = operation;
  return (
    <>
      {number(done)} of {number(matched)} {ACTS[action].done}
      {failed > 0 && `, ${number(failed)} refused`}
      {state === "canceled" && ", stopped"}
      {(state === "failed" || state === "dead") && ", broken off"}
    </>
  );
}

export function StopButton({ id, owner }: { id: string; owner: string | null }): ReactNode {
  const stop = useAction(() => post<Operation>(`/api/v2/operations/${encodeURIComponent(id)}/cancel`));
  return (
    <Act needs="operate" owner={owner} disabled={stop.busy || stop.result !== undefined} onClick={() => stop.run()}>
      Stop
    </Act>
  );
}
