// Sensitive parts come masked; this shows all of it to a person who asks.
import { keepPreviousData, queryOptions, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { get } from "../api/client";
import { seldom } from "../api/data";
import { useLack } from "../api/me";
import { say } from "../components/toasts";

const MASK = "•••";

/** `seen` with these parts unmasked, once a person asked; `hidden`: some of them are masked. */
export function useWhole<T extends object>(path: string, seen: T, parts: readonly (keyof T)[]) {
  const [asked, setAsked] = useState(false);
  const client = useQueryClient();
  const whole = queryOptions({
    queryKey: [path, "whole", seen], // read again whenever the masked one changes
    queryFn: ({ signal }) => get<T>(path, signal, { masked: false }),
    placeholderData: keepPreviousData,
    gcTime: 0,
    meta: { concerns: seldom },
  });
  const { data } = useQuery({ ...whole, enabled: asked });
  const shown = { ...seen };
  for (const part of data ? parts : []) shown[part] = data![part] ?? seen[part];
  const lack = useLack("reveal");
  const masked = (one: T): boolean => JSON.stringify(parts.map((part) => one[part])).includes(MASK);
  const hidden = !data && masked(seen);

  /** What it hands on is the thing itself, before the view is drawn with it. */
  function reveal(then: (whole: T) => void = () => {}): void {
    if (!hidden) return then(shown);
    client.fetchQuery(whole).then(
      (found) => {
        if (lack && masked(found)) return say(lack, { bad: true });
        setAsked(true);
        then(found);
      },
      (error: Error) => say(error.message, { bad: true }),
    );
  }
  return { shown, hidden, reveal };
}
