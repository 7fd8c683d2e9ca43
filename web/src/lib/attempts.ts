// What differs between an attempt and the one before it.
import type { Stretch } from "./life";
import { span } from "./time";

export interface Difference {
  what: string;
  before: string;
  after: string;
}

const LONGER = 2; // times: less is no difference
const LEAST_MS = 500; // nor is this little

function lasted({ from, to }: Stretch): number | null {
  return to === null ? null : to - from;
}

function wrong({ error }: Stretch): string {
  return error ? `${error.kind}: ${error.message}` : "none";
}

export function differences(before: Stretch, after: Stretch): Difference[] {
  const found: Difference[] = [];
  const compare = (what: string, one: string, other: string): void => {
    if (one !== other) found.push({ what, before: one, after: other });
  };
  compare("outcome", before.end ?? "running", after.end ?? "running");
  compare("worker", before.worker ?? "none", after.worker ?? "none");
  compare("error", wrong(before), wrong(after));
  const [one, other] = [lasted(before), lasted(after)];
  const longer = (a: number, b: number): boolean => a > LONGER * b && a - b > LEAST_MS;
  if (one !== null && other !== null && (longer(one, other) || longer(other, one)))
    found.push({ what: "duration", before: span(one), after: span(other) });
  return found;
}
