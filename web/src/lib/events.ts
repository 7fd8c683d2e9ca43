// The events of one task: all there are, then those that follow, each read once.
import { useQuery } from "@tanstack/react-query";
import { get, url } from "../api/client";
import { of } from "../api/data";
import type { Page, TaskEvent } from "../api/types";

/** null: not read yet. What is wrong with the task is shown by its own query. */
export function useEvents(id: string): readonly TaskEvent[] | null {
  const path = `/api/v2/tasks/${encodeURIComponent(id)}/events`;
  const { data } = useQuery<readonly TaskEvent[]>({
    queryKey: [path],
    queryFn: async ({ client, queryKey, signal }) => {
      let events = client.getQueryData<readonly TaskEvent[]>(queryKey) ?? [];
      for (;;) {
        const page = await get<Page<TaskEvent>>(url(path, { after: events.at(-1)?.n ?? 0 }), signal);
        events = [...events, ...page.items];
        if (page.next === null || !page.items.length) return events;
      }
    },
    structuralSharing: false, // what was read stays the same objects
    meta: { concerns: of(id) },
  });
  return data ?? null;
}
