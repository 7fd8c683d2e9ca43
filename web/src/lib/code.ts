// A task as a command or a program that hands it in again.
import { isExact } from "../api/client";
import type { Task } from "../api/types";

function body(task: Task): Record<string, unknown> {
  return {
    type: task.type,
    payload: task.payload,
    ...(task.queue === task.type ? {} : { queue: task.queue }),
    ...(task.priority === "normal" ? {} : { priority: task.priority }),
    ...(task.session_id ? { session_id: task.session_id } : {}),
  };
}

const quoted = (text: string): string => `'${text.replaceAll("'", `'\\''`)}'`;

export function asCurl(method: string, path: string, text: string): string {
  const data = method === "GET" ? "" : ` \\\n  -H 'content-type: application/json' \\\n  -d ${quoted(text)}`;
  return `curl -s${method === "POST" || method === "GET" ? "" : ` -X ${method}`} ${quoted(location.origin + path)}${data}`;
}

export function taskAsCurl(task: Task): string {
  return asCurl("POST", "/api/v2/tasks?wait_ms=30000", JSON.stringify(body(task)));
}

export function taskAsPython(task: Task): string {
  const { type, payload, ...options } = body(task);
  const more = Object.entries(options).map(([name, value]) => `, ${name}=${python(value)}`);
  return `import asyncio

from onward import Client


async def main():
    async with Client(${python(location.origin)}) as client:
        task = await client.submit(${python(type)}, ${python(payload)}, wait_ms=30_000${more.join("")})
        print(task.state, task.result)


asyncio.run(main())
`;
}

/** JSON as a Python expression. */
function python(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object" || isExact(value)) return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  return `{${Object.entries(value)
    .map(([key, one]) => `${JSON.stringify(key)}: ${python(one)}`)
    .join(", ")}}`;
}
