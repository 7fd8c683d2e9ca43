"""What an executor may return for a task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from onward.core.task import Instant, Json, Note, Task, WorkerId, is_text, weight
from onward.faults import Fault, storable_fault


class Succeeded(msgspec.Struct, frozen=True):
    result: Json
    journal: Json | None = None
    notes: tuple[Note, ...] = ()  # events that belong to this step, before the one that ends it
    taken_by: WorkerId | None = None  # whose delivery is not in the ledger yet: it was so quick


class Failed(msgspec.Struct, frozen=True):
    fault: Fault
    journal: Json | None = None
    notes: tuple[Note, ...] = ()
    taken_by: WorkerId | None = None


class Canceled(msgspec.Struct, frozen=True):
    """It was asked to stop, and has stopped."""

    journal: Json | None = None
    notes: tuple[Note, ...] = ()


class Parked(msgspec.Struct, frozen=True, kw_only=True):
    """Waits for letters or for an instant; holds no worker meanwhile."""

    seen: int  # letters that came with the claim; if more have come since, it is queued instead
    journal: Json
    bulk: Json | UnsetType | None = UNSET  # UNSET: as it was, and nothing of it is written
    waiting_for: str
    until: Instant | None = None
    spawn: Sequence[Task] = ()  # children; the Dispatcher submits them
    notes: tuple[Note, ...] = ()


class Released(msgspec.Struct, frozen=True):
    """Handed back untouched: a shutdown, not a failure.

    With a fault, the worker cannot do it at all: put off a while, or it would be claimed again at
    once by the same worker.
    """

    fault: Fault | None = None


class Lost(msgspec.Struct, frozen=True):
    """The worker went away with it."""

    detail: Json | None = None  # for the log, if more is known than which worker it was


MOST_BYTES = 64 << 20  # of one outcome
TEXTS = ("result", "journal", "bulk", "progress")

Outcome: TypeAlias = Succeeded | Failed | Canceled | Parked | Released | Lost


def storable(outcome: Outcome) -> Outcome:
    """The same if a ledger can keep it, else a failure with what is wrong with it."""
    if type(outcome) is Succeeded and not (outcome.notes or outcome.journal or outcome.taken_by):
        text = outcome.result  # nearly all are just this, and need no closer look
        if type(text) is str and text.isascii() and len(text) <= MOST_BYTES:
            return outcome
    try:
        if isinstance(outcome, Failed):
            outcome = msgspec.structs.replace(outcome, fault=storable_fault(outcome.fault))
        _check(outcome)
    except Exception as error:
        return invalid_outcome(error)
    return outcome


def invalid_outcome(error: Exception) -> Failed:
    """What came back from a handler cannot be kept: its attempt is over, and would end so again."""
    why = f"{type(error).__name__}: {error}"
    message = f"the outcome of the handler cannot be stored ({why})"[:500]
    return Failed(storable_fault(Fault(kind="OutcomeInvalid", message=message, retryable=False)))


def size_of(item: object) -> int:
    """About how many bytes an outcome, or a hold, takes, at most."""
    if type(item) is Succeeded and not item.notes and item.journal is None:
        return len(item.result)
    size = sum([weight(getattr(item, name, None)) for name in TEXTS])
    if isinstance(item, Parked):
        size += sum([weight(child.payload) for child in item.spawn])
    return size + sum([weight(data) for _, data in getattr(item, "notes", ())])


def _check(outcome: Outcome) -> None:
    if isinstance(outcome, Released | Lost):
        return
    size = size_of(outcome)
    if size > MOST_BYTES:
        raise ValueError(
            f"it takes {size >> 20} MiB of at most {MOST_BYTES >> 20}:"
            " keep what is large elsewhere, and return where it is"
        )
    if not isinstance(outcome, Succeeded | Failed | Canceled | Parked):
        raise TypeError(f"a {type(outcome).__name__} is no outcome")
    if isinstance(outcome, Succeeded):
        _check_text("result", outcome.result)
    types = [("note", type_) for type_, _ in outcome.notes]
    datas = [("note", data) for _, data in outcome.notes if data is not None]
    memory = [(name, getattr(outcome, name, None)) for name in ("journal", "bulk")]
    kept = [(name, text) for name, text in memory if text is not None and text is not UNSET]
    if (worker := getattr(outcome, "taken_by", None)) is not None:
        kept.append(("worker", worker))
    for what, text in (*kept, *types, *datas):
        _check_text(what, text)


def _check_text(what: str, value: object) -> None:
    if not is_text(value):
        wrong = "is no text" if not isinstance(value, str) else "holds half of a surrogate pair"
        raise ValueError(f"its {what} {wrong}")
