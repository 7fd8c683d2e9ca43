"""One ledger, or backup, into another: everything, in its order, and read again to compare."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing

import msgspec

from onward.core.errors import Invalid
from onward.core.readers import CURSORS, RETIRED
from onward.ledgers.portable.records import (
    KINDS,
    AnyRecord,
    DocumentRecord,
    EffectRecord,
    EventRecord,
    Portable,
    kind_of,
)

Progress = Callable[[str, int], None]  # what is being done, and how many more are done

_encode = msgspec.json.Encoder(order="sorted").encode


class Contents:
    """How many records there are of each kind, and a sum over them, in whatever order."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._sums: Counter[str] = Counter()

    def add(self, records: Sequence[AnyRecord]) -> None:
        for record in records:
            kind = kind_of(record)
            self.counts[kind] += 1
            mark = hashlib.blake2b(_encode(_everywhere(record)), digest_size=8).digest()
            self._sums[kind] += int.from_bytes(mark)

    def differs(self, other: Contents) -> str:
        """In what, or ''."""
        return ", ".join(
            f"{self.counts[kind]:,} and {other.counts[kind]:,} of {kind}"
            for kind in KINDS
            if (self.counts[kind], self._sums[kind]) != (other.counts[kind], other._sums[kind])
        )


def _everywhere(record: AnyRecord) -> AnyRecord:
    """What of it is the same in every ledger."""
    if isinstance(record, EventRecord):
        return msgspec.structs.replace(record, cursor="")
    if isinstance(record, EffectRecord):
        return msgspec.structs.replace(record, begun_at=0)
    if isinstance(record, DocumentRecord) and record.kind in (CURSORS, RETIRED):
        return msgspec.structs.replace(record, body="")
    return record


async def contents(source: Portable, doing: str, progress: Progress) -> Contents:
    found = Contents()
    async with aclosing(source.read()) as parts:
        async for records in parts:
            found.add(records)
            progress(doing, len(records))
    return found


async def copy(source: Portable, target: Portable, progress: Progress) -> Contents:
    """Raises unless what the target holds in the end is what the source held."""
    copied = Contents()
    async with target.writing() as writer, aclosing(source.read(to_copy=True)) as parts:
        async for records in parts:
            copied.add(records)
            await writer.write(records)
            progress("copying", len(records))
    found = await contents(target, "checking", progress)
    if difference := copied.differs(found):
        raise Invalid(
            f"the copy differs from what was copied: {difference}",
            hint="empty the target and copy again, with no server on either",
        )
    return copied
