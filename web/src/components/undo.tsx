// A decision that is not sent yet, and the button that takes it back.
import type { ReactNode } from "react";
import { undo } from "../lib/decision";
import type { Made } from "../lib/decision";
import { useNow } from "../lib/time";
import { Icon } from "./icon";

export function Undo({ made }: { made: Made }): ReactNode {
  const left = Math.max(0, Math.ceil((made.until - useNow()) / 1000));
  return (
    <p className="row" role="status">
      <button type="button" onClick={() => undo(made.approval.id)}>
        <Icon name="left" size={14} /> Undo
      </button>
      {made.word === "approve" ? "Approving" : "Rejecting"} as {made.by}
      <span className="faint" aria-hidden="true">
        {left > 0 ? `in ${left} s` : "now"}
      </span>
    </p>
  );
}
