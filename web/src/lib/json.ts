// JSON as text: how it is written for people, and what is wrong with what they write.
import { parse } from "../api/client";

export function pretty(value: unknown): string {
  return JSON.stringify(value, null, 2) ?? "null";
}

/** null: it is JSON. */
export function faultOf(text: string): string | null {
  try {
    parse(text);
    return null;
  } catch (error) {
    return text.trim() ? (error as Error).message : "Enter JSON (null is allowed)";
  }
}
