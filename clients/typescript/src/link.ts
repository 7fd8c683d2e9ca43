/**
 * One connection to the server: what it brought, what of it runs, and the answers.
 *
 * A task belongs to the connection that brought it. When that is gone the server has taken the task
 * back, so its handler is told to stop and whatever it returns is dropped.
 */

import { WebSocket } from "ws";
import { Context } from "./context.js";
import { LostTask, Refused, ResultTooLarge, TryAgain } from "./errors.js";
import { faultFrom } from "./fault.js";
import { type Incoming, LARGEST, type Task, decode, toJson } from "./frames.js";
import { type Server } from "./server.js";
import { type Slots } from "./slots.js";

/** What all connections of a worker share. */
export interface Shop {
  server: Server;
  registration: { workerId: string; group: string | null; [field: string]: unknown };
  handlers: ReadonlyMap<string | null, (payload: any, ctx: Context) => unknown>; // null: of the group
  slots: Slots;
  log: (line: string) => void;
  onDrain: () => void; // the server wants us to go
}

const ANSWER_MS = 10_000;
const BEAT_MS = 10_000;
const MISSED_BEATS = 2;

class UnknownService extends TryAgain {}

export class Link {
  readonly ended: Promise<{ code: number; reason: string }>;
  connected = false;
  refused = false; // the registration, for good
  readonly #socket: WebSocket;
  readonly #running = new Map<string, Context>();
  readonly #timers: NodeJS.Timeout[] = [];
  #reason = ""; // why it ended, as far as we know better than the server
  #missed = 0;
  #draining = false;
  #quiet = false; // we are draining, and no task is on its way to us

  constructor(readonly shop: Shop) {
    const socket = new WebSocket(shop.server.socketUrl, {
      handshakeTimeout: ANSWER_MS,
      headers: shop.server.headers,
      maxPayload: 0, // the server bounds what it takes in; what it took must reach us
      perMessageDeflate: false, // costs more than it saves on small frames
    });
    this.#socket = socket;
    this.ended = new Promise((resolve) => {
      socket.on("error", (error) => (this.#reason ||= error.message || error.name));
      socket.on("close", (code, said) => {
        this.connected = false;
        for (const timer of this.#timers) clearTimeout(timer);
        for (const context of this.#running.values()) context.lose();
        resolve({ code, reason: this.#reason || String(said) || `closed with ${code}` });
      });
    });
    socket.on("open", () => this.#register());
    socket.on("message", (data) => this.#hear(String(data)));
    for (const event of ["message", "ping", "pong"]) socket.on(event, () => (this.#missed = 0));
  }

  /** Take nothing more, finish what runs as far as the time allows, and go. */
  drain(graceMs: number): void {
    if (!this.connected) return this.#socket.terminate();
    if (this.#draining) return;
    this.#draining = true;
    this.#later(graceMs, () => {
      this.shop.log(`time is over: ${this.#running.size} running tasks go back to the server`);
      this.#socket.close(1000);
    });
    this.#say({ type: "drain" });
    // Frames keep their order: once this is answered, no task is on its way to us.
    this.#say({ type: "ping" });
    this.#later(ANSWER_MS, () => this.#leaveWhenDone());
  }

  #register(): void {
    this.#say({ type: "register", ...this.shop.registration });
    this.#later(ANSWER_MS, () => this.connected || this.#socket.terminate());
    // Counted, not timed: a handler that blocks this process must not look like a dead server.
    const beat = setInterval(() => {
      if (this.#missed++ < MISSED_BEATS) this.#socket.ping();
      else this.#socket.terminate();
    }, BEAT_MS);
    this.#timers.push(beat);
  }

  #hear(text: string): void {
    const frame = decode(text);
    if (frame === undefined) this.shop.log(`a frame of ${text.length} characters was not understood`);
    else if (this.connected) this.#take(frame);
    else if (frame.type === "registered") {
      this.connected = true;
      const { server, registration, handlers, log } = this.shop;
      const names = [...handlers.keys()].map((name) => name ?? `group:${registration.group}`);
      log(`connected to ${server.url} as ${registration.workerId}, serving ${names.join(", ")}`);
    } else {
      const why = frame.type === "error" ? frame.message : "no answer to it";
      this.refused = frame.type === "error" && frame.final === true;
      this.#reason = `the server did not take the registration: ${why}`;
      this.#socket.terminate();
    }
  }

  #take(frame: Incoming): void {
    if (frame.type === "task") void this.#work(frame);
    else if (frame.type === "cancel") this.#running.get(frame.taskId)?.cancel();
    else if (frame.type === "ping") this.#say({ type: "pong" });
    else if (frame.type === "pong" && this.#draining) this.#leaveWhenDone();
    else if (frame.type === "drain") this.shop.onDrain();
    else if (frame.type === "error") this.shop.log(`the server did not take a frame: ${frame.message}`);
  }

  async #work(task: Task): Promise<void> {
    const context = new Context(task, (frame) => this.#send(frame), this.shop.server);
    // The server gave up on an attempt that still runs here; its answer would be taken for the new one's.
    this.#running.get(task.taskId)?.lose();
    this.#running.set(task.taskId, context);
    const answer = await this.#answer(task, context);
    // Both fail only when the connection is gone, and then nobody waits for them.
    await context.flush().catch(() => undefined);
    if (context.lost) this.shop.log(`task ${task.taskId} was taken back; what came of it is dropped`);
    else await this.#send(answer).catch(() => undefined);
    if (this.#running.get(task.taskId) === context) this.#running.delete(task.taskId);
    if (this.#quiet) this.#leaveWhenDone();
  }

  /** Call the handler, and put into a frame how it went. */
  async #answer(task: Task, context: Context): Promise<string> {
    const head = { type: "taskResult", taskId: task.taskId, fence: task.fence };
    try {
      const { handlers } = this.shop;
      const handler = handlers.get(task.service ?? null) ?? (task.service && task.queue ? handlers.get(task.queue) : undefined);
      if (handler === undefined) throw new UnknownService(`this worker serves no ${task.service ?? "group"}`);
      const result = await this.shop.slots.use(context.signal, () => handler(task.payload ?? null, context));
      return fitting(toJson({ ...head, result }));
    } catch (thrown) {
      const why: unknown = context.signal.aborted ? context.signal.reason : thrown;
      const expected = why instanceof Refused || why instanceof TryAgain || why instanceof LostTask;
      const which = `${task.service ?? "group"}, task ${task.taskId}, attempt ${task.attempt}`;
      this.shop.log(`${which} failed: ${(!expected && (why as Error)?.stack) || String(why)}`);
      const released = why instanceof UnknownService || undefined; // not begun: the task burns no attempt
      return toJson({ ...head, ...faultFrom(why), released });
    }
  }

  #say(frame: object): void {
    this.#send(toJson(frame)).catch(() => undefined); // that the connection is gone is seen elsewhere
  }

  /** Done when it is on its way, so that whoever awaits it does not fill the memory. */
  async #send(frame: string): Promise<void> {
    fitting(frame);
    await new Promise<void>((resolve, reject) =>
      this.#socket.send(frame, (error) => {
        if (error) reject(new LostTask("the connection that brought the task is gone"));
        else resolve();
      }),
    );
  }

  #leaveWhenDone(): void {
    this.#quiet = true;
    if (this.#running.size === 0) this.#socket.close(1000); // after what was sent before
  }

  #later(ms: number, what: () => void): void {
    this.#timers.push(setTimeout(what, ms));
  }
}

function fitting(frame: string): string {
  const bytes = Buffer.byteLength(frame);
  if (bytes > LARGEST) throw new ResultTooLarge(`${bytes} bytes; at most ${LARGEST} can be sent`);
  return frame;
}
