// JSON as text: how it is written for people, and what is wrong with what they write.
import { jsonFault } from "./jsonfault";

export function pretty(value: unknown): string {
  return JSON.stringify(value, null, 2) ?? "null";
}

/** null: it is JSON. */
export function faultOf(text: string): string | null {
  if (!text.trim()) return "Enter JSON (null is allowed)";
  const fault = jsonFault(text);
  return fault && `Line ${fault.line}, column ${fault.column}: ${fault.message}`;
}
