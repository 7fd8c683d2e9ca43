/** What goes over the worker socket, both ways: JSON text, told apart by `type`. */

import { ResultInvalid } from "./errors.js";

// Above this the server takes no frame: a body of 1 MiB, and the words of the frame around it.
export const LARGEST = (1 << 20) + (64 << 10);
const DEEPEST = 64;

export interface Task {
  type: "task";
  taskId: string;
  payload: unknown;
  attempt: number;
  service: string | null; // null: it came for our group
  queue?: string;
  fence: number;
  key: string; // stable over attempts
  traceparent?: string | null;
}

export type Incoming =
  | Task
  | { type: "registered"; workerId: string }
  | { type: "cancel"; taskId: string }
  | { type: "error"; message: string; final?: boolean }
  | { type: "drain" | "ping" | "pong" };

export function decode(text: string): Incoming | undefined {
  try {
    const frame = JSON.parse(text);
    const whole = typeof frame?.type === "string" && (frame.type !== "task" || typeof frame.taskId === "string");
    return whole ? frame : undefined;
  } catch {
    return undefined;
  }
}

/** A server that cannot read a frame to its end does not know whose answer it is, and would wait for another. */
export function toJson(value: unknown): string {
  let json: string;
  try {
    json = JSON.stringify(value) ?? "null";
  } catch (error) {
    throw new ResultInvalid((error as Error).message);
  }
  if (isDeeper(value, DEEPEST)) throw new ResultInvalid(`nested deeper than ${DEEPEST} levels`);
  // Only half a character is written as an escape of this kind.
  return json.includes("\\ud") ? json.replace(/\\(ud...|.)/g, (all, escape) => (escape[1] ? "\\ufffd" : all)) : json;
}

function isDeeper(value: unknown, levels: number): boolean {
  if (typeof value !== "object" || value === null || ArrayBuffer.isView(value)) return false;
  return levels === 0 || Object.values(value).some((inner) => isDeeper(inner, levels - 1));
}
