import type { ReactNode } from "react";
import type { Operation } from "../api/types";
import { Ago, Badge, Card, Empty, Head, Id, Loading, num, spoken, Table } from "../components/basics";
import { Progress, StopButton } from "../components/bulk";
import { ACTS, isUnderWay, searchOf, useOperations } from "../lib/operations";
import { number } from "../lib/time";
import { Link, to } from "../routes";

export default function Operations(): ReactNode {
  const operations = useOperations();
  return (
    <>
      <Head title="Operations" lead="Work on many tasks at once: what was done to which, by whom and how far it is." />
      <Loading from={operations}>
        {({ items, next }) =>
          items.length ? (
            <div className="stack">
              <Card className="flush">
                <Table
                  label="Operations"
                  className="cards"
                  columns={["State", "Action", "Tasks", "Progress", num("Started"), spoken("Stop")]}
                >
                  {items.map((one) => (
                    <Row key={one.id} operation={one} />
                  ))}
                </Table>
              </Card>
              {next && <p className="faint">The newest {items.length}.</p>}
            </div>
          ) : (
            <Empty icon="layers" title="No operations yet" command="onward task cancel --filter state=queued --dry-run">
              Select tasks in the <Link to="/tasks">list of tasks</Link> to cancel or retry them together, or use a
              filter:
            </Empty>
          )
        }
      </Loading>
    </>
  );
}

function Row({ operation }: { operation: Operation }): ReactNode {
  const { id, action, matched, done, failed, state, created_at, owner, rate, refused } = operation;
  const search = searchOf(operation);
  return (
    <tr>
      <td>
        <Badge phase={state ?? ""} />
      </td>
      <td>{ACTS[action].label}</td>
      <td>
        {search === null ? (
          <span className="faint">{number(matched)} named tasks</span>
        ) : (
          <Link to={to("/tasks", { q: search })} className="mono small">
            {search || "every task"}
          </Link>
        )}
        {rate !== undefined && <div className="faint small">{rate} per second</div>}
      </td>
      <td>
        <progress value={done + failed} max={Math.max(1, matched)} aria-label={`Progress of ${id}`} />
        <div className="small">
          <Progress operation={operation} />
        </div>
        {(refused ?? []).length > 0 && (
          <details className="small">
            <summary>Why some were refused</summary>
            <ul className="flaws">
              {refused?.map((one) => (
                <li key={one.id}>
                  <Id id={one.id} to={`/tasks/${encodeURIComponent(one.id)}`} /> {one.reason}
                </li>
              ))}
            </ul>
          </details>
        )}
      </td>
      <td className="num" data-label="started">
        {created_at !== undefined && <Ago at={created_at} />}
        {owner && <div className="faint small mono">{owner}</div>}
      </td>
      <td className="right act-cell">{isUnderWay(operation) && <StopButton id={id!} owner={owner ?? null} />}</td>
    </tr>
  );
}
