// A worker is drained: it finishes what it has and gets no more.
import type { ReactNode } from "react";
import { post, remove } from "../api/client";
import { useAction } from "../api/data";
import type { Worker } from "../api/types";
import { number } from "../lib/time";
import { Act } from "./act";
import { Confirm } from "./confirm";
import { Icon } from "./icon";

const LEAVES = new Set(["socket", "http", "ledger"]); // a worker of ours that is told so ends its process

export function DrainButton({ worker }: { worker: Worker }): ReactNode {
  const path = `/api/v2/workers/${encodeURIComponent(worker.id)}/drain`;
  const drain = useAction(() => post<Worker>(path), {
    done: `${worker.id} is draining`,
    quiet: true,
  });
  const undo = useAction(() => remove(path), { done: `${worker.id} resumed` });
  const named = <span className="sr"> {worker.id}</span>;
  if (worker.transport === "celery") return null;
  return worker.draining ? (
    <Act needs="operate" disabled={undo.busy} onClick={() => undo.run()}>
      <Icon name="play" size={14} /> Resume{named}
    </Act>
  ) : (
    <Confirm
      question="Drain this worker?"
      act="Drain worker"
      action={drain}
      about={
        <p>
          <span className="mono">{worker.id}</span> finishes its {worker.busy === 1 ? "task" : "tasks"}
          {worker.busy !== null && ` (${number(worker.busy)} running)`} and gets no new ones
          {LEAVES.has(worker.transport) && ", then disconnects"}.
        </p>
      }
    >
      Drain{named}
    </Confirm>
  );
}
