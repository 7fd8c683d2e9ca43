import { useState } from "react";
import type { ReactNode } from "react";
import { useData } from "../api/data";
import type { Batch as BatchShape, State } from "../api/types";
import { Act } from "../components/act";
import { Ago, Card, Copy, Detail, Empty, Facts, Head, Id, Mark } from "../components/basics";
import { BulkQuestion } from "../components/bulk";
import { Icon } from "../components/icon";
import { TaskList } from "../components/tasklist";
import type { BulkAct } from "../lib/operations";
import { parseSearch, tasksAt } from "../lib/search";
import { number, span } from "../lib/time";
import { useTitle } from "../lib/title";
import type { ViewProps } from "../pages";
import { Link } from "../routes";
import { phaseWord, STATES } from "../words";

export default function Batch({ params }: ViewProps): ReactNode {
  const id = params.id!;
  const batch = useData<BatchShape>(`/api/v2/batches/${encodeURIComponent(id)}`);
  return (
    <Detail from={batch} same={(one) => one.id === id} title="Batch" back={["/tasks", "All tasks"]}>
      {(found) => <Shown batch={found} />}
    </Detail>
  );
}

function Shown({ batch }: { batch: BatchShape }): ReactNode {
  const { id, name, total, done, states, created_at, finished_at, on_complete, owner } = batch;
  useTitle(`${name ?? "Batch"} ${number(done)} of ${number(total)}`);
  const [asking, setAsking] = useState<BulkAct | null>(null);
  const search = { ...parseSearch(""), batch: id };
  const failed = (states.failed ?? 0) + (states.dead ?? 0);
  return (
    <>
      <Head
        title={
          <>
            {name ?? "Batch"} <Standing batch={batch} />
          </>
        }
        lead={
          <span className="mono">
            {id} <Copy text={id} label="Copy id" />
          </span>
        }
      >
        {done < total && (
          <Act needs="operate" onClick={() => setAsking("cancel")}>
            <Icon name="stop" /> Cancel the rest
          </Act>
        )}
        {failed > 0 && (
          <Act needs="operate" className="primary" onClick={() => setAsking("retry")}>
            <Icon name="redo" /> Retry what failed
          </Act>
        )}
        <Link to={`/tasks/${encodeURIComponent(id)}`} className="button">
          Events
        </Link>
      </Head>
      <div className="stack">
        <Card>
          <div className="stack">
            <div className="row">
              <progress className="grow" value={done} max={Math.max(1, total)} aria-label="Tasks that are over" />
              <b>
                {number(done)} of {number(total)}
              </b>
            </div>
            <div className="big">
              <Facts
                facts={STATES.map(
                  (state) => [phaseWord(state).label, <Count key={state} batch={batch} state={state} />] as const,
                )}
              />
            </div>
            <Facts
              facts={[
                ["created", <Ago at={created_at} />],
                ["finished", finished_at !== null && <Ago at={finished_at} />],
                ["duration", finished_at !== null && span(finished_at - created_at)],
                [
                  "submitted at its end",
                  on_complete && <Id id={on_complete} to={`/tasks/${encodeURIComponent(on_complete)}`} />,
                ],
                ["owner", owner && <span className="mono small">{owner}</span>],
              ]}
            />
          </div>
        </Card>
        <h2>Tasks</h2>
        <TaskList search={search} empty={<Empty icon="list" title="No tasks in this batch" />} />
      </div>
      {asking && (
        <BulkQuestion
          act={asking}
          search={asking === "retry" ? { ...search, states: ["failed", "dead"] } : search}
          tasks={[]}
          onClose={() => setAsking(null)}
          after={() => setAsking(null)}
        />
      )}
    </>
  );
}

function Count({ batch, state }: { batch: BatchShape; state: State }): ReactNode {
  const count = batch.states[state] ?? 0;
  return count ? (
    <Link to={tasksAt({ batch: batch.id, states: [state] })}>{number(count)}</Link>
  ) : (
    <span className="faint">0</span>
  );
}

/** Over once, for good: a later retry of one of its tasks changes the counts alone. */
function Standing({ batch: { finished_at, done, total, states } }: { batch: BatchShape }): ReactNode {
  if (finished_at === null)
    return done < total ? (
      <Mark tone="busy" icon="play">
        running
      </Mark>
    ) : (
      <Mark tone="wait" icon="pause">
        open: more tasks may join
      </Mark>
    );
  const failed = (states.failed ?? 0) + (states.dead ?? 0);
  return failed ? (
    <Mark tone="bad" icon="cross">
      finished, {number(failed)} failed
    </Mark>
  ) : (
    <Mark tone="good" icon="check">
      finished
    </Mark>
  );
}
