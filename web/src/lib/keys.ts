// Keys of a view and of the whole page. Two-key words ("g t") wait a second for the second one.
import { useEffect, useEffectEvent, useState } from "react";

type Keys = Record<string, (event: KeyboardEvent) => void>;

const SECOND_MS = 1_000;

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
    if (event.defaultPrevented || event.altKey || (!mod && typing(event.composedPath()[0] ?? null))) return;
    if (!mod && document.querySelector("dialog[open]")) return;
    const name = mod ? `mod+${event.key.toLowerCase()}` : event.key;
    // By when it was pressed: a busy page may be handed two keys long after each other.
    const second = event.timeStamp - firstAt < SECOND_MS && name !== first;
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
export const goFirst = (event: KeyboardEvent): void => {
  first = "g";
  firstAt = event.timeStamp;
};

/** j and k through rows, Enter opens one. Returns the row that the keys are at; -1: none yet. They stay at the row that
 * somebody chose: one that comes in above it must not be opened in its place. */
export function useRowKeys(
  ids: readonly string[],
  open: (index: number) => void,
  more: Record<string, (index: number) => void> = {},
): [number] {
  const [at, setAt] = useState({ id: "", index: -1 });
  const found = ids.indexOf(at.id);
  const row = found < 0 ? Math.min(at.index, ids.length - 1) : found;
  const goTo = (index: number): void => setAt({ id: ids[index] ?? "", index });
  const acts: Keys = {
    j: () => goTo(Math.min(row + 1, ids.length - 1)),
    k: () => goTo(Math.max(row - 1, 0)),
  };
  if (row >= 0) {
    acts.Enter = (event) => {
      if (event.target instanceof HTMLElement && event.target.closest("a,button")) event.target.click();
      else open(row);
    };
    for (const [key, act] of Object.entries(more)) acts[key] = () => act(row);
  }
  useKeys(acts);
  return [row];
}
