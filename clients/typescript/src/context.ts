/** What a handler can do while it runs: tell progress, emit parts, act once on the world outside. */

import { Canceled, EffectUnknown, LostTask, ProblemError, Unreachable } from "./errors.js";
import { type Task, toJson } from "./frames.js";
import { type Server } from "./server.js";

const PROGRESS_EVERY_MS = 100;

/** `fence` and `own` of an unknown effect: the attempt that began it, and whether that is this one. */
type Begun = { state: string; value?: unknown; fence?: number; own?: boolean };

/** Its methods throw once the task is canceled or lost: a handler that awaits them stops there. */
export class Context {
  readonly taskId: string;
  readonly attempt: number;
  /** Stable over attempts: hand it to whoever can deduplicate by it. */
  readonly key: string;
  /** W3C, if the task is part of a trace: the parent of whatever span is opened here. */
  readonly traceparent: string | undefined;
  /** @internal */
  lost = false;
  readonly #send: (frame: string) => Promise<void>;
  readonly #server: Server;
  readonly #abort = new AbortController();
  readonly #fence: number;
  #heldBack: string | undefined;
  #nextProgress = 0;
  #timer: NodeJS.Timeout | undefined;

  /** @internal */
  constructor(task: Task, send: (frame: string) => Promise<void>, server: Server) {
    this.taskId = task.taskId;
    this.attempt = task.attempt;
    this.key = task.key ?? task.taskId;
    this.traceparent = task.traceparent ?? undefined;
    this.#fence = task.fence;
    this.#send = send;
    this.#server = server;
  }

  /** Aborted when the task is canceled or lost, with `Canceled` or `LostTask` as the reason. */
  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  /** At most ten go out a second; the newest always does. */
  progress(value: number, message?: string): Promise<void> {
    return unwatched(async () => {
      this.signal.throwIfAborted();
      if (Number.isNaN(value)) throw new RangeError("progress is a number from 0 to 1");
      const progress = Math.min(1, Math.max(0, value));
      this.#heldBack = toJson({ type: "progress", taskId: this.taskId, progress, message });
      const wait = this.#nextProgress - performance.now();
      if (wait <= 0) await this.flush();
      else this.#timer ??= setTimeout(() => unwatched(() => this.flush()), wait);
    });
  }

  /** Partial output, seen at once by whoever follows the task. */
  emit(data: unknown): Promise<void> {
    return unwatched(async () => {
      this.signal.throwIfAborted();
      await this.#send(toJson({ type: "chunk", taskId: this.taskId, data: data ?? null }));
    });
  }

  /**
   * Do something to the outside world once per task, over retry, reclaim and replay. The value comes back
   * as JSON has it, the first time too: a second attempt must not meet another type.
   *
   * `repeatUnknown`: again, although an earlier attempt may have done it; for what the other side deduplicates.
   */
  async once<T>(name: string, effect: () => T, options: { repeatUnknown?: boolean } = {}): Promise<Awaited<T>> {
    this.signal.throwIfAborted();
    const begun = await this.#begin(name);
    if (begun.state === "done") return begun.value as Awaited<T>;
    if (begun.state === "unknown" && !options.repeatUnknown) {
      throw new EffectUnknown(`'${name}' was begun by an earlier attempt, and nobody knows whether it happened`);
    }
    let value: unknown;
    try {
      value = (await effect()) ?? null;
    } catch (error) {
      // It says that it did not happen. Interrupted by our signal it says nothing: then it stays begun.
      if (!this.signal.aborted) await this.#takeBack(name);
      throw error;
    }
    // The fence that began it: an earlier attempt's, if this one repeats what that one left unknown.
    const body = toJson({ fence: begun.state === "begun" ? this.#fence : begun.fence, value });
    await this.#server.ask("PUT", this.#path(name), body);
    return JSON.parse(body).value;
  }

  async #begin(name: string): Promise<Begun> {
    try {
      const { answer, asked } = await this.#server.askCounting("POST", this.#path(name), toJson({ fence: this.#fence }));
      // Asked twice, it may be noted by the first request, of which only the answer was lost.
      return asked > 1 && answer.own ? { state: "begun" } : answer;
    } catch (error) {
      // Perhaps it was noted and only the answers lost. As it has not begun, the note goes, or the
      // next attempt would think that it might have.
      if (error instanceof Unreachable) await this.#takeBack(name);
      if (!(error instanceof ProblemError && error.status === 409)) throw error;
      this.lose();
      throw new LostTask(error.message);
    }
  }

  async #takeBack(name: string): Promise<void> {
    // Should this fail too, the effect stays begun: a person must look, which is the safe side.
    await this.#server.ask("DELETE", `${this.#path(name)}?fence=${this.#fence}`).catch(() => undefined);
  }

  #path(name: string): string {
    return `/api/v2/tasks/${encodeURIComponent(this.taskId)}/effects/${encodeURIComponent(name)}`;
  }

  /** @internal */
  cancel(): void {
    this.#abort.abort(new Canceled("the task was canceled"));
  }

  /** @internal */
  lose(): void {
    this.lost = true;
    this.#abort.abort(new LostTask("the task was taken back"));
  }

  /** Progress that was held back goes out now: the handler has ended, or its time has come. @internal */
  async flush(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const frame = this.#heldBack;
    this.#heldBack = undefined;
    if (frame === undefined || this.signal.aborted) return;
    this.#nextProgress = performance.now() + PROGRESS_EVERY_MS;
    await this.#send(frame);
  }
}

/** A handler that does not await it must not bring the process down when the connection is gone. */
function unwatched(work: () => Promise<void>): Promise<void> {
  const promise = work();
  promise.catch(() => undefined);
  return promise;
}
