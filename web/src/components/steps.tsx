// A run's steps on one line of time; each leads to its node.
import { useState } from "react";
import type { ReactNode } from "react";
import type { Step } from "../lib/run";
import { clock, span, useNow } from "../lib/time";
import { atIt, NODES } from "../words";

const MOST = 60;

export function StepLine({ steps, over, chosen, choose }: { steps: readonly Step[]; over: boolean; chosen: string; choose: (node: string) => void }): ReactNode {
  const now = useNow();
  const [all, setAll] = useState(false);
  const shown = all ? steps : steps.slice(-MOST);
  const first = shown[0];
  if (!first) return <p className="faint">It has made no step yet.</p>;
  const start = first.from;
  const endOf = (step: Step): number => step.to ?? (over ? step.from : Math.max(now, step.from));
  const end = Math.max(...shown.map(endOf), start + 1);
  const share = (at: number): number => ((at - start) / (end - start)) * 100;
  return (
    <div>
      {steps.length > shown.length && (
        <button type="button" className="plain" onClick={() => setAll(true)}>
          {steps.length - shown.length} earlier steps
        </button>
      )}
      <ol className="waterfall steps">
        {shown.map((step) => {
          const left = Math.min(share(step.from), 99.4);
          const width = Math.min(Math.max(share(endOf(step)) - left, 0.6), 100 - left);
          const word = NODES[step.status ?? (over ? "canceled" : atIt(step.kind))];
          return (
            <li key={step.seq} className={step.node === chosen ? "at" : ""}>
              <button type="button" className="plain wf-name clip" title={`${step.node}: ${word.label}`} onClick={() => choose(step.node)}>
                {step.node}
              </button>
              <span className="wf-track">
                <span className={`wf-bar wf-${word.tone} ${step.to === null && !over ? "still" : ""}`} style={{ left: `${left}%`, width: `${width}%` }} />
              </span>
              <span className="wf-time num">{span(endOf(step) - step.from)}</span>
              <span className={`wf-end clip dot-${word.tone}`}>
                {step.to === null && !over ? "now" : word.label}
                {step.action && step.action !== "default" && <span className="faint"> → {step.action}</span>}
              </span>
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
