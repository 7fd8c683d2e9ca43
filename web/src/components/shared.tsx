// A run's shared state as it was at any step: before and after it, with what changed in between.
import type { ReactNode } from "react";
import { url } from "../api/client";
import { useData } from "../api/data";
import type { Run, SharedState } from "../api/types";
import { useKeys } from "../lib/keys";
import { isOver, ofRun, ownShared } from "../lib/run";
import type { Step } from "../lib/run";
import { Loading, Mark, Notice } from "./basics";
import { Icon } from "./icon";
import { Json } from "./json";

/** `at` null: as it is now, or was at the end. 0: what the run began with. */
export function SharedAt({
  run,
  steps,
  at,
  choose,
}: {
  run: Run;
  steps: readonly Step[];
  at: number | null;
  choose: (seq: number | null) => void;
}): ReactNode {
  const last = steps.at(-1)?.seq ?? 0;
  const to = (seq: number): void => choose(seq > last ? null : Math.max(seq, 0));
  const back = (): void => {
    if (last > 0) to((at ?? last + 1) - 1);
  };
  const on = (): void => {
    if (at !== null) to(at + 1);
  };
  useKeys({ "[": back, "]": on });
  const step = steps.find((one) => one.seq === at);
  const now = isOver(run) ? "the end" : "now";
  return (
    <div className="stack">
      <div className="row slider">
        <button
          type="button"
          aria-label="Previous step"
          title="Previous step ([)"
          disabled={last === 0 || at === 0}
          onClick={back}
        >
          <Icon name="left" size={14} />
        </button>
        <input
          type="range"
          className="grow"
          min={0}
          max={last + 1}
          value={at ?? last + 1}
          aria-label="Step"
          aria-valuetext={at === null ? now : step ? `step ${at}, ${step.node}` : "the start"}
          onChange={(event) => to(Number(event.target.value))}
        />
        <button type="button" aria-label="Next step" title="Next step (])" disabled={at === null} onClick={on}>
          <Icon name="right" size={14} />
        </button>
        <span className="slider-word">
          {at === null ? now : step ? `step ${at} of ${last}: ` : "the start"}
          {step && <b>{step.node}</b>}
        </span>
      </div>
      {at === null ? <Json value={ownShared(run.shared)} label="shared state" /> : <AtStep run={run} at={at} />}
    </div>
  );
}

function AtStep({ run, at }: { run: Run; at: number }): ReactNode {
  const over = isOver(run);
  // What is past stays as it was; only the step that the run is at has an after to come.
  const state = useData<SharedState>(
    url(`/api/v2/runs/${encodeURIComponent(run.id)}/shared`, { at }),
    (changed) => !over && ofRun(run.id)(changed),
    Number(over),
  );
  return <Loading from={state}>{(found) => <BeforeAfter state={found} />}</Loading>;
}

function BeforeAfter({ state }: { state: SharedState }): ReactNode {
  const changed = new Set(state.changed);
  return (
    <div className="stack">
      {state.exact === false && (
        <Notice tone="wait" icon="warn">
          Rebuilt from the log; it does not match the run's final state and may be inexact.
        </Notice>
      )}
      {Object.keys(state.unknown).length > 0 && (
        <Notice tone="wait" icon="warn">
          Cannot be rebuilt:
          <ul className="flaws">
            {Object.entries(state.unknown).map(([key, why]) => (
              <li key={key}>
                <b>{key === "*" ? "everything" : key}</b>: {why}
              </li>
            ))}
          </ul>
        </Notice>
      )}
      {state.inside !== null && (
        <p className="faint small">State of the subflow {state.inside}, as its nodes see it.</p>
      )}
      {state.before === null ? (
        <Json value={state.after} label="shared state at the start" />
      ) : (
        <div className="grid-2 before-after">
          <div>
            <h3 className="faint">Before</h3>
            <Json value={state.before} label="shared state before" marked={changed} />
          </div>
          <div>
            <h3 className="row faint">
              After{" "}
              {changed.size > 0 && (
                <Mark tone="good">{changed.size === 1 ? "1 key changed" : `${changed.size} keys changed`}</Mark>
              )}
              {state.after !== null && changed.size === 0 && <Mark tone="idle">no changes</Mark>}
            </h3>
            {state.after === null ? (
              <p className="faint">Not finished yet.</p>
            ) : (
              <Json value={state.after} label="shared state after" marked={changed} />
            )}
          </div>
        </div>
      )}
    </div>
  );
}
