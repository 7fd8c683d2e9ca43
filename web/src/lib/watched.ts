// Something outside of React that components look at; they are drawn anew when they are told that it changed.
import { useSyncExternalStore } from "react";

export interface Watched {
  tell: () => void;
  use: <T>(read: () => T) => T;
}

/** `begin` is called with the first who looks, and what it returns when nobody does any more. */
export function watched(begin?: () => () => void): Watched {
  const viewers = new Set<() => void>();
  let end: (() => void) | undefined;
  const subscribe = (viewer: () => void): (() => void) => {
    if (!viewers.size) end = begin?.();
    viewers.add(viewer);
    return () => {
      viewers.delete(viewer);
      if (!viewers.size) end?.();
    };
  };
  return { tell: () => viewers.forEach((viewer) => viewer()), use: (read) => useSyncExternalStore(subscribe, read) };
}
