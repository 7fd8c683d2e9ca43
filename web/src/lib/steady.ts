// A list whose rows keep their places while somebody looks at it: nothing moves away under the pointer.
import { useState } from "react";

/** New rows come first, or `last`. Rows that are gone leave no gap. */
export function useSteady<T>(rows: readonly T[], keyOf: (row: T) => string, { last = false } = {}): readonly T[] {
  const [known, setKnown] = useState<readonly string[]>([]);
  const added = rows.map(keyOf).filter((key) => !known.includes(key));
  const all = last ? [...known, ...added] : [...added, ...known];
  if (added.length) setKnown(all);
  const places = new Map(all.map((key, place) => [key, place]));
  return rows.toSorted((one, other) => places.get(keyOf(one))! - places.get(keyOf(other))!);
}
