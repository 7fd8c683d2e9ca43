/** What a handler may throw, and what it may meet. */

/** Throw it in a handler: this will not go better another time. */
export class Refused extends Error {}

/** Throw it in a handler: this may go better later, after `retryAfterMs`, or as the schedule has it. */
export class TryAgain extends Error {
  readonly retryAfterMs: number | undefined;

  constructor(message: string, options: ErrorOptions & { retryAfterMs?: number } = {}) {
    super(message, options);
    this.retryAfterMs = options.retryAfterMs;
  }
}

/** An earlier attempt began this effect and never said how it went: a person must look. */
export class EffectUnknown extends Refused {}

/** What was to be sent does not fit into a frame, and will not the next time either. */
export class ResultTooLarge extends Refused {}

/** What was to be sent is nothing that JSON, or the server, can say. */
export class ResultInvalid extends Refused {}

/** Somebody canceled the task, or its time is over. */
export class Canceled extends Refused {}

/** The task is in other hands by now: whatever this attempt still does is for nobody. */
export class LostTask extends Error {}

/** Somebody else works under this worker's id. */
export class NameTaken extends Error {}

/** The server refuses this worker, and would each time it asked. */
export class WorkerRefused extends Error {}

/** Nobody answers, or the connection was cut before the answer. */
export class Unreachable extends Error {}

/** The server answered, and the answer is no. */
export class ProblemError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}
