// Every run of a task, newest first: who, why, where in its code, and what differs from the one before.
import type { ReactNode } from "react";
import type { LogRecord } from "../api/types";
import { differences } from "../lib/attempts";
import type { Stretch } from "../lib/life";
import { linesOf } from "../lib/logs";
import { clock, span, useNow } from "../lib/time";
import { phaseWord } from "../words";
import { Mark, num, Table } from "./basics";

export function Attempts({ life, lines }: { life: readonly Stretch[]; lines: readonly LogRecord[] }): ReactNode {
  const now = useNow();
  const runs = life.filter((one) => one.attempt !== null);
  return (
    <Table
      label="Attempts"
      className="cards"
      columns={["Attempt", "Outcome", "Worker", num("Started", true), num("Duration")]}
    >
      {runs
        .map((one, index) => ({ one, before: runs[index - 1] }))
        .reverse()
        .map(({ one, before }) => (
          <tr key={`${one.generation}.${one.from}`}>
            <td data-label="attempt">
              {one.attempt}
              {one.generation > 1 && <span className="faint"> (retry {one.generation - 1})</span>}
            </td>
            <td>
              <Mark tone={one.tone}>{one.end ?? phaseWord("running").label}</Mark>
              {one.error && (
                <div className="small clamp">
                  <b>{one.error.kind}</b> {one.error.message}
                  {one.error.status !== undefined && <span className="faint"> (status {one.error.status})</span>}
                </div>
              )}
              <Traceback lines={linesOf(lines, one, runs)} attempt={one.attempt!} />
              {before && one.to !== null && <Differences before={before} after={one} />}
            </td>
            <td className="mono" data-label="worker">
              {one.worker}
            </td>
            <td className="num wide-only">{clock(one.from)}</td>
            <td className="num" data-label="duration">
              {span((one.to ?? now) - one.from)}
            </td>
          </tr>
        ))}
    </Table>
  );
}

function Traceback({ lines, attempt }: { lines: readonly LogRecord[]; attempt: number }): ReactNode {
  const text = lines.findLast((line) => line.traceback)?.traceback;
  if (!text) return null;
  return (
    <details className="small">
      <summary>Traceback</summary>
      <pre className="traceback" tabIndex={0} role="region" aria-label={`Traceback of attempt ${attempt}`}>
        {text}
      </pre>
    </details>
  );
}

function Differences({ before, after }: { before: Stretch; after: Stretch }): ReactNode {
  const found = differences(before, after);
  if (!found.length) return <p className="faint small">As attempt {before.attempt}: same worker, outcome and error</p>;
  return (
    <details className="small">
      <summary>
        Differs from attempt {before.attempt}: {found.map((one) => one.what).join(", ")}
      </summary>
      <ul className="stack-tight">
        {found.map((one) => (
          <li key={one.what}>
            <b>{one.what}</b> <del className="clamp">{one.before}</del> <ins className="clamp">{one.after}</ins>
          </li>
        ))}
      </ul>
    </details>
  );
}
