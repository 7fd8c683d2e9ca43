// Keys of a view and of the whole page. Two-key words ("g t") wait a second for the second one.
import { useEffect, useEffectEvent, useState } from "react";

type Keys = Record<string, (event: KeyboardEvent) => void>;

let first = "";
let firstAt = -Infinity;

function typing(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName))
  );
}

export function useKeys(keys: Keys): void {
  const heard = useEffectEvent((event: KeyboardEvent): void => {
    const mod = event.metaKey || event.ctrlKey;
    if (event.defaultPrevented || event.altKey || (!mod && typing(event.target))) return;
    if (!mod && document.querySelector("dialog[open]")) return;
    const name = mod ? `mod+${event.key.toLowerCase()}` : event.key;
    const second = firstAt > performance.now() - 1000 && name !== first;
    if (second) setTimeout(() => (firstAt = -Infinity)); // after every other listener has had this key
    const act = keys[second ? `${first} ${name}` : name];
    if (!act) return;
    event.preventDefault();
    act(event);
  });
  useEffect(() => {
    const listener = (event: KeyboardEvent): void => heard(event);
    addEventListener("keydown", listener);
    return () => removeEventListener("keydown", listener);
  }, []);
}

/** Remembers "g", so that the next key may go somewhere. */
export const goFirst = (): void => {
  first = "g";
  firstAt = performance.now();
};

/** j and k through rows, Enter opens one. Returns the row that the keys are at; -1: none yet. */
export function useRowKeys(
  count: number,
  open: (index: number) => void,
  more: Record<string, (index: number) => void> = {},
): [number, (index: number) => void] {
  const [at, setAt] = useState(-1);
  const row = Math.min(at, count - 1);
  const acts: Keys = {
    j: () => setAt(Math.min(row + 1, count - 1)),
    k: () => setAt(Math.max(row - 1, 0)),
  };
  if (row >= 0) {
    acts.Enter = (event) => {
      if (event.target instanceof HTMLElement && event.target.closest("a,button")) event.target.click();
      else open(row);
    };
    for (const [key, act] of Object.entries(more)) acts[key] = () => act(row);
  }
  useKeys(acts);
  return [row, setAt];
}
