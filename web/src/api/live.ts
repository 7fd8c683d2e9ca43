// One stream from the server keeps the whole page true. It pauses by hand, and by itself while nobody looks.
import { useEffect, useEffectEvent } from "react";
import { watched } from "../lib/watched";
import { probe } from "./client";
import type { Change, Environment, Point, Snapshot } from "./types";

export type LiveStatus = "connecting" | "live" | "paused" | "gone" | "refused";

export interface LiveView {
  status: LiveStatus;
  now: Change | null;
  points: readonly Point[];
  environment: Environment | null;
  restarted: number; // how often another server has answered than before
}

type Listener = (changed: readonly string[] | null) => void;

const SILENT_MS = 25_000; // the server says something every ten seconds
const RETRY_MS = [500, 1000, 2000, 3000];
const HIDDEN_MS = 5_000; // a glance at another tab costs no reconnect
const KEPT = 180;

let view: LiveView = { status: "connecting", now: null, points: [], environment: null, restarted: 0 };
let source: EventSource | null = null;
let retry = 0;
let turn = 0; // of connections: an answer about an earlier one is no news
let timer: number | undefined;
let watchdog: number | undefined;
let hiding: number | undefined;
let paused = false;
const shown = watched();
const listeners = new Set<Listener>();

function show(part: Partial<LiveView>): void {
  view = { ...view, ...part };
  shown.tell();
}

function disconnect(): void {
  turn += 1;
  source?.close();
  source = null;
  clearTimeout(timer);
  clearTimeout(watchdog);
}

function connect(): void {
  disconnect();
  const mine = (source = new EventSource("/api/v2/live"));
  const heard = (): void => {
    clearTimeout(watchdog);
    watchdog = window.setTimeout(lost, SILENT_MS);
  };
  const lost = (): void => {
    if (source !== mine) return;
    const refused = mine.readyState === EventSource.CLOSED; // the browser itself would try again, were it only away
    disconnect();
    if (refused) return void whyRefused();
    show({ status: retry ? "gone" : view.status === "live" ? "connecting" : "gone" });
    timer = window.setTimeout(connect, RETRY_MS[Math.min(retry++, RETRY_MS.length - 1)]);
  };
  mine.onerror = lost;
  mine.addEventListener("alive", heard);
  mine.addEventListener("snapshot", (event) => {
    heard();
    retry = 0;
    const { history, environment, step_ms: _, ...now } = JSON.parse(event.data as string) as Snapshot;
    const other = view.now !== null && view.now.server !== now.server;
    show({
      status: "live",
      now: { ...now, point: null },
      points: rows(history),
      environment,
      restarted: view.restarted + (other ? 1 : 0),
    });
    tell(null);
  });
  mine.addEventListener("change", (event) => {
    heard();
    const now = JSON.parse(event.data as string) as Change;
    const points = now.point ? [...view.points, now.point].slice(-KEPT) : view.points;
    show({ status: "live", now, points });
    tell(now.changed);
  });
}

/** The browser does not tell the status. Asked for once more, 401 leads to the log-in; 403: this key may not listen. */
async function whyRefused(): Promise<void> {
  const before = turn;
  try {
    const control = new AbortController();
    const answer = await probe("/api/v2/live", control.signal);
    control.abort();
    if (turn !== before) return; // paused, or connected again, while it was asked
    if (answer === 401) return;
    if (answer === 403) return show({ status: "refused" });
  } catch {
    // not reached: tried again like a connection that was lost
  }
  if (turn !== before) return;
  show({ status: "gone" });
  timer = window.setTimeout(connect, RETRY_MS[Math.min(retry++, RETRY_MS.length - 1)]);
}

function rows(columns: Snapshot["history"]): Point[] {
  const names = Object.keys(columns) as (keyof Point)[];
  return columns.at.map(
    (_, index) => Object.fromEntries(names.map((name) => [name, columns[name][index]])) as unknown as Point,
  );
}

function tell(changed: readonly string[] | null): void {
  for (const listener of listeners) listener(changed);
}

export function setPaused(value: boolean): void {
  paused = value;
  if (value) {
    disconnect();
    show({ status: "paused" });
  } else {
    retry = 0;
    show({ status: "connecting" });
    connect();
  }
}

/** Also after a log-in. */
export function connectLive(): void {
  retry = 0;
  if (!paused) connect();
}

export function startLive(): void {
  connect();
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiding);
    if (document.hidden) hiding = window.setTimeout(disconnect, HIDDEN_MS);
    else if (!paused && source === null) connect();
  });
}

export function useLive(): LiveView {
  return shown.use(() => view);
}

/** Calls it with the ids of tasks that something happened to; null: any may have changed. Returns how to end that. */
export function onChange(listener: Listener): () => void {
  listeners.add(listener);
  return () => {
    listeners.delete(listener);
  };
}

const ECHO_MS = 1500;

/** Called a moment after any change: for what the server writes only then, such as the notices of an ending. */
export function useEcho(listener: () => void): void {
  const call = useEffectEvent(listener);
  useEffect(() => {
    let later: number | undefined;
    const end = onChange(() => {
      clearTimeout(later);
      later = window.setTimeout(() => call(), ECHO_MS);
    });
    return () => {
      end();
      clearTimeout(later);
    };
  }, []);
}
