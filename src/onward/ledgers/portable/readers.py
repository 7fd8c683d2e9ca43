"""Where readers of the log go on in another ledger: after the same event, by its new cursor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from onward.core.readers import CURSORS, RETIRED
from onward.core.task import encode
from onward.ledgers.portable.records import DocumentRecord, EventRecord


class MovedReaders:
    """The documents that hold cursors, put aside until the log has been written."""

    def __init__(self) -> None:
        self._waiting: list[tuple[tuple[int, ...], DocumentRecord]] = []
        self._read: dict[int, str] = {}

    def without(self, documents: Sequence[DocumentRecord]) -> Sequence[DocumentRecord]:
        """Those that are to be written as they are."""
        others = [document for document in documents if document.kind not in (CURSORS, RETIRED)]
        for document in documents:
            if document.kind in (CURSORS, RETIRED):
                self._waiting.append((_order(_cursor(document)), document))
        return others

    def passed(self, event: EventRecord, cursor: str) -> None:
        """This event of the log was written, and is found under this cursor now."""
        order = _order(event.cursor)
        for at, (read, _) in enumerate(self._waiting):
            if order <= read:
                self._read[at] = cursor

    def documents(self) -> Iterator[DocumentRecord]:
        for at, (_, document) in enumerate(self._waiting):
            yield msgspec.structs.replace(document, body=encode(self._read.get(at, "")))


def _cursor(document: DocumentRecord) -> str:
    try:
        return msgspec.json.decode(document.body, type=str)
    except msgspec.DecodeError:  # what its reader has seen is not known: it begins anew
        return ""


def _order(cursor: str) -> tuple[int, ...]:
    """Of a cursor of any ledger: a number, or two with a dash between."""
    try:
        return tuple(int(part) for part in cursor.split("-"))
    except ValueError:
        return ()
