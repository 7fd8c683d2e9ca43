// Retrying dead letters: as they are, with some fields changed, or with another payload; tried out first, and paced.
import { useState } from "react";
import type { ReactNode } from "react";
import { parse, post } from "../api/client";
import { useAction } from "../api/data";
import type { Replayed, Task } from "../api/types";
import { faultOf, pretty } from "../lib/json";
import type { Paced } from "../lib/kept";
import { useWhole } from "../lib/masked";
import { number, span, useNow } from "../lib/time";
import { Form, Id, Notice, Refusal, Tabs } from "./basics";
import { Dialog } from "./dialog";
import { Diff } from "./diff";
import { Icon } from "./icon";
import { PayloadEdit } from "./payload";

/** What a request is about: a whole group, or one task of it. */
export interface Chosen {
  what: string;
  cause: string;
  count: number;
  wanted: { ids: string[] } | { filter: { fingerprint?: string } };
  sample: Task | null;
}

const CHANGES = [
  ["none", "Unchanged"],
  ["patch", "Change some fields"],
  ["payload", "Replace the payload"],
] as const;
type Changed = (typeof CHANGES)[number][0];

const PATH = "/api/v2/dead-letters/replay?masked=true";

export function Replay({
  chosen,
  onClose,
  onPaced,
}: {
  chosen: Chosen;
  onClose: () => void;
  onPaced: (paced: Paced) => void;
}): ReactNode {
  const { shown, hidden, reveal } = useWhole<Pick<Task, "payload">>(
    `/api/v2/tasks/${encodeURIComponent(chosen.sample?.id ?? "")}`,
    chosen.sample ?? { payload: null },
    ["payload"],
  );
  const one = chosen.count === 1;
  const [changed, setChanged] = useState<Changed>(one && chosen.sample && !hidden ? "payload" : "none");
  const [patch, setPatch] = useState("{}");
  const [typed, setTyped] = useState<string | null>(null);
  const [rate, setRate] = useState("");
  const before = pretty(shown.payload);
  const text = changed === "patch" ? patch : changed === "payload" ? (typed ?? before) : null;
  const edited = text !== null && !(one && text === before);
  const body = (dry: boolean): unknown => ({
    ...chosen.wanted,
    ...(edited ? { [changed]: parse(text) } : {}),
    ...(rate ? { rate: Number(rate) } : {}),
    ...(dry ? { dry_run: true } : {}),
  });
  const now = useNow();
  const dry = useAction(() => post<Replayed>(PATH, body(true)), { quiet: true });
  const replay = useAction(() => post<Replayed>(PATH, body(false)), {
    done: (out) => `${number(out.replayed)} requeued`,
    quiet: true,
    after: (out) => {
      if (out.until !== null && out.until - now > 2000)
        onPaced({ what: chosen.what, count: out.replayed, from: now, until: out.until });
      if (!out.refused_count) onClose(); // what was refused is told here
    },
  });
  const broken = (edited && faultOf(text) !== null) || (rate !== "" && !(Number(rate) > 0));
  /** Another payload makes another question: what was found out about the last one no longer holds. */
  const forget = (): void => {
    dry.reset();
    replay.reset();
  };
  const choose = (next: Changed): void => {
    forget();
    // What is edited must be the payload itself, not the mask over it.
    if (next === "payload") reveal(() => setChanged(next));
    else setChanged(next);
  };
  return (
    <Dialog title={`Retry ${chosen.what}`} onClose={onClose} wide>
      <Form onSubmit={() => replay.run()}>
        <p className="clamp">{chosen.cause}</p>
        {one ? (
          changed === "none" &&
          chosen.sample && (
            <p>
              <button type="button" onClick={() => choose("payload")}>
                Reveal hidden values and edit
              </button>
            </p>
          )
        ) : (
          <Tabs label="Payloads" value={changed} options={CHANGES} onChange={choose} />
        )}
        {changed === "none" ? (
          <p className="faint">{one ? "The task runs" : "Each task runs"} again with its own payload.</p>
        ) : (
          <>
            <PayloadEdit
              type={changed === "patch" ? "" : (chosen.sample?.type ?? "")}
              label={changed === "patch" ? "Merge patch" : one ? "Payload" : `Payload for all ${number(chosen.count)}`}
              value={text!}
              onChange={(next) => {
                forget();
                if (changed === "patch") setPatch(next);
                else setTyped(next);
              }}
              rows={changed === "patch" ? 6 : 12}
            />
            {changed === "patch" && (
              <p className="faint small">
                {`Written over each payload: {"a": {"b": 1}} sets b in a, null removes a field, the rest stays.`}
              </p>
            )}
          </>
        )}
        {!one && (
          <label className="field">
            <span>Rate limit per second (blank: no limit)</span>
            <input
              className="narrow"
              type="number"
              min="0.01"
              max="10000"
              step="any"
              value={rate}
              onChange={(event) => setRate(event.target.value)}
            />
            {Number(rate) > 0 && (
              <span className="faint small">
                The last one starts after {span(((chosen.count - 1) / Number(rate)) * 1000)}.
              </span>
            )}
          </label>
        )}
        {dry.result && !replay.result && <Tried out={dry.result} changed={edited} />}
        {replay.result && replay.result.refused_count > 0 && (
          <Notice tone="bad" icon="warn">
            {number(replay.result.replayed)} requeued, {number(replay.result.refused_count)} refused
            <Refused out={replay.result} />
          </Notice>
        )}
        <Refusal of={dry} />
        <Refusal of={replay} />
        <div className="dialog-acts">
          <button type="button" disabled={dry.busy || broken} onClick={() => dry.run()}>
            Dry run
          </button>
          <button className="primary" disabled={replay.busy || broken}>
            <Icon name="redo" />{" "}
            {edited ? (changed === "patch" ? "Retry with these changes" : "Retry with this payload") : "Retry"}
          </button>
        </div>
      </Form>
    </Dialog>
  );
}

function Tried({ out, changed }: { out: Replayed; changed: boolean }): ReactNode {
  return (
    <>
      <Notice tone="idle" icon="check">
        Dry run: {number(out.matched - out.refused_count)} would be requeued
        {out.refused_count > 0 && `, ${number(out.refused_count)} refused`}. No task was changed.
        <Refused out={out} />
      </Notice>
      {changed &&
        out.sample.slice(0, 3).map((one) => (
          <div key={one.id} className="stack-tight">
            <Id id={one.id} />
            <Diff before={one.before} after={one.after} />
          </div>
        ))}
    </>
  );
}

function Refused({ out }: { out: Replayed }): ReactNode {
  return (
    <ul className="flaws">
      {out.refused.slice(0, 3).map((one) => (
        <li key={one.id}>
          <Id id={one.id} /> {one.reason}
        </li>
      ))}
    </ul>
  );
}
