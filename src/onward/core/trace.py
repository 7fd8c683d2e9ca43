"""Where a task stands in its caller's trace: kept with the task, handed on with each attempt.

Ids of spans are derived and not drawn: the worker that hangs its own spans below an attempt, and
the server that writes that attempt's span minutes later, must mean the same one. Knows
the W3C `traceparent` and no tracing library; a task without one costs a look.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import TypeVar

import msgspec

from onward.core.outcome import Outcome, Parked
from onward.core.policy import Overrides, overrides_of
from onward.core.task import Claimed, Json, Task, TaskId

RUN, QUEUE = "run", "queue"  # the stages of a task that have spans

_is_traceparent = re.compile(
    r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII
).fullmatch
_MARK = '"traceparent"'


def span_id(task: TaskId, generation: int, attempt: int, stage: str) -> int:
    told_apart = f"{stage}:{generation}:{attempt}:{task}".encode()
    return int.from_bytes(blake2b(told_apart, digest_size=8).digest()) or 1


def traceparent_of(overrides: Json | None) -> str | None:
    # Most tasks have none, and many have overrides: those are not read for it.
    if overrides is None or _MARK not in overrides:
        return None
    return overrides_of(overrides).traceparent


def sampled(traceparent: str) -> bool:
    return bool(int(traceparent[-2:], 16) & 1)


def stored(traceparent: str | None) -> Json | None:
    """As overrides, from a caller who may have written anything there."""
    if not traceparent or not _is_traceparent(traceparent):
        return None
    return Overrides(traceparent=traceparent).encode()


def placed(task: Task, traceparent: str) -> Task:
    """The same task at that place of a trace."""
    overrides = msgspec.structs.replace(overrides_of(task.overrides), traceparent=traceparent)
    return msgspec.structs.replace(task, overrides=overrides.encode())


def handed_on(task: Claimed) -> str | None:
    """What the worker of this attempt gets: the place of its span."""
    own = traceparent_of(task.overrides)
    if own is None:
        return None
    attempt = span_id(task.id, task.generation, task.attempt, RUN)
    return f"{own[:36]}{attempt:016x}{own[52:]}"


Some = TypeVar("Some", bound=Outcome)


def inherited(parent: Claimed, outcome: Some) -> Some:
    """The same outcome; the children that it spawns stand below the parent's attempt."""
    if not isinstance(outcome, Parked) or not outcome.spawn:
        return outcome
    below = handed_on(parent)
    if below is None:
        return outcome
    return msgspec.structs.replace(outcome, spawn=[placed(child, below) for child in outcome.spawn])
