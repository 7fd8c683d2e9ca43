/** How a handler's error is told to the server, as fields of a taskResult frame. */

import { Refused, TryAgain } from "./errors.js";

const LONGEST_MESSAGE = 10_000;
const NETWORK = /^(ECONN|ETIMEDOUT|EPIPE|UND_ERR)/;

type Thrown = Error & { code?: unknown; status?: unknown; statusCode?: unknown };

/** Unless the handler has said what it means, the server's own rules decide on another try. */
export function faultFrom(thrown: unknown): object {
  const error: Thrown = thrown instanceof Error ? thrown : new Error(String(thrown));
  const errorType = kindOf(error);
  const fault = { error: (error.message || errorType).slice(0, LONGEST_MESSAGE), errorType };
  if (error instanceof Refused) return { ...fault, retryable: false };
  if (error instanceof TryAgain) {
    const after = Math.max(0, Math.ceil(error.retryAfterMs ?? NaN));
    return { ...fault, retryable: true, retryAfterMs: Number.isSafeInteger(after) ? after : undefined };
  }
  const status = error.status ?? error.statusCode;
  return { ...fault, status: Number.isSafeInteger(status) ? status : undefined };
}

function kindOf(error: Thrown): string {
  const code = error.code ?? (error.cause as Thrown | undefined)?.code;
  if (error.name === "TimeoutError" || NETWORK.test(String(code))) return "NetworkTimeout";
  // Few classes bother to set their name.
  return (error.name === "Error" ? error.constructor.name : error.name) || "Error";
}
