// Approving or rejecting a task that waits for it.
import { post } from "../api/client";
import { useAction } from "../api/data";
import type { Approval } from "../api/types";

export interface Decision {
  approval: Approval;
  word: "approve" | "reject";
  comment: string;
  payload?: unknown; // instead of the one that was asked about
}

export function useDecision(by: string): { run: (decision: Decision) => void; busy: boolean } {
  return useAction(
    ({ approval, word, comment, payload }: Decision) =>
      post<Approval>(`/api/v2/approvals/${encodeURIComponent(approval.id)}/${word}`, {
        digest: approval.digest, // what was shown is what is decided on
        ...(by && { by }),
        ...(comment && { comment }),
        ...(payload === undefined ? {} : { payload }),
      }),
    { done: ({ status, type }) => `${status === "approved" ? "Approved" : "Rejected"} ${type}` },
  );
}
