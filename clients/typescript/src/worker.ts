/**
 * A worker in five lines: functions in, their tasks done, for as long as it lives.
 *
 * `run` is for a process of its own and answers signals; `serve` is for a program that has its own.
 */

import { randomBytes } from "node:crypto";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { type Context } from "./context.js";
import { NameTaken, WorkerRefused } from "./errors.js";
import { Link, type Shop } from "./link.js";
import { Server } from "./server.js";
import { Slots } from "./slots.js";

const FIRST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 5_000;
const STEADY_MS = 1_000; // a connection that held this long was a good one: the next pause is short again
const LAST_WORDS_MS = 500;
const REPLACED = 4001; // the server's close code for a connection whose name somebody else took

/** Returns the result, as anything that JSON can say. */
export type Handler<Payload> = (payload: Payload, ctx: Context) => unknown;

export interface WorkerOptions {
  /** Of the server; else ONWARD_URL, else http://127.0.0.1:8070. */
  url?: string;
  /** The token of a key; else ONWARD_KEY. */
  key?: string;
  id?: string;
  /** Tasks at a time; 10 unless given. */
  concurrency?: number;
  /** How long a drain waits for what runs; 30 s unless given. */
  graceMs?: number;
  log?: (line: string) => void;
}

/** What the server is told of a service, besides its name. */
export interface ServiceOptions {
  /** JSON Schema of the payload: the server refuses what does not fit before it is a task. */
  schema?: Record<string, unknown>;
  /** JSON Schema of the result. */
  output?: Record<string, unknown>;
  /** What it does, for people and for agents: the description of its tool. */
  description?: string;
  timeoutMs?: number;
  maxRetries?: number;
  requiresApproval?: boolean;
  /** JSON Pointers into the payload, not to be shown. */
  sensitive?: string[];
  /** false: agents are offered no tool for it. */
  expose?: boolean;
  /** Where in the payload a task's partition stands: "customer.id". Partitions take turns. */
  partitionBy?: string;
  /** How many run at once, on all workers together. */
  concurrency?: { total?: number; perPartition?: number };
  /** How many start in a time; `cost` is a number, or the path in the payload where it stands. */
  rate?: { count: number; perMs: number; per?: "total" | "partition"; burst?: number; cost?: number | string }[];
  /** Limits that it shares with other services, by name. */
  limits?: string[];
  /** Its tasks rest encrypted, where a server encrypts what is declared. */
  encrypt?: boolean;
  /** The service that undoes a task of this one which is canceled. */
  compensate?: string;
}

export class Worker {
  readonly id: string;
  readonly concurrency: number;
  readonly graceMs: number;
  readonly #server: Server;
  readonly #log: (line: string) => void;
  readonly #handlers = new Map<string | null, Handler<any>>();
  readonly #declared: Record<string, unknown>[] = [];
  readonly #slots: Slots;
  readonly #leaving = new AbortController();
  #group: string | null = null;
  #link: Link | undefined;

  constructor(options: WorkerOptions = {}) {
    const { url, key, id, concurrency = 10, graceMs = 30_000, log = stamped } = options;
    if (!Number.isInteger(concurrency) || concurrency < 1) {
      throw new RangeError("a worker needs a concurrency of at least 1");
    }
    this.#server = new Server(url, key);
    this.id = id ?? `${hostname()}-${process.pid}-${randomBytes(3).toString("hex")}`;
    this.concurrency = concurrency;
    this.graceMs = graceMs;
    this.#log = log;
    this.#slots = new Slots(concurrency);
  }

  get connected(): boolean {
    return this.#link?.connected ?? false;
  }

  /** The handler does the tasks of this name. */
  service<Payload>(name: string, handler: Handler<Payload>, options: ServiceOptions = {}): this {
    if (this.#handlers.has(name)) throw new Error(`'${name}' is served twice`);
    this.#handlers.set(name, handler);
    const said = {
      schema: options.schema && { [name]: options.schema },
      output: options.output && { [name]: options.output },
      description: options.description,
      requires_approval: options.requiresApproval,
      sensitive: options.sensitive,
      timeout_ms: options.timeoutMs,
      max_retries: options.maxRetries,
      expose: options.expose,
      partition_by: options.partitionBy,
      concurrency: options.concurrency && {
        total: options.concurrency.total,
        per_partition: options.concurrency.perPartition,
      },
      rate: options.rate?.map(({ count, perMs, per, burst, cost }) => ({ count, per_ms: perMs, per, burst, cost })),
      limits: options.limits,
      encrypt: options.encrypt,
      compensate: options.compensate,
    };
    // To say nothing must not unsay what another worker has declared of the same service.
    if (Object.keys(options).length > 0) this.#declared.push({ name, task_types: [name], ...said });
    return this;
  }

  /** The handler answers what HTTP clients send to this worker group. */
  group<Payload>(name: string, handler: Handler<Payload>): this {
    if (this.#group !== null) throw new Error(`a worker serves one group; this one has '${this.#group}' already`);
    this.#group = name;
    this.#handlers.set(null, handler);
    return this;
  }

  /** Serve until SIGTERM or SIGINT, then finish what runs; a second signal ends it at once. */
  async run(): Promise<void> {
    const onSignal = (_: NodeJS.Signals, number: number) => {
      if (this.#leaving.signal.aborted) process.exit(128 + number);
      this.#log("finishing what runs; once more to leave at once");
      this.drain();
    };
    const signals = ["SIGTERM", "SIGINT"] as const;
    for (const signal of signals) process.on(signal, onSignal);
    try {
      await this.serve();
    } finally {
      for (const signal of signals) process.off(signal, onSignal);
    }
    // A handler that never ends must not keep a drained process alive.
    if (this.#slots.used > 0) setTimeout(() => process.exit(), LAST_WORDS_MS).unref();
  }

  /** Serve until `drain` is called, then finish what runs. */
  async serve(): Promise<void> {
    if (this.#handlers.size === 0) throw new Error("nothing to do: give it a handler with service() or group()");
    const shop = this.#shop();
    const leaving = this.#leaving.signal;
    let pause = FIRST_PAUSE_MS;
    while (!leaving.aborted) {
      const began = performance.now();
      this.#link = new Link(shop);
      const { code, reason } = await this.#link.ended;
      if (leaving.aborted) return;
      // Both of us coming back for ever would take every task from the other.
      if (code === REPLACED) throw new NameTaken(`another worker has connected as '${this.id}'; this one stops`);
      if (this.#link.refused) throw new WorkerRefused(reason);
      if (performance.now() - began > STEADY_MS) pause = FIRST_PAUSE_MS;
      const wait = Math.round(pause * (0.5 + Math.random() / 2));
      this.#log(`no connection (${reason}); trying again in ${wait} ms`);
      await sleep(wait, undefined, { signal: leaving }).catch(() => undefined);
      pause = Math.min(pause * 2, LONGEST_PAUSE_MS);
    }
  }

  /** Take nothing more, finish what runs, and let `serve` return. */
  drain(): void {
    this.#leaving.abort();
    this.#link?.drain(this.graceMs);
  }

  #shop(): Shop {
    const services = [...this.#handlers.keys()].filter((name) => name !== null);
    const { id: workerId, concurrency } = this;
    return {
      server: this.#server,
      // A group left out would mean the group "default".
      registration: { workerId, group: this.#group, services, concurrency, declare: this.#declared },
      handlers: this.#handlers,
      slots: this.#slots,
      log: this.#log,
      onDrain: () => {
        if (!this.#leaving.signal.aborted) this.#log("the server wants this worker to go; finishing what runs");
        this.drain();
      },
    };
  }
}

function stamped(line: string): void {
  console.error(`${new Date().toTimeString().slice(0, 8)}  ${line}`);
}
