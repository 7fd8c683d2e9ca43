// What is sensitive comes masked; this shows the whole of it, once, to somebody who asks.
import { useState } from "react";
import { get } from "../api/client";
import { say } from "../components/toasts";

const MASK = "•••";

/** `seen` with these parts as they are, once they were asked for; `hidden`: some of them are masked. */
export function useWhole<T extends object>(path: string, seen: T, parts: readonly (keyof T)[]) {
  const [whole, setWhole] = useState<T | null>(null);
  const shown = { ...seen };
  for (const part of whole ? parts : []) shown[part] = whole![part] ?? seen[part];
  const hidden = whole === null && (JSON.stringify(parts.map((part) => seen[part])) ?? "").includes(MASK);

  function reveal(then: () => void = () => {}): void {
    if (!hidden) return then();
    get<T>(path, undefined, { masked: false }).then(
      (found) => {
        setWhole(found);
        then();
      },
      (error: Error) => say(error.message, { bad: true }),
    );
  }
  return { shown, hidden, reveal };
}
