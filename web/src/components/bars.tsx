// Bars on one line of time: the stretches of a task's life, or the steps of a run.
import { useState } from "react";
import type { ReactNode } from "react";
import { clock, span, useNow } from "../lib/time";
import type { Tone } from "../words";
import { Icon } from "./icon";

export interface Bar {
  key: string | number;
  name: ReactNode;
  title?: string | undefined;
  from: number;
  to: number | null; // null: still
  tone: Tone;
  thin?: boolean; // it only waited
  end: ReactNode; // how it went
  choose?: () => void;
  chosen?: boolean;
  depth?: number; // within the bar above it
  open?: boolean; // what is within it is shown
  toggle?: () => void;
}

const MOST = 60;

export function Bars({
  bars,
  empty,
  className = "",
}: {
  bars: readonly Bar[];
  empty: string;
  className?: string;
}): ReactNode {
  const now = useNow();
  const [all, setAll] = useState(false);
  const shown = all ? bars : bars.slice(-MOST);
  const first = shown[0];
  if (!first) return <p className="faint">{empty}</p>;
  const endOf = (bar: Bar): number => bar.to ?? Math.max(now, bar.from);
  const start = Math.min(...shown.map((bar) => bar.from));
  const end = Math.max(...shown.map(endOf), start + 1);
  const share = (at: number): number => ((at - start) / (end - start)) * 100;
  return (
    <div>
      {bars.length > shown.length && (
        <button type="button" className="plain" onClick={() => setAll(true)}>
          Show {bars.length - shown.length} earlier
        </button>
      )}
      <ol className={`waterfall ${className}`}>
        {shown.map((bar) => {
          const left = Math.min(share(bar.from), 99.4);
          const width = Math.min(Math.max(share(endOf(bar)) - left, 0.6), 100 - left);
          return (
            <li key={bar.key} className={bar.chosen ? "at" : ""}>
              <span className="wf-head" style={{ paddingLeft: (bar.depth ?? 0) * 16 }}>
                {bar.toggle && (
                  <button
                    type="button"
                    className="plain wf-fold"
                    aria-expanded={bar.open}
                    aria-label={`${bar.open ? "Hide" : "Show"} what is in ${bar.title ?? bar.key}`}
                    onClick={bar.toggle}
                  >
                    <Icon name={bar.open ? "down" : "right"} size={12} />
                  </button>
                )}
                {bar.choose ? (
                  <button type="button" className="plain wf-name clip" title={bar.title} onClick={bar.choose}>
                    {bar.name}
                  </button>
                ) : (
                  <span className="wf-name clip" title={bar.title}>
                    {bar.name}
                  </span>
                )}
              </span>
              <span className="wf-track">
                <span
                  className={`wf-bar wf-${bar.tone} ${bar.to === null ? "still" : ""} ${bar.thin ? "thin" : ""}`}
                  style={{ left: `${left}%`, width: `${width}%` }}
                />
              </span>
              <span className="wf-time num">{span(endOf(bar) - bar.from)}</span>
              <span className={`wf-end clip dot-${bar.tone}`}>{bar.to === null ? "now" : bar.end}</span>
            </li>
          );
        })}
      </ol>
      <div className="wf-axis faint small num">
        <span>{clock(start)}</span>
        <span>{span(end - start)} total</span>
        <span>{clock(end)}</span>
      </div>
    </div>
  );
}
