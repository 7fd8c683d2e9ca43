import { useWindowVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useRef, useState } from "react";
import type { ReactNode } from "react";
import { useLive } from "../api/live";
import type { State, Task } from "../api/types";
import { Ago, Badge, Empty, Head, ProblemBox, Skeleton, Took } from "../components/basics";
import { Icon } from "../components/icon";
import { matching, useBulk } from "../lib/bulk";
import type { BulkAct, BulkProgress } from "../lib/bulk";
import { useRowKeys } from "../lib/keys";
import { formatSearch, parseSearch } from "../lib/search";
import type { Search } from "../lib/search";
import { useTaskList } from "../lib/tasklist";
import { number } from "../lib/time";
import { go, Link, useParam } from "../routes";
import { may, phaseWord, STATES } from "../words";

const TYPING_MS = 250;

export default function Tasks(): ReactNode {
  const [q, setQ] = useParam("q");
  const search = parseSearch(q);
  return (
    <>
      <Head title="Tasks" />
      <div className="stack">
        <SearchBox value={q} onChange={setQ} fault={search.fault} />
        <StatePills search={search} onChange={(next) => setQ(formatSearch(next))} />
        <List key={q} search={search} q={q} />
      </div>
    </>
  );
}

function SearchBox({ value, onChange, fault }: { value: string; onChange: (value: string) => void; fault: string | null }): ReactNode {
  const [text, setText] = useState(value);
  const sent = useRef(value);
  useEffect(() => {
    if (value !== sent.current) setText((sent.current = value)); // the address was changed by somebody else
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
        {fault ?? "Words like state:failed, type:report, queue:gpu, session:s1; anything else is looked for in id, type, payload and error"}
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
          <button key={state} type="button" className="pill" aria-pressed={search.states.includes(state)} onClick={() => toggle(state)}>
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

function List({ search, q }: { search: Search; q: string }): ReactNode {
  const box = useRef<HTMLDivElement>(null);
  const shown = useRef<{ top: boolean; ids: readonly string[] }>({ top: true, ids: [] });
  const list = useTaskList(search, () => shown.current);
  const [chosen, setChosen] = useState<ReadonlyMap<string, Task>>(new Map());
  const [all, setAll] = useState(false);
  const bulk = useBulk();
  const { rows } = list;
  const virtual = useWindowVirtualizer({
    count: rows.length,
    estimateSize: () => (innerWidth < 800 ? 62 : 41),
    overscan: 12,
    getItemKey: (index) => rows[index]!.id,
    scrollMargin: box.current?.offsetTop ?? 0,
  });
  const items = virtual.getVirtualItems();
  shown.current = { top: scrollY < 400, ids: items.map((item) => rows[item.index]!.id) };
  const last = items.at(-1)?.index ?? 0;
  useEffect(() => {
    if (last > rows.length - 60) list.more();
  }, [last, rows.length]);

  const choose = (task: Task): void => {
    const next = new Map(chosen);
    if (!next.delete(task.id)) next.set(task.id, task);
    setAll(false);
    setChosen(next);
  };
  const [at] = useRowKeys(rows.length, (index) => go(`/tasks/${encodeURIComponent(rows[index]!.id)}`), { x: (index) => choose(rows[index]!) });
  useEffect(() => {
    if (at >= 0) virtual.scrollToIndex(at, { align: "auto" });
  }, [at]);

  const start = (act: BulkAct): void => {
    const signal = bulk.signal();
    bulk.start(act, all ? matching(search, signal) : [...chosen.values()]);
    setChosen(new Map());
    setAll(false);
  };

  if (list.error && !list.loaded) return <ProblemBox error={list.error} again={list.again} />;
  if (!list.loaded) return <Skeleton rows={10} />;
  if (!rows.length)
    return q ? (
      <Empty icon="search" title="No task is like that">
        <button type="button" onClick={() => go("/tasks")}>
          Show all tasks
        </button>
      </Empty>
    ) : (
      <Empty icon="list" title="No tasks yet" command={`onward submit countdown '{"seconds": 3}' --wait`}>
        Hand in a first one, here or in the <Link to="/playground">Playground</Link>:
      </Empty>
    );
  return (
    <>
      {list.fresh > 0 && (
        <button
          type="button"
          className="primary fresh"
          onClick={() => {
            scrollTo(0, 0);
            list.toTop();
          }}
        >
          {list.fresh >= 100 ? "100+" : list.fresh} new
        </button>
      )}
      <div className="card flush tasks" role="table" aria-label="Tasks" aria-rowcount={list.complete ? rows.length : -1}>
        <div className="task-row task-head" role="row">
          <span role="columnheader">
            <input
              type="checkbox"
              aria-label="Select all that are loaded"
              checked={all || (chosen.size > 0 && chosen.size === rows.length)}
              onChange={(event) => {
                setAll(false);
                setChosen(event.target.checked ? new Map(rows.map((row) => [row.id, row])) : new Map());
              }}
            />
          </span>
          <span role="columnheader">State</span>
          <span role="columnheader">Task</span>
          <span role="columnheader" className="wide-only">
            Queue
          </span>
          <span role="columnheader" className="wide-only right">
            Attempt
          </span>
          <span role="columnheader" className="right">
            Took
          </span>
          <span role="columnheader" className="right">
            Created
          </span>
        </div>
        <div ref={box} role="rowgroup" className="virtual" style={{ height: virtual.getTotalSize() }}>
          {items.map((item) => {
            const task = rows[item.index]!;
            return (
              <Row
                key={task.id}
                task={task}
                index={item.index}
                at={item.index === at}
                chosen={all || chosen.has(task.id)}
                choose={() => choose(task)}
                top={item.start - virtual.options.scrollMargin}
              />
            );
          })}
        </div>
      </div>
      <p className="faint small" aria-live="polite">
        {list.complete ? `${number(rows.length)} ${rows.length === 1 ? "task" : "tasks"}` : `${number(rows.length)} loaded, more as you scroll`}
      </p>
      {(chosen.size > 0 || bulk.progress) && (
        <BulkBar
          tasks={[...chosen.values()]}
          all={all}
          progress={bulk.progress}
          chooseAll={() => setAll(true)}
          canAll={!list.complete}
          start={start}
          stop={bulk.stop}
          clear={() => {
            bulk.clear();
            setChosen(new Map());
            setAll(false);
          }}
        />
      )}
    </>
  );
}

interface RowProps {
  task: Task;
  index: number;
  at: boolean;
  chosen: boolean;
  choose: () => void;
  top: number;
}

function Row({ task, index, at, chosen, choose, top }: RowProps): ReactNode {
  return (
    <div className={`task-row ${at ? "at" : ""}`} role="row" aria-rowindex={index + 1} aria-selected={chosen} style={{ transform: `translateY(${top}px)` }}>
      <span role="cell">
        <input type="checkbox" aria-label={`Select ${task.type} ${task.id}`} checked={chosen} onChange={choose} />
      </span>
      <span role="cell">
        <Badge phase={task.phase} progress={task.state === "running" ? task.progress : null} />
      </span>
      <span role="cell" className="task-what">
        <Link to={`/tasks/${encodeURIComponent(task.id)}`} className="clip">
          {task.type} <span className="mono faint">{task.id.slice(-12)}</span>
        </Link>
        {task.error && task.state !== "succeeded" && <span className="clip faint small">{task.error.message}</span>}
      </span>
      <span role="cell" className="wide-only clip faint">
        {task.queue === task.type ? "" : task.queue}
      </span>
      <span role="cell" className="wide-only num right">
        {task.attempt > 1 || task.generation > 1 ? task.attempt : ""}
        {task.generation > 1 && <span className="faint"> ↻{task.generation}</span>}
      </span>
      <span role="cell" className="num right task-took">
        <Took task={task} />
      </span>
      <span role="cell" className="num right faint task-created">
        <Ago at={task.created_at} />
      </span>
    </div>
  );
}

interface BulkProps {
  tasks: readonly Task[];
  all: boolean;
  canAll: boolean;
  progress: BulkProgress | null;
  chooseAll: () => void;
  start: (act: BulkAct) => void;
  stop: () => void;
  clear: () => void;
}

const ACTS: readonly (readonly [BulkAct, string, string])[] = [
  ["cancel", "Cancel", "canceled"],
  ["retry", "Retry", "retried"],
];

function BulkBar({ tasks, all, canAll, progress, chooseAll, start, stop, clear }: BulkProps): ReactNode {
  const [sure, setSure] = useState<BulkAct | null>(null);
  if (progress) {
    const done = ACTS.find(([act]) => act === progress.act)![2];
    const handled = progress.done + progress.refused;
    return (
      <div className="bulk" role="status">
        <progress value={handled} max={progress.total ?? Math.max(1, handled)} aria-label="Progress" />
        <span className="grow">
          {number(progress.done)} {progress.total !== null && `of ${number(progress.total)}`} {done}
          {progress.refused > 0 && `, ${number(progress.refused)} refused`}
        </span>
        <button type="button" onClick={progress.running ? stop : clear}>
          {progress.running ? "Stop" : "Done"}
        </button>
      </div>
    );
  }
  const what = all ? "All that match" : `${number(tasks.length)} selected`;
  return (
    <div className="bulk">
      <span className="grow">{sure ? `${ACTS.find(([act]) => act === sure)![1]} ${all ? "all that match" : number(tasks.filter((task) => may(task, sure)).length)}?` : what}</span>
      {sure ? (
        <>
          <button type="button" className="danger" onClick={() => (setSure(null), start(sure))} autoFocus>
            Yes, {sure}
          </button>
          <button type="button" onClick={() => setSure(null)}>
            No
          </button>
        </>
      ) : (
        <>
          {canAll && !all && (
            <button type="button" onClick={chooseAll}>
              All that match
            </button>
          )}
          {ACTS.map(([act, label]) => (
            <button key={act} type="button" disabled={!all && !tasks.some((task) => may(task, act))} onClick={() => setSure(act)}>
              {label}
            </button>
          ))}
          <button type="button" className="plain" aria-label="Clear the selection" onClick={clear}>
            <Icon name="cross" />
          </button>
        </>
      )}
    </div>
  );
}
