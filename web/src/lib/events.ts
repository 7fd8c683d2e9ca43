// The events of one task: all there are, then what comes, each read once.
import { useEffect, useRef, useState } from "react";
import { get, Problem, url } from "../api/client";
import { useChanges } from "../api/live";
import type { Page, TaskEvent } from "../api/types";

export function useEvents(id: string): readonly TaskEvent[] | null {
  const [events, setEvents] = useState<readonly TaskEvent[] | null>(null);
  const state = useRef({ id, read: [] as readonly TaskEvent[], busy: false, again: false });

  async function read(): Promise<void> {
    const mine = state.current;
    mine.again = mine.busy;
    if (mine.busy) return;
    mine.busy = true;
    try {
      for (let more = true; more && state.current === mine;) {
        const after = mine.read.at(-1)?.n ?? 0;
        const page = await get<Page<TaskEvent>>(url(`/api/v2/tasks/${encodeURIComponent(mine.id)}/events`, { after }));
        if (page.items.length) mine.read = [...mine.read, ...page.items];
        more = page.next !== null && page.items.length > 0;
        if (state.current === mine) setEvents(mine.read);
      }
    } catch (error) {
      if (!(error instanceof Problem)) throw error; // the task's own reading says what is wrong
    } finally {
      mine.busy = false;
      if (mine.again) void read();
    }
  }

  useEffect(() => {
    state.current = { id, read: [], busy: false, again: false };
    setEvents(null);
    void read();
  }, [id]);
  useChanges((changed) => {
    if (changed === null || changed.includes(id)) void read();
  });
  return events;
}
