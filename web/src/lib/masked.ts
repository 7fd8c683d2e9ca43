// Sensitive parts come masked; this shows all of it to a person who asks.
import { useQuery, useQueryClient } from "@tanstack/react-query";
import type { Query } from "@tanstack/react-query";
import { useState } from "react";
import { get } from "../api/client";
import { seldom } from "../api/data";
import { useLack } from "../api/me";
import { say } from "../components/toasts";

const MASK = "•••";

function alike<T>(one: T, other: T, parts: readonly (keyof T)[]): boolean {
  return parts.every((part) => JSON.stringify(one[part]) === JSON.stringify(other[part]));
}

/** `seen` with these parts unmasked, once a person asked; `hidden`: some of them are masked. */
export function useWhole<T extends object>(path: string, seen: T, parts: readonly (keyof T)[]) {
  const [asked, setAsked] = useState(false);
  const client = useQueryClient();
  const whole = {
    queryKey: [path, "whole", seen], // read again whenever the masked one changes
    queryFn: ({ signal }: { signal: AbortSignal }) => get<T>(path, signal, { masked: false }),
    gcTime: 0,
    meta: { concerns: seldom },
  };
  const { data, isPlaceholderData } = useQuery<T>({
    ...whole,
    enabled: asked,
    // Meanwhile what was revealed before, unless the masked parts show that it is another value.
    placeholderData: ((before: T | undefined, query?: Query) =>
      query && alike(query.queryKey[2] as T, seen, parts) ? before : undefined) as never,
  });
  const shown = { ...seen };
  for (const part of data ? parts : []) shown[part] = data![part] ?? seen[part];
  const lack = useLack("reveal");
  const masked = (one: T): boolean => JSON.stringify(parts.map((part) => one[part])).includes(MASK);
  const hidden = !data && masked(seen);

  /** What it hands on is the thing itself, before the view is drawn with it. */
  function reveal(then: (whole: T) => void = () => {}): void {
    if (!hidden && !isPlaceholderData) return then(shown);
    client.fetchQuery<T>(whole).then(
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
