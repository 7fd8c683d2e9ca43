// A list of tasks: to look at, to choose from and to act on.
import { useState } from "react";
import type { ReactNode } from "react";
import { useLive } from "../api/live";
import type { Task } from "../api/types";
import { COLUMNS, sorted, totalOf } from "../lib/columns";
import type { Sort } from "../lib/columns";
import { useColumns } from "../lib/kept";
import { older, useList } from "../lib/list";
import { ACTS } from "../lib/operations";
import type { BulkAct } from "../lib/operations";
import { searchParams } from "../lib/search";
import type { Search } from "../lib/search";
import { number } from "../lib/time";
import { Link, useParam } from "../routes";
import { may } from "../words";
import { Act } from "./act";
import { Ago, Badge, shortId, Took } from "./basics";
import { BulkQuestion } from "./bulk";
import { Icon } from "./icon";
import { Cell, Rows } from "./rows";

/** The tasks that a search finds, to look at, to choose from and to act on. */
export function TaskList({ search, empty }: { search: Search; empty: ReactNode }): ReactNode {
  const list = useList<Task>({
    path: "/api/v2/tasks",
    params: { ...searchParams(search), brief: true },
    below: older,
    fits: (task) => !search.states.length || search.states.includes(task.state),
  });
  const [chosen, setChosen] = useState<ReadonlyMap<string, Task>>(new Map());
  const [all, setAll] = useState(false);
  const [asking, setAsking] = useState<BulkAct | null>(null);
  const { rows } = list;
  const [sort, setSort] = useParam("sort");
  const [kept, setKept] = useColumns();
  const columns = COLUMNS.filter(({ key, usual }) => kept?.includes(key) ?? usual);
  const sortable = list.complete; // of some of the rows, the order would be a lie
  const { now } = useLive();
  const clear = (): void => {
    setChosen(new Map());
    setAll(false);
  };
  const choose = (task: Task): void => {
    const next = new Map(chosen);
    if (!next.delete(task.id)) next.set(task.id, task);
    setAll(false);
    setChosen(next);
  };
  const isChosen = (task: Task): boolean => all || chosen.has(task.id);
  const selectAll = (
    <input
      type="checkbox"
      aria-label="Select all loaded tasks"
      checked={all || (chosen.size > 0 && chosen.size === rows.length)}
      onChange={(event) => {
        setAll(false);
        setChosen(event.target.checked ? new Map(rows.map((row) => [row.id, row])) : new Map());
      }}
    />
  );
  return (
    <>
      <div className="row list-tools">
        {/* A phone shows no head of the list, where this box stands otherwise. */}
        {rows.length > 0 && (
          <label className="check small phone-only">
            {selectAll} <span aria-hidden="true">Select all loaded</span>
          </label>
        )}
        <ColumnChoice shown={columns.map(({ key }) => key)} choose={setKept} />
      </div>
      <Rows
        list={sortable && sort ? { ...list, rows: sorted(rows, sort) } : list}
        total={totalOf(search, now)}
        columns={`40px 142px minmax(140px, 1fr) ${columns.map(({ width }) => width).join(" ")}`}
        label="Tasks"
        what={["task", "tasks"]}
        kind="tasks"
        at={(task) => `/tasks/${encodeURIComponent(task.id)}`}
        keys={{ x: choose }}
        chosen={isChosen}
        empty={empty}
        head={
          <>
            <Cell head>{selectAll}</Cell>
            <Cell head>State</Cell>
            <Cell head>Task</Cell>
            {columns.map((column) => (
              <Cell
                key={column.key}
                head
                sort={
                  sort.replace(/^-/, "") === column.key && sortable
                    ? sort.startsWith("-")
                      ? "descending"
                      : "ascending"
                    : undefined
                }
                className={`${column.right ? "right" : ""} ${phoneClass(column.key)}`}
              >
                {sortable && rows.length > 1 ? (
                  <button type="button" className="plain" onClick={() => setSort(nextSort(sort, column.key))}>
                    {column.label}
                    {sort.replace(/^-/, "") === column.key && (
                      <span aria-hidden="true">{sort.startsWith("-") ? " ↓" : " ↑"}</span>
                    )}
                  </button>
                ) : (
                  column.label
                )}
              </Cell>
            ))}
          </>
        }
      >
        {(task) => (
          <>
            <Cells task={task} chosen={isChosen(task)} choose={() => choose(task)} />
            {columns.map(({ key, right }) => (
              <Cell
                key={key}
                className={`clip ${right ? "num right" : ""} ${key === "duration" ? "" : "faint"} ${phoneClass(key)}`}
              >
                {VALUES[key]!(task)}
              </Cell>
            ))}
          </>
        )}
      </Rows>
      {chosen.size > 0 && (
        <SelectionBar
          tasks={[...chosen.values()]}
          all={all}
          chooseAll={() => setAll(true)}
          canAll={!list.complete}
          total={totalOf(search, now)}
          ask={setAsking}
          clear={clear}
        />
      )}
      {asking && (
        <BulkQuestion
          act={asking}
          search={all ? search : null}
          tasks={[...chosen.values()]}
          onClose={() => setAsking(null)}
          after={() => {
            setAsking(null);
            clear();
          }}
        />
      )}
    </>
  );
}

function Cells({ task, chosen, choose }: { task: Task; chosen: boolean; choose: () => void }): ReactNode {
  return (
    <>
      <Cell>
        <input type="checkbox" aria-label={`Select ${task.type} ${task.id}`} checked={chosen} onChange={choose} />
      </Cell>
      <Cell>
        <Badge phase={task.phase} progress={task.state === "running" ? task.progress : null} />
      </Cell>
      <Cell className="list-what">
        <Link to={`/tasks/${encodeURIComponent(task.id)}`} className="clip">
          {task.type} <span className="mono faint">{shortId(task.id)}</span>
        </Link>
        {task.error && task.state !== "succeeded" && <span className="clip faint small">{task.error.message}</span>}
      </Cell>
    </>
  );
}

const phoneClass = (key: string): string => ({ duration: "list-low", created: "list-high" })[key] ?? "wide-only";

/** The largest first, then the smallest, then as they came. */
function nextSort(sort: Sort, key: string): Sort {
  return sort === `-${key}` ? key : sort === key ? "" : `-${key}`;
}

const VALUES: Record<string, (task: Task) => ReactNode> = {
  queue: (task) => (task.queue === task.type ? "" : task.queue),
  worker: (task) => task.worker,
  session: (task) => task.session_id,
  priority: (task) => (task.priority === "normal" ? "" : task.priority),
  attempt: (task) => (
    <>
      {task.attempt > 1 || task.generation > 1 ? task.attempt : ""}
      {task.generation > 1 && <span className="faint"> (retry {task.generation - 1})</span>}
    </>
  ),
  duration: (task) => <Took task={task} />,
  created: (task) => <Ago at={task.created_at} />,
};

function ColumnChoice({
  shown,
  choose,
}: {
  shown: readonly string[];
  choose: (columns: readonly string[]) => void;
}): ReactNode {
  return (
    <details className="column-choice wide-only">
      <summary className="faint small">Columns</summary>
      <div className="row">
        {COLUMNS.map(({ key, label }) => (
          <label key={key} className="check small">
            <input
              type="checkbox"
              checked={shown.includes(key)}
              onChange={(event) => choose(event.target.checked ? [...shown, key] : shown.filter((one) => one !== key))}
            />
            {label}
          </label>
        ))}
      </div>
    </details>
  );
}

const BULK_ACTS: readonly BulkAct[] = ["cancel", "retry", "delete"];

function SelectionBar({
  tasks,
  all,
  canAll,
  total,
  chooseAll,
  ask,
  clear,
}: {
  tasks: readonly Task[];
  all: boolean;
  canAll: boolean;
  total: number | undefined; // of all that match, where it is known
  chooseAll: () => void;
  ask: (act: BulkAct) => void;
  clear: () => void;
}): ReactNode {
  return (
    <div className="bulk">
      <span className="grow">{all ? "All matching tasks selected" : `${number(tasks.length)} selected`}</span>
      <button type="button" disabled={!canAll || all} onClick={chooseAll}>
        Select all {total === undefined ? "" : `${number(total)} `}matching
      </button>
      {BULK_ACTS.map((act) => (
        <Act
          key={act}
          needs="operate"
          disabled={!all && !tasks.some((task) => may(task, act))}
          onClick={() => ask(act)}
        >
          {ACTS[act].label}
        </Act>
      ))}
      <button type="button" className="plain" aria-label="Clear the selection" onClick={clear}>
        <Icon name="cross" />
      </button>
    </div>
  );
}
