// Approving or rejecting a task that waits for it. A decision can be taken back for some seconds, then it is sent:
// also from another view, and when the tab is closed.
import { post } from "../api/client";
import { refresh } from "../api/data";
import type { Approval } from "../api/types";
import { serverNow } from "./time";
import { watched } from "./watched";

export interface Decision {
  approval: Approval;
  word: "approve" | "reject";
  comment: string;
  by: string;
  payload?: unknown; // instead of the one that was asked about
}

/** `until`: it can be taken back so long. Later it is sent, and `result` or `error` is what came of it. */
export interface Made extends Decision {
  until: number;
  result?: Approval;
  error?: Error;
}

export const UNDO_MS = 5_000;

const made = new Map<string, Made>();
const timers = new Map<string, number>();
const { tell, use } = watched();

export function decide(decision: Decision): void {
  const { id } = decision.approval;
  if (timers.has(id)) return;
  made.set(id, { ...decision, until: serverNow() + UNDO_MS });
  timers.set(
    id,
    window.setTimeout(() => void send(id), UNDO_MS),
  );
  tell();
}

export function undo(id: string): void {
  clearTimeout(timers.get(id));
  timers.delete(id);
  made.delete(id);
  tell();
}

async function send(id: string, keepalive = false): Promise<void> {
  const decision = made.get(id)!;
  const { approval, word, by, comment, payload } = decision;
  clearTimeout(timers.get(id));
  timers.delete(id);
  const body = {
    digest: approval.digest, // what was shown is what is decided on
    ...(by && { by }),
    ...(comment && { comment }),
    ...(payload === undefined ? {} : { payload }),
  };
  try {
    const result = await post<Approval>(`/api/v2/approvals/${encodeURIComponent(id)}/${word}`, body, { keepalive });
    made.set(id, { ...decision, result });
  } catch (error) {
    made.set(id, { ...decision, error: error as Error });
  }
  tell();
  refresh();
}

// A tab that is closed within these seconds must not lose what was decided in it.
addEventListener("pagehide", () => [...timers.keys()].forEach((id) => void send(id, true)));

/** What was decided here about this approval, if anything. */
export function useMade(id: string): Made | undefined {
  return use(() => made.get(id));
}
