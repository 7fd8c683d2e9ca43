"""About how many bytes an item takes on its way to the ledger: calls are bounded by it."""

from __future__ import annotations

from onward.core.contract import Hold, Submission
from onward.core.outcome import Outcome, Parked
from onward.core.task import Claimed


def weight(text: object) -> int:
    """At most so many: one a character, or four of those that are not ASCII."""
    if not isinstance(text, str):
        return 0
    return len(text) if text.isascii() else 4 * len(text)


def of_submission(item: Submission) -> int:
    return weight(item.task.payload)


def of_settlement(item: tuple[Claimed, Outcome]) -> int:
    outcome = item[1]
    size = weight(getattr(outcome, "result", None)) + weight(getattr(outcome, "journal", None))
    if isinstance(outcome, Parked):
        size += sum(weight(child.payload) for child in outcome.spawn)
    return size


def of_hold(hold: Hold) -> int:
    return weight(hold.progress) + sum(weight(data) for _, data in hold.notes)
