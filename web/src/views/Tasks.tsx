import { useMemo } from "react";
import type { ReactNode } from "react";
import { useLive } from "../api/live";
import type { State } from "../api/types";
import { Empty, Head } from "../components/basics";
import { Icon } from "../components/icon";
import { SavedViews } from "../components/savedviews";
import { SearchBox } from "../components/searchbox";
import { TaskList } from "../components/tasklist";
import { batchAt, formatSearch, isCounted, parseSearch } from "../lib/search";
import type { Search } from "../lib/search";
import { number } from "../lib/time";
import { go, Link, setParams, useParam } from "../routes";
import { phaseWord, STATES } from "../words";

const type = (q: string): void => setParams({ q }, { replace: true });

export default function Tasks(): ReactNode {
  const [q, setQ] = useParam("q");
  const search = useMemo(() => parseSearch(q), [q]);
  return (
    <>
      <Head title="Tasks" />
      <div className="stack">
        <SearchBox value={q} onChange={type} fault={search.fault} />
        <StatePills search={search} onChange={(next) => setQ(formatSearch(next))} />
        {search.batch && !search.fault && (
          <p>
            <Link to={batchAt(search.batch)}>Show the batch and its progress</Link>
          </p>
        )}
        {/* Under the pills: they must not move away while one of them is clicked. */}
        <SavedViews q={search.fault ? "" : q} />
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

function StatePills({ search, onChange }: { search: Search; onChange: (search: Search) => void }): ReactNode {
  const { now } = useLive();
  const counts = search.queue ? now?.queues[search.queue] : now?.states;
  const exact = isCounted(search);
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
