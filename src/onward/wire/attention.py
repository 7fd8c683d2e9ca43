"""What needs a person now."""

from __future__ import annotations

from typing import Literal

from onward.wire.base import Instant, Wire

Rule = Literal[
    "breaker_open",
    "no_worker",
    "dead",
    "oldest_waiting",
    "approval_open",
    "schedule_refused",
    "queue_paused",
]


class AttentionItem(Wire, frozen=True):
    """Something that needs a person now."""

    rule: Rule
    target: str  # the queue, the approval's id or the schedule's name; with the rule, who it is
    since: Instant | None  # None: not known
    message: str  # one sentence that stands by itself
    link: str  # to the page, below the server's address
