// Pausing and resuming a queue, and the marks that say how it stands.
import { useState } from "react";
import type { ReactNode } from "react";
import { post } from "../api/client";
import { useAction } from "../api/data";
import { useName } from "../api/me";
import type { Queue } from "../api/types";
import { ago, useNow } from "../lib/time";
import { Act } from "./act";
import { Form, Mark, Refusal } from "./basics";
import { Dialog } from "./dialog";
import { Icon } from "./icon";

export function QueueMarks({ queue }: { queue: Queue }): ReactNode {
  const now = useNow();
  const { paused, breaker } = queue;
  const waits = queue.queued > 0 && queue.workers === 0;
  return (
    <div className="row small">
      {paused && (
        <Mark tone="wait" icon="pause">
          paused{paused.by && ` by ${paused.by}`}
        </Mark>
      )}
      {paused?.reason && <span className="faint">{paused.reason}</span>}
      {breaker && breaker.state !== "closed" && (
        <Mark tone="bad" icon="bolt">
          breaker {breaker.state === "open" ? "open" : "half-open"}, next try {ago(breaker.until, now)}
        </Mark>
      )}
      {waits && (
        <Mark tone="bad" icon="warn">
          no worker
        </Mark>
      )}
    </div>
  );
}

export function PauseButton({ queue }: { queue: Queue }): ReactNode {
  const [asking, setAsking] = useState(false);
  const resume = useAction(() => post(`/api/v2/queues/${encodeURIComponent(queue.name)}/resume`), {
    done: `${queue.name} resumed`,
  });
  const named = <span className="sr"> {queue.name}</span>;
  return (
    <>
      {queue.paused ? (
        <Act needs="operate" onClick={() => resume.run()} disabled={resume.busy}>
          <Icon name="play" size={14} /> Resume{named}
        </Act>
      ) : (
        <Act needs="operate" onClick={() => setAsking(true)}>
          <Icon name="pause" size={14} /> Pause{named}
        </Act>
      )}
      {asking && <Pause queue={queue} onClose={() => setAsking(false)} />}
    </>
  );
}

function Pause({ queue, onClose }: { queue: Queue; onClose: () => void }): ReactNode {
  const { name: by, setName } = useName();
  const [reason, setReason] = useState("");
  const pause = useAction(
    () =>
      post(`/api/v2/queues/${encodeURIComponent(queue.name)}/pause`, { ...(by && { by }), ...(reason && { reason }) }),
    { done: `${queue.name} paused`, after: onClose, quiet: true },
  );
  return (
    <Dialog title={`Pause ${queue.name}`} onClose={onClose}>
      <Form onSubmit={() => pause.run()}>
        <p className="faint">The queue keeps accepting tasks but starts none until it is resumed.</p>
        <label className="field">
          <span>Reason (recorded)</span>
          <input value={reason} maxLength={1000} onChange={(event) => setReason(event.target.value)} />
        </label>
        {setName && (
          <label className="field">
            <span>Your name</span>
            <input value={by} maxLength={200} onChange={(event) => setName(event.target.value)} />
          </label>
        )}
        <Refusal of={pause} />
        <div className="dialog-acts">
          <button className="primary" disabled={pause.busy}>
            Pause
          </button>
        </div>
      </Form>
    </Dialog>
  );
}
