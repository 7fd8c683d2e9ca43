"""Every text at rest that may be sealed, one after the other, whatever the ledger. The seam.

A ledger reads them as they are kept, and writes one anew only if it is still as it was read: that
guard is all that is needed beside a running server, since the new text means the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from onward.core.contract import Backend

# Documents about workers, servers and rules: the ledgers read some of these themselves.
CLEAR = frozenset(
    {
        *("cursor", "duty", "server", "worker", "http_worker", "service", "service_worker"),
        *("pause", "breaker", "schedule_stamp", "flow", "flow_name", "reader", "retired_cursor"),
    }
)

CLAIMED = "task.claimed"  # an event that the ledgers write themselves: which worker has it


class SealedText(NamedTuple):
    place: tuple[str | int, ...]  # its ledger's own; empty: it stays as it is until it goes
    owner: str
    field: str
    text: str


class SealedTexts(Protocol):
    async def read(self, after: str, limit: int) -> tuple[Sequence[SealedText], str | None]:
        """Some, about `limit`, from a cursor on ("": the first); None: these were the last."""
        ...

    async def rewrite(self, changes: Sequence[tuple[SealedText, str]]) -> int:
        """Each that is still as it was read; returns how many were."""
        ...


class Resealable(Backend, Protocol):
    """A ledger whose texts at rest can be gone through."""

    @property
    def sealed_texts(self) -> Sequence[SealedTexts]: ...


def owner_of(task: str) -> str:
    return f"task:{task}"


def event_field(type_: str) -> str:
    return f"event:{type_}"


def letter_field(name: str) -> str:
    return f"letter:{name}"


def document_owner(kind: str) -> str:
    return f"document:{kind}"


def effect_owner(key: str) -> str:
    return f"effect:{key}"
