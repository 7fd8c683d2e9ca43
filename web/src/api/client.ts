// The one place that speaks HTTP: JSON in and out, and every refusal as a Problem.
import type { FieldFault } from "./types";

export class Problem extends Error {
  constructor(
    readonly status: number, // 0: the server was not reached
    message: string,
    readonly hint: string | null = null,
    readonly code: string = "",
    readonly faults: readonly FieldFault[] = [], // field by field, where the server says so
  ) {
    super(message);
  }
}

type Params = Record<string, string | number | boolean | readonly string[] | null | undefined>;

export function url(path: string, params: Params = {}): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value === null || value === undefined || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) query.append(name, String(one));
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

/** Sensitive parts come masked, unless somebody asks to see them. */
export async function get<T>(path: string, signal?: AbortSignal, { masked = true } = {}): Promise<T> {
  const asked = masked ? `${path}${path.includes("?") ? "&" : "?"}masked=true` : path;
  return read<T>(await send(asked, signal ? { signal } : {}), path === "/health");
}

let loggedOut = (): void => {};

/** Called whenever the server asks who this is: no key, or one that holds no longer. */
export function whenLoggedOut(act: () => void): void {
  loggedOut = act;
}

export async function post<T>(path: string, body?: unknown, { keepalive = false } = {}): Promise<T> {
  const init: RequestInit = { method: "POST", headers: { "content-type": "application/json" }, keepalive };
  if (body !== undefined) init.body = JSON.stringify(body);
  return read<T>(await send(path, init));
}

export async function put<T>(path: string, body: unknown): Promise<T> {
  const init: RequestInit = {
    method: "PUT",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  };
  return read<T>(await send(path, init));
}

export async function remove(path: string): Promise<void> {
  await read(await send(path, { method: "DELETE" }));
}

/** The answer as it came, for those who want to show it: status, milliseconds and text. */
export async function raw(
  method: string,
  path: string,
  body: string,
): Promise<{ status: number; ms: number; text: string }> {
  const begun = performance.now();
  const init: RequestInit = { method, headers: { "content-type": "application/json" } };
  if (method !== "GET") init.body = body;
  const answer = await send(path, init);
  const text = await answer.text();
  return { status: answer.status, ms: performance.now() - begun, text };
}

/** The status alone. */
export async function probe(path: string, signal: AbortSignal): Promise<number> {
  return (await send(path, { signal })).status;
}

async function send(path: string, init: RequestInit): Promise<Response> {
  try {
    const answer = await fetch(path, init);
    if (answer.status === 401 && path !== "/api/v2/login") loggedOut();
    return answer;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Problem(0, "Server unreachable", "Reconnecting…");
  }
}

/** `even503`: a server that is unwell reports it with 503, and that report is what was asked for. */
async function read<T>(answer: Response, even503 = false): Promise<T> {
  const text = await answer.text();
  const report = even503 && answer.status === 503 && answer.headers.get("content-type") === "application/json";
  if (answer.ok || report) return (text ? parse(text) : null) as T;
  throw problemOf(answer.status, text, answer.statusText);
}

/** What a refusal says of itself, in the words of whichever door. */
export function problemOf(status: number, text: string, title = ""): Problem {
  let said: Record<string, unknown> = {};
  try {
    const body: unknown = JSON.parse(text);
    if (typeof body === "object" && body !== null) said = body as Record<string, unknown>;
  } catch {
    // not JSON: the status has to do
  }
  const word = (name: string): string | null => (typeof said[name] === "string" ? said[name] : null);
  const faults = Array.isArray(said.errors) ? (said.errors as FieldFault[]) : [];
  return new Problem(
    status,
    word("detail") ?? word("error") ?? (title || `status ${status}`),
    word("hint"),
    word("code") ?? "",
    faults,
  );
}

type Reviver = (this: unknown, key: string, value: unknown, context?: { source?: string }) => unknown;
const exact = JSON as unknown as { rawJSON?: (text: string) => unknown; isRawJSON?: (value: unknown) => boolean };

/** JSON whose numbers survive: one that a double cannot hold stays as it was written. */
export function parse(text: string): unknown {
  if (!exact.rawJSON || !/\d{16}/.test(text)) return JSON.parse(text);
  const keep: Reviver = (_, value, context) =>
    typeof value === "number" && context?.source && String(value) !== context.source && /\d{16}/.test(context.source)
      ? exact.rawJSON!(context.source)
      : value;
  return JSON.parse(text, keep as Parameters<typeof JSON.parse>[1]);
}

export function isExact(value: unknown): boolean {
  return exact.isRawJSON?.(value) ?? false;
}
