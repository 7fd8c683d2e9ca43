// Instants are the server's, in epoch milliseconds; this machine's clock may be wrong.
import { watched } from "./watched";

let ahead = 0; // how far the server's clock is before ours

export function setServerTime(at: number): void {
  ahead = at - Date.now();
}

export function serverNow(): number {
  return Date.now() + ahead;
}

let second = Math.floor(Date.now() / 1000);
const { tell, use } = watched(() => {
  const ticking = setInterval(() => {
    second = Math.floor(Date.now() / 1000);
    tell();
  }, 1000);
  return () => clearInterval(ticking);
});

/** The time, once a second or less often, for things that grow old on the screen. */
export function useNow(everyMs = 1_000): number {
  use(() => Math.floor((second * 1000) / everyMs));
  return serverNow();
}

export function span(ms: number): string {
  const size = Math.abs(ms);
  if (size < 1000) return `${Math.round(ms)} ms`;
  if (size < 10_000) return `${(ms / 1000).toFixed(1)} s`;
  if (size < 120_000) return `${Math.round(ms / 1000)} s`;
  if (size < 7_200_000) return `${Math.round(ms / 60_000)} min`;
  if (size < 172_800_000) return `${(ms / 3_600_000).toFixed(1)} h`;
  return `${Math.round(ms / 86_400_000)} d`;
}

export function ago(at: number, now: number): string {
  const ms = now - at;
  if (Math.abs(ms) < 1000) return "now";
  const whole = span(Math.max(1000, Math.round(Math.abs(ms) / 1000) * 1000)).replace(".0", "");
  return ms > 0 ? `${whole} ago` : `in ${whole}`;
}

const CLOCK = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hour12: false,
});
const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

const MINUTE = new Intl.DateTimeFormat(undefined, {
  weekday: "short",
  hour: "2-digit",
  minute: "2-digit",
  hour12: false,
});

export const minute = (at: number): string => MINUTE.format(at);
export const clock = (at: number): string => CLOCK.format(at);
export const full = (at: number): string => FULL.format(at);
const WHOLE = new Intl.NumberFormat("en");
export const number = (value: number): string => WHOLE.format(value);

/** Of a share: without decimals from ten per cent on. */
export function percent(share: number): string {
  const value = share * 100;
  return `${value > 0 && value < 10 ? value.toFixed(1) : Math.round(value)} %`;
}

export function rate(value: number): string {
  return value >= 100 ? number(Math.round(value)) : value >= 10 ? value.toFixed(0) : value ? value.toFixed(1) : "0";
}
