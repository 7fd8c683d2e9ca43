// Everything by its name: pages, actions, and a task by a piece of its id. And the list of keys.
import { useState } from "react";
import type { ReactNode } from "react";
import { get, url } from "../api/client";
import { never, useData, useTyped } from "../api/data";
import { setPaused } from "../api/live";
import type { Flow, Page, Queue, Schedule, Task, Worker } from "../api/types";
import { flowAt } from "../lib/run";
import { scheduleAt } from "../lib/schedule";
import { queueAt, sessionAt } from "../lib/search";
import { PAGES } from "../pages";
import { go, to } from "../routes";
import { phaseWord, STATES } from "../words";
import { Badge } from "./basics";
import { Dialog } from "./dialog";
import { Icon } from "./icon";
import type { IconName } from "./icon";

interface Choice {
  name: string;
  icon?: IconName;
  task?: Task;
  act: () => void;
}

const PAUSE_MS = 150; // after the last key

interface Named {
  name: string;
  id?: string;
}

/** Whatever has a name and a page, read when the palette is opened. */
function useNamed(): Choice[] {
  const flows = useData<Page<Flow>>("/api/v2/flows", never);
  const schedules = useData<Page<Schedule>>("/api/v2/schedules?limit=1000", never);
  const queues = useData<Page<Queue>>("/api/v2/queues", never);
  const workers = useData<Page<Worker>>("/api/v2/workers", never);
  const named = (what: string, icon: IconName, items: readonly Named[] | undefined, at: (one: Named) => string) =>
    (items ?? []).map((one) => ({ name: `${what}: ${one.name}`, icon, act: () => go(at(one)) }));
  return [
    ...named("Flow", "graph", flows.data?.items, (one) => flowAt(one.name, one.id!)),
    ...named("Schedule", "calendar", schedules.data?.items, (one) => scheduleAt(one.name)),
    ...named("Queue", "layers", queues.data?.items, (one) => queueAt(one.name)),
    ...named(
      "Worker",
      "cpu",
      workers.data?.items.map(({ id }) => ({ name: id })),
      (one) => `/workers/${encodeURIComponent(one.name)}`,
    ),
  ];
}

const NAMED = 8; // of each search, so that tasks are still seen

const FIXED: readonly Choice[] = [
  ...PAGES.flatMap((page) => (page.nav ? [{ name: page.title, icon: page.nav.icon, act: () => go(page.path) }] : [])),
  ...STATES.map((state) => ({
    name: `Tasks: ${phaseWord(state).label}`,
    icon: "list" as const,
    act: () => go(to("/tasks", { q: `state:${state}` })),
  })),
  { name: "Submit a task", icon: "flask", act: () => go("/playground?door=native") },
  { name: "Batches", icon: "layers", act: () => go(to("/tasks", { q: "queue:onward:batches" })) },
  { name: "New limit", icon: "gauge", act: () => go("/limits?new=1") },
  { name: "New flow", icon: "graph", act: () => go("/flows?new=1") },
  { name: "New schedule", icon: "calendar", act: () => go("/schedules?new=1") },
  { name: "Pause or resume a queue", icon: "layers", act: () => go("/queues") },
  { name: "Retry dead letters", icon: "redo", act: () => go("/dead-letters") },
  { name: "Pause live updates", icon: "pause", act: () => setPaused(true) },
  { name: "Resume live updates", icon: "play", act: () => setPaused(false) },
];

export function Palette({ onClose }: { onClose: () => void }): ReactNode {
  const [text, setText] = useState("");
  const [at, setAt] = useState(""); // by name: what comes in later must not slip under the key
  const wanted = text.trim().toLowerCase();
  const asked = wanted.length < 3 ? null : wanted;
  const found = useTyped("palette", asked, PAUSE_MS, (q, signal) =>
    get<Page<Task>>(url("/api/v2/tasks", { q, limit: 6, brief: true }), signal),
  );
  const tasks = asked === null || found.stale ? [] : (found.data?.items ?? []);
  const fits = (choice: Choice): boolean => choice.name.toLowerCase().includes(wanted);
  const named = useNamed();
  const choices: Choice[] = [
    ...FIXED.filter(fits),
    ...(wanted ? named.filter(fits).slice(0, NAMED) : []),
    ...(wanted
      ? [
          {
            name: `Search tasks for “${text.trim()}”`,
            icon: "search" as const,
            act: () => go(to("/tasks", { q: text.trim() })),
          },
          { name: `Session “${text.trim()}”`, icon: "people" as const, act: () => go(sessionAt(text.trim())) },
        ]
      : []),
    ...tasks.map((task) => ({ name: `${task.type}  ${task.id}`, task, act: () => go(`/tasks/${task.id}`) })),
  ];
  const row = Math.max(
    0,
    choices.findIndex((choice) => choice.name === at),
  );
  const choose = (choice: Choice | undefined): void => {
    if (!choice) return;
    onClose();
    choice.act();
  };
  return (
    <Dialog title="Go to" onClose={onClose}>
      <input
        role="combobox"
        aria-expanded="true"
        aria-controls="choices"
        aria-activedescendant={`choice-${row}`}
        aria-label="Page, action or task"
        placeholder="Page, action, flow, queue, schedule, worker or part of a task"
        value={text}
        onChange={(event) => {
          setText(event.target.value);
          setAt("");
        }}
        onKeyDown={(event) => {
          if (event.key === "ArrowDown") setAt(choices[Math.min(row + 1, choices.length - 1)]?.name ?? "");
          else if (event.key === "ArrowUp") setAt(choices[Math.max(row - 1, 0)]?.name ?? "");
          else if (event.key === "Enter") choose(choices[row]);
          else return;
          event.preventDefault();
        }}
      />
      <ul id="choices" role="listbox" aria-label="Choices" className="choices">
        {choices.map((choice, index) => (
          <li
            key={choice.name}
            id={`choice-${index}`}
            role="option"
            aria-selected={index === row}
            onClick={() => choose(choice)}
            onMouseMove={() => setAt(choice.name)}
          >
            {choice.icon && <Icon name={choice.icon} />}
            <span className="grow clip">{choice.name}</span>
            {choice.task && <Badge phase={choice.task.phase} />}
          </li>
        ))}
      </ul>
    </Dialog>
  );
}

const KEYS: readonly (readonly [string, string])[] = [
  ["/", "search"],
  ["j  k", "next, previous row"],
  ["Enter", "open the row"],
  ["x", "select the row"],
  ["a  r", "approve, reject an approval; acknowledge a notice"],
  ["[  ]", "previous, next step (in a run)"],
  ["Ctrl K", "go to a page, an action or a task"],
  ["?", "this list"],
  ["Esc", "close"],
  ...PAGES.flatMap((page) => (page.nav ? [[`g ${page.nav.key}`, page.title.toLowerCase()] as const] : [])),
];

export function Help({ onClose }: { onClose: () => void }): ReactNode {
  return (
    <Dialog title="Keys" onClose={onClose}>
      <dl className="keys">
        {KEYS.map(([key, does]) => (
          <div key={key}>
            <dt>
              {key.split(/\s+/).map((part) => (
                <kbd key={part}>{part}</kbd>
              ))}
            </dt>
            <dd>{does}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
