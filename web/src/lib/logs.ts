// What the handlers of one task logged: all there is, then what follows. Lines make no events: while it runs they are asked for.
import { useQuery } from "@tanstack/react-query";
import { get, url } from "../api/client";
import { of } from "../api/data";
import type { LogRecord, Page } from "../api/types";
import type { Stretch } from "./life";

const EVERY_MS = 1_500;

interface Part {
  cursor: string; // that it was read with
  items: readonly LogRecord[];
}

/** null: not read yet. */
export function useLogs(id: string, running: boolean): readonly LogRecord[] | null {
  const path = `/api/v2/tasks/${encodeURIComponent(id)}/logs`;
  const { data } = useQuery<readonly Part[]>({
    queryKey: [path],
    queryFn: async ({ client, queryKey, signal }) => {
      const known = client.getQueryData<readonly Part[]>(queryKey) ?? [];
      const parts = known.slice(0, -1); // the last one grows: it is read again
      let cursor: string | null = known.at(-1)?.cursor ?? "";
      while (cursor !== null) {
        const page: Page<LogRecord> = await get(url(path, { cursor }), signal, { masked: false });
        parts.push({ cursor, items: page.items });
        cursor = page.next;
      }
      return parts;
    },
    refetchInterval: running ? EVERY_MS : false,
    structuralSharing: false,
    meta: { concerns: of(id) },
  });
  return data ? data.flatMap((part) => part.items) : null;
}

/** Of one attempt. Its number begins anew with each retry by hand: the time tells which it is. */
export function linesOf(lines: readonly LogRecord[], attempt: Stretch, later: readonly Stretch[]): LogRecord[] {
  const next = later.find((one) => one.attempt !== null && one.from > attempt.from)?.from ?? Infinity;
  return lines.filter(
    (line) => line.attempt === attempt.attempt && line.at >= attempt.from - SKEW_MS && line.at < next,
  );
}

const SKEW_MS = 2_000; // a worker's clock is its own

export const LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR"] as const;

/** Whether a line is at least this grave; levels that are not known are shown. */
export function isAtLeast(level: string, least: string): boolean {
  const rank = (name: string): number => LEVELS.indexOf(name.replace("CRITICAL", "ERROR") as (typeof LEVELS)[number]);
  return rank(level) < 0 || rank(level) >= rank(least);
}
