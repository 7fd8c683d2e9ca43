// The timeline of a run, down to the calls that its steps made and the attempts of each.
import { useState } from "react";
import type { ReactNode } from "react";
import type { Run } from "../api/types";
import { isOver } from "../lib/run";
import type { Step } from "../lib/run";
import { callsBySteps } from "../lib/waterfall";
import type { Call } from "../lib/waterfall";
import { Link } from "../routes";
import { atIt, NODES } from "../words";
import { Bars } from "./bars";
import type { Bar } from "./bars";

export function RunTimeline({
  run,
  steps,
  chosen,
  choose,
}: {
  run: Run;
  steps: readonly Step[];
  chosen: (step: Step) => boolean;
  choose: (seq: number) => void;
}): ReactNode {
  const [open, setOpen] = useState<ReadonlySet<string>>(new Set());
  const over = isOver(run);
  const calls = callsBySteps(steps, run.node_runs, run.id);
  const toggle = (key: string): void => {
    const next = new Set(open);
    if (!next.delete(key)) next.add(key);
    setOpen(next);
  };
  const foldable = [...calls].flatMap(([seq, some]) => [`${seq}`, ...some.map((call) => `${seq} ${call.id}`)]);
  const all = foldable.length > 0 && foldable.every((key) => open.has(key));
  const bars = steps.flatMap((step) => {
    const mine = calls.get(step.seq) ?? [];
    const key = `${step.seq}`;
    const bar: Bar = {
      ...barOf(step, over),
      chosen: chosen(step),
      choose: () => choose(step.seq),
      ...(mine.length && { open: open.has(key), toggle: () => toggle(key) }),
    };
    return open.has(key) ? [bar, ...mine.flatMap((call, index) => callBars(call, index, step, open, toggle))] : [bar];
  });
  return (
    <>
      {foldable.length > 0 && (
        <p className="timeline-acts">
          <button type="button" className="plain" onClick={() => setOpen(all ? new Set() : new Set(foldable))}>
            {all ? "Hide calls" : "Show calls and attempts"}
          </button>
        </p>
      )}
      <Bars className="steps" bars={bars} empty="No steps yet" />
    </>
  );
}

function callBars(
  call: Call,
  index: number,
  step: Step,
  open: ReadonlySet<string>,
  toggle: (key: string) => void,
): Bar[] {
  const key = `${step.seq} ${call.id}`;
  const word = NODES[call.status];
  const single = call.attempts.length === 1;
  const bar: Bar = {
    key,
    depth: 1,
    name: <Link to={`/tasks/${encodeURIComponent(call.id)}`}>call {index + 1}</Link>,
    title: `${step.node}, call ${index + 1}: ${word.label}`,
    from: call.from,
    to: call.to,
    tone: word.tone,
    end: single ? word.label : `${word.label}, ${call.attempts.length} attempts`,
    ...(!single && { open: open.has(key), toggle: () => toggle(key) }),
  };
  if (single || !open.has(key)) return [bar];
  return [
    bar,
    ...call.attempts.map((attempt): Bar => {
      const one = NODES[attempt.status];
      return {
        key: attempt.id,
        depth: 2,
        name: `attempt ${attempt.attempt_no}`,
        title: attempt.error_text || `${attempt.worker_id}: ${one.label}`,
        from: attempt.started_at ?? call.from,
        to: attempt.finished_at,
        tone: one.tone,
        thin: true,
        end: one.label,
      };
    }),
  ];
}

function barOf(step: Step, over: boolean): Bar {
  const word = NODES[step.status ?? (over ? "canceled" : atIt(step.kind))];
  return {
    key: step.seq,
    name: step.node,
    title: `${step.node}: ${word.label}`,
    from: step.from,
    to: step.to ?? (over ? step.from : null),
    tone: word.tone,
    end: (
      <>
        {word.label}
        {step.action && step.action !== "default" && <span className="faint"> → {step.action}</span>}
      </>
    ),
  };
}
