import { useEffect, useRef, useState } from "react";
import type { ReactNode } from "react";
import { useLive } from "../api/live";
import type { State, Task } from "../api/types";
import { Act } from "../components/act";
import { Ago, Badge, Empty, Head, shortId, Took } from "../components/basics";
import { BULK_ACTS, BulkQuestion } from "../components/bulk";
import { Icon } from "../components/icon";
import { Cell, Rows } from "../components/rows";
import type { BulkAct } from "../lib/bulk";
import { older, useList } from "../lib/list";
import { formatSearch, parseSearch, searchParams } from "../lib/search";
import type { Search } from "../lib/search";
import { number } from "../lib/time";
import { go, Link, setParams, useParam } from "../routes";
import { may, phaseWord, STATES } from "../words";

const TYPING_MS = 250;
const type = (q: string): void => setParams({ q }, { replace: true });

export default function Tasks(): ReactNode {
  const [q, setQ] = useParam("q");
  const search = parseSearch(q);
  return (
    <>
      <Head title="Tasks" />
      <div className="stack">
        <SearchBox value={q} onChange={type} fault={search.fault} />
        <StatePills search={search} onChange={(next) => setQ(formatSearch(next))} />
        {search.fault ? (
          <Empty icon="search" title="No matching tasks" /> // a mistyped filter must not select every task
        ) : (
          <TaskList
            key={q}
            search={search}
            empty={
              q ? (
                <Empty icon="search" title="No matching tasks">
                  <button type="button" onClick={() => go("/tasks")}>
                    Show all tasks
                  </button>
                </Empty>
              ) : (
                <Empty icon="list" title="No tasks yet" command={`onward submit countdown '{"seconds": 3}' --wait`}>
                  Submit a first one, from a shell or in the <Link to="/playground">Playground</Link>:
                </Empty>
              )
            }
          />
        )}
      </div>
    </>
  );
}

function SearchBox({
  value,
  onChange,
  fault,
}: {
  value: string;
  onChange: (value: string) => void;
  fault: string | null;
}): ReactNode {
  const [text, setText] = useState(value);
  const sent = useRef(value);
  useEffect(() => {
    if (value !== sent.current) setText((sent.current = value)); // the address was changed elsewhere on the page
  }, [value]);
  useEffect(() => {
    if (text === sent.current) return;
    const later = setTimeout(() => onChange((sent.current = text)), TYPING_MS);
    return () => clearTimeout(later);
  }, [text, onChange]);
  return (
    <div className="search" role="search">
      <Icon name="search" />
      <input
        type="search"
        aria-label="Search tasks"
        aria-describedby="search-help"
        placeholder="state:failed type:report queue:gpu session:s1 or any text"
        value={text}
        spellCheck={false}
        autoCapitalize="off"
        onChange={(event) => setText(event.target.value)}
        onKeyDown={(event) => event.key === "Escape" && event.currentTarget.blur()}
      />
      <span id="search-help" className={fault ? "fault" : "sr"}>
        {fault ??
          "Fields: state:failed, type:report, queue:gpu, session:s1; any other text is searched in id, type, payload and error"}
      </span>
    </div>
  );
}

function StatePills({ search, onChange }: { search: Search; onChange: (search: Search) => void }): ReactNode {
  const { now } = useLive();
  const counts = search.queue ? now?.queues[search.queue] : now?.states;
  const exact = !search.type && !search.session && !search.text;
  const toggle = (state: State): void => {
    const on = search.states.includes(state);
    onChange({ ...search, states: on ? search.states.filter((one) => one !== state) : [...search.states, state] });
  };
  return (
    <div className="pills" role="group" aria-label="States">
      {STATES.map((state) => {
        const count = exact ? (counts?.[state] ?? (now ? 0 : undefined)) : undefined;
        return (
          <button
            key={state}
            type="button"
            className="pill"
            aria-pressed={search.states.includes(state)}
            onClick={() => toggle(state)}
          >
            <span className={`dot-${phaseWord(state).tone}`}>
              <Icon name={phaseWord(state).icon} size={12} />
            </span>
            {phaseWord(state).label}
            {count !== undefined && <b>{number(count)}</b>}
          </button>
        );
      })}
    </div>
  );
}

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
  return (
    <>
      <Rows
        list={list}
        label="Tasks"
        what={["task", "tasks"]}
        kind="tasks"
        at={(task) => `/tasks/${encodeURIComponent(task.id)}`}
        keys={{ x: choose }}
        chosen={isChosen}
        empty={empty}
        head={
          <>
            <Cell head>
              <input
                type="checkbox"
                aria-label="Select all loaded tasks"
                checked={all || (chosen.size > 0 && chosen.size === rows.length)}
                onChange={(event) => {
                  setAll(false);
                  setChosen(event.target.checked ? new Map(rows.map((row) => [row.id, row])) : new Map());
                }}
              />
            </Cell>
            <Cell head>State</Cell>
            <Cell head>Task</Cell>
            <Cell head className="wide-only">
              Queue
            </Cell>
            <Cell head className="wide-only right">
              Attempt
            </Cell>
            <Cell head className="right">
              {" "}
              Duration
            </Cell>
            <Cell head className="right">
              Created
            </Cell>
          </>
        }
      >
        {(task) => <Cells task={task} chosen={isChosen(task)} choose={() => choose(task)} />}
      </Rows>
      {chosen.size > 0 && (
        <SelectionBar
          tasks={[...chosen.values()]}
          all={all}
          chooseAll={() => setAll(true)}
          canAll={!list.complete}
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
      <Cell className="wide-only clip faint">{task.queue === task.type ? "" : task.queue}</Cell>
      <Cell className="wide-only num right">
        {task.attempt > 1 || task.generation > 1 ? task.attempt : ""}
        {task.generation > 1 && <span className="faint"> (retry {task.generation - 1})</span>}
      </Cell>
      <Cell className="num right list-low">
        <Took task={task} />
      </Cell>
      <Cell className="num right faint list-high">
        <Ago at={task.created_at} />
      </Cell>
    </>
  );
}

function SelectionBar({
  tasks,
  all,
  canAll,
  chooseAll,
  ask,
  clear,
}: {
  tasks: readonly Task[];
  all: boolean;
  canAll: boolean;
  chooseAll: () => void;
  ask: (act: BulkAct) => void;
  clear: () => void;
}): ReactNode {
  return (
    <div className="bulk">
      <span className="grow">{all ? "All matching tasks selected" : `${number(tasks.length)} selected`}</span>
      <button type="button" disabled={!canAll || all} onClick={chooseAll}>
        Select all matching
      </button>
      {(Object.keys(BULK_ACTS) as BulkAct[]).map((act) => (
        <Act
          key={act}
          needs="operate"
          disabled={!all && !tasks.some((task) => may(task, act))}
          onClick={() => ask(act)}
        >
          {BULK_ACTS[act].label}
        </Act>
      ))}
      <button type="button" className="plain" aria-label="Clear the selection" onClick={clear}>
        <Icon name="cross" />
      </button>
    </div>
  );
}
