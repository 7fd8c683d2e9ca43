// A task's life as bars on one line of time: where it waited, who ran it, how that went.
import type { ReactNode } from "react";
import type { Stretch } from "../lib/life";
import { clock, span, useNow } from "../lib/time";
import { phaseWord } from "../words";

const MOST = 40;

export function Waterfall({ life }: { life: readonly Stretch[] }): ReactNode {
  const now = useNow();
  const shown = life.slice(-MOST);
  const first = shown[0];
  if (!first) return null;
  const start = first.from;
  const end = Math.max(...shown.map((one) => one.to ?? now), start + 1);
  const share = (at: number): number => ((at - start) / (end - start)) * 100;
  const generations = new Set(shown.map((one) => one.generation)).size > 1;
  return (
    <div>
      {life.length > MOST && <p className="faint small">The last {MOST} of {life.length} stretches.</p>}
      <ol className="waterfall">
        {shown.map((one, index) => {
          const to = one.to ?? now;
          const left = share(one.from);
          const width = Math.max(share(to) - left, 0.4);
          const name = one.attempt === null ? one.what : `attempt ${one.attempt}`;
          return (
            <li key={index}>
              <span className="wf-name clip" title={one.worker ?? undefined}>
                {name}
                {generations && <span className="faint"> ↻{one.generation}</span>}
              </span>
              <span className="wf-track">
                <span
                  className={`wf-bar wf-${one.tone} ${one.to === null ? "still" : ""} ${one.attempt === null ? "thin" : ""}`}
                  style={{ left: `${Math.min(left, 99.6)}%`, width: `${Math.min(width, 100 - Math.min(left, 99.6))}%` }}
                />
              </span>
              <span className="wf-time num">{span(to - one.from)}</span>
              <span className={`wf-end dot-${one.tone}`}>{one.to === null ? "now" : (one.end ?? "")}</span>
            </li>
          );
        })}
      </ol>
      <div className="wf-axis faint small num">
        <span>{clock(start)}</span>
        <span>{span(end - start)} in all</span>
        <span>{clock(end)}</span>
      </div>
    </div>
  );
}

/** Every run of it, newest first, with who and why. */
export function Attempts({ life }: { life: readonly Stretch[] }): ReactNode {
  const now = useNow();
  const runs = life.filter((one) => one.attempt !== null).reverse();
  return (
    <div className="scroll" tabIndex={0} role="region" aria-label="Attempts">
      <table>
        <thead>
          <tr>
            <th>Attempt</th>
            <th>Outcome</th>
            <th>Worker</th>
            <th className="num">Began</th>
            <th className="num">Took</th>
          </tr>
        </thead>
        <tbody>
          {runs.map((one) => (
            <tr key={`${one.generation}.${one.from}`}>
              <td>
                {one.attempt}
                {one.generation > 1 && <span className="faint"> ↻{one.generation}</span>}
              </td>
              <td>
                <span className={`badge tone-${one.tone}`}>{one.end ?? phaseWord("running").label}</span>
                {one.error && (
                  <div className="small">
                    <b>{one.error.kind}</b> {one.error.message}
                    {one.error.status !== undefined && <span className="faint"> (status {one.error.status})</span>}
                  </div>
                )}
              </td>
              <td className="mono">{one.worker}</td>
              <td className="num">{clock(one.from)}</td>
              <td className="num">{span((one.to ?? now) - one.from)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
