import { EventEmitter, once } from "node:events";

/**
 * At most so many handlers at a time. The server keeps to that as far as it knows; but it thinks a place
 * free when a task was lost or timed out, while a handler that does not heed its signal is still in it.
 */
export class Slots {
  used = 0;
  readonly #freed = new EventEmitter().setMaxListeners(0);

  constructor(readonly count: number) {}

  async use<T>(signal: AbortSignal, work: () => T): Promise<Awaited<T>> {
    while (this.used >= this.count) await once(this.#freed, "one", { signal });
    this.used++;
    try {
      return await work();
    } finally {
      this.used--;
      this.#freed.emit("one");
    }
  }
}
