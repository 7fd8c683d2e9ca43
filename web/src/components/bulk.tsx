// What is asked before something is done to many tasks, and how far it is.
import { useEffect, useState } from "react";
import type { ReactNode } from "react";
import type { Task } from "../api/types";
import { among, clearBulk, matching, startBulk, stopBulk, useBulk } from "../lib/bulk";
import type { BulkAct, Found } from "../lib/bulk";
import { formatSearch } from "../lib/search";
import type { Search } from "../lib/search";
import { number } from "../lib/time";
import { Badge, Id, ProblemBox } from "./basics";
import { Answer } from "./confirm";
import { Dialog } from "./dialog";

export const BULK_ACTS: Record<BulkAct, { label: string; done: string }> = {
  cancel: { label: "Cancel", done: "canceled" },
  retry: { label: "Retry", done: "retried" },
};

const tasksIn = (count: number): string => (count === 1 ? "1 task" : `${number(count)} tasks`);

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
  const [found, setFound] = useState<Found | null>(search ? null : () => among(tasks, act));
  const [counted, setCounted] = useState(0);
  const [error, setError] = useState<Error | null>(null);
  const busy = useBulk()?.running ?? false;
  const filter = search && formatSearch(search);
  useEffect(() => {
    if (!search) return;
    const control = new AbortController();
    matching(search, act, control.signal, setCounted).then(
      setFound,
      (failed: Error) => control.signal.aborted || setError(failed),
    );
    return () => control.abort();
    // eslint-disable-next-line react-hooks/exhaustive-deps -- the filter that was chosen is the one that is asked about
  }, []);
  const { label } = BULK_ACTS[act];
  const start = (): void => {
    void startBulk(act, found!.ids);
    after();
  };
  return (
    <Dialog title={found ? `${label} ${tasksIn(found.ids.length)}?` : `${label} all matching tasks?`} onClose={onClose}>
      <p>
        {search === null ? (
          "The selected tasks."
        ) : filter ? (
          <>
            Every task that matches <code>{filter}</code>.
          </>
        ) : (
          <b>Every task there is: no filter is set.</b>
        )}
        {found !== null && found.skipped > 0 && ` ${tasksIn(found.skipped)} cannot be ${BULK_ACTS[act].done}: skipped.`}
      </p>
      {error ? (
        <ProblemBox error={error} />
      ) : found === null ? (
        <p role="status">Counting… {number(counted)} so far</p>
      ) : (
        <ul className="stack-tight sample">
          {found.sample.map((task) => (
            <li key={task.id} className="row">
              <Badge phase={task.phase} /> <span className="clip">{task.type}</span> <Id id={task.id} />
            </li>
          ))}
          {found.ids.length > found.sample.length && (
            <li className="faint">and {number(found.ids.length - found.sample.length)} more</li>
          )}
        </ul>
      )}
      {busy && <p className="fault">Another action on many tasks is still running.</p>}
      <Answer
        act={found ? `${label} ${tasksIn(found.ids.length)}` : label}
        busy={busy || !found?.ids.length}
        keep={onClose}
        onAct={start}
      />
    </Dialog>
  );
}

export function BulkBar(): ReactNode {
  const progress = useBulk();
  if (!progress) return null;
  const { act, done, refused, total, running } = progress;
  return (
    <div className="bulk" role="status" aria-label="Action on many tasks">
      <progress value={done + refused} max={Math.max(1, total)} aria-label="Progress" />
      <span className="grow">
        {number(done)} of {number(total)} {BULK_ACTS[act].done}
        {refused > 0 && `, ${number(refused)} refused`}
        {!running && done + refused < total && ", stopped"}
      </span>
      {running && <span className="faint small">keep this tab open</span>}
      <button type="button" onClick={running ? stopBulk : clearBulk}>
        {running ? "Stop" : "Done"}
      </button>
    </div>
  );
}
