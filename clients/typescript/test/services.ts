/** What the tests have done by a worker: one service for each thing that a handler can do. */

import { once } from "node:events";
import { appendFileSync, existsSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Refused, TryAgain, Worker } from "onward-worker";

const worker = new Worker({
  concurrency: Number(process.env["SLOTS"] ?? 10),
  graceMs: Number(process.env["GRACE_MS"] ?? 30_000),
  ...(process.env["WORKER_ID"] && { id: process.env["WORKER_ID"] }),
});

function note(line: string): void {
  appendFileSync(process.env["NOTES"]!, `${line}\n`);
}

async function exists(file: string): Promise<void> {
  while (!existsSync(file)) await sleep(5);
}

class OutOfPaper extends Error {}

const errors: Record<string, () => unknown> = {
  refused: () => new Refused("never"),
  tryAgain: () => new TryAgain("not now", { retryAfterMs: 60_000 }),
  own: () => new OutOfPaper("tray 2"),
  status: () => Object.assign(new Error("gone"), { status: 410 }),
  timeout: () => new DOMException("slow", "TimeoutError"),
  network: () => new TypeError("fetch failed", { cause: { code: "ECONNREFUSED" } }),
  text: () => "just text",
  long: () => new Refused("x".repeat(3_000_000)),
  halved: () => new Refused("😀".slice(0, 1)),
};

const circle: { self?: unknown } = {};
circle.self = circle;
const results: Record<string, () => unknown> = {
  nothing: () => undefined,
  circle: () => circle,
  deep: () => JSON.parse("[".repeat(3_000) + "]".repeat(3_000)),
  huge: () => "x".repeat(2_000_000),
  halved: () => ({ "😀 \\ud83d": "😀!".slice(1) }),
};

worker
  .service(
    "echo",
    (payload, { attempt, key, taskId, traceparent }) => ({ payload, attempt, key, taskId, traceparent }),
    {
      description: "Says it again.",
      schema: { type: "object", properties: { n: { type: "integer" } } },
      output: { type: "object" },
      timeoutMs: 60_000,
      maxRetries: 7,
    },
  )
  .service("fail", ({ how }: { how: string }) => {
    throw errors[how]!();
  })
  .service("result", ({ which }: { which: string }) => results[which]!())
  .service("emit-huge", (_, ctx) => ctx.emit("x".repeat(2_000_000)))
  .service("hurry", async (_, ctx) => {
    for (let n = 0; n < 500; n++) {
      await ctx.progress(n / 499, `step ${n}`);
      await sleep(0.5);
    }
  })
  .service("write", async (_, ctx) => {
    await ctx.emit("hel");
    void ctx.emit({ more: "lo" });
    void ctx.progress(7);
    await ctx.emit(undefined);
    return "hello";
  })
  .service("wait", async (_, ctx) => {
    note(`began ${ctx.attempt}`);
    await once(ctx.signal, "abort");
    note(ctx.signal.reason.constructor.name);
    void ctx.progress(0.5); // not awaited: must not bring the process down
    ctx.signal.throwIfAborted();
  })
  .service("until", async ({ file }: { file: string }, ctx) => {
    note(`began ${ctx.attempt}`);
    await exists(file); // and never looks at its signal
    note(`ended ${ctx.attempt}`);
    return "done";
  })
  .service("pay", async ({ fail, stuck }: { fail?: boolean; stuck?: boolean }, ctx) => {
    const receipt = await ctx.once("charge card", async () => {
      note("charged");
      if (fail && ctx.attempt === 1) throw new Error("card declined");
      if (stuck) process.kill(process.pid, "SIGKILL");
      return { at: new Date(0) };
    });
    if (ctx.attempt === 1) throw new Error("after the charge");
    return receipt;
  })
  .service("pay-late", async ({ file }: { file: string }, ctx) => {
    const receipt = await ctx.once("charge", async () => {
      note("charged");
      await exists(file);
      return 42;
    });
    note(`noted ${receipt}`);
    return receipt;
  })
  .service("pay-interrupted", (_, ctx) =>
    ctx.once("charge", async () => {
      note("charged");
      await once(ctx.signal, "abort");
      throw new Error("perhaps it was charged");
    }),
  )
  .group("default", (payload) => ({ echo: payload }));

await worker.run();
note("left");
