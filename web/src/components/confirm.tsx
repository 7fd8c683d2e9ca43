// A question before something that cannot be undone. The button that answers it is another than the one that asked.
import { useState } from "react";
import type { ReactNode } from "react";
import type { Action } from "../api/data";
import type { Scope } from "../api/me";
import { Act } from "./act";
import { Refusal } from "./basics";
import { Dialog, useSettled } from "./dialog";

/** `children` are the button's; `act` is the answer's word, and `about` what it would be done to. */
export function Confirm({
  question,
  act,
  action,
  about,
  children,
  needs = "operate",
  owner = null,
}: {
  question: string;
  act: string;
  action: Pick<Action, "run" | "busy" | "error" | "reset">;
  about?: ReactNode;
  children: ReactNode;
  needs?: Scope;
  owner?: string | null; // of what it is done to
}): ReactNode {
  const [asked, setAsked] = useState(false);
  const close = (): void => setAsked(false);
  return (
    <>
      <Act
        needs={needs}
        owner={owner}
        disabled={action.busy}
        onClick={() => {
          action.reset();
          setAsked(true);
        }}
      >
        {children}
      </Act>
      {asked && (
        <Dialog title={question} onClose={close}>
          {about}
          <Refusal of={action} />
          <Answer act={act} busy={action.busy} keep={close} onAct={() => action.run(undefined, close)} />
        </Dialog>
      )}
    </>
  );
}

/** The two buttons of a question. The one that changes nothing has the focus. */
export function Answer({
  act,
  busy,
  keep,
  keepLabel = "Keep",
  onAct,
}: {
  act: string;
  busy: boolean;
  keep: () => void;
  keepLabel?: string;
  onAct: () => void;
}): ReactNode {
  const settled = useSettled();
  return (
    <div className="dialog-acts">
      <button type="button" onClick={keep} data-focus>
        {keepLabel}
      </button>
      <button type="button" className="danger" disabled={busy || !settled} onClick={onAct}>
        {act}
      </button>
    </div>
  );
}
