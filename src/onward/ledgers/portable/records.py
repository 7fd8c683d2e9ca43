"""What a ledger holds, as records that any ledger can read and write. The seam.

As it is kept: a sealed text stays sealed, and ids, fences, revs, generations, places and numbers
of events stay what they are. Only a cursor of the log means nothing elsewhere: see readers.py.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Any, Protocol, TypeAlias, get_args

import msgspec

from onward.core.limits import Micros
from onward.core.task import Instant, Json, Task, TaskId

Value: TypeAlias = str | int


class Record(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="record"):
    pass


class DocumentRecord(Record, tag="document", frozen=True):
    kind: str
    key: str
    body: Json
    version: int
    expires_at: Instant | None = None


class TaskRecord(Record, tag="task", frozen=True):
    born: int  # its place among all: lists go by it
    place: int  # its place in its queue
    fields: Mapping[str, Value]  # of Task, those that are not at their default
    letters: tuple[tuple[str, Json], ...] = ()  # unread: name and body

    @property
    def id(self) -> TaskId:
        return str(self.fields["id"])


class EventRecord(Record, tag="event", frozen=True):
    cursor: str  # its place in the log
    task: TaskId
    n: int
    generation: int
    type: str
    at: Instant
    data: Json | None = None


class KeyRecord(Record, tag="key", frozen=True):
    scope: str
    key: str
    body: str
    task: TaskId
    forget_at: Instant | None = None


class EffectRecord(Record, tag="effect", frozen=True):
    scope: str
    key: str
    name: str
    task: TaskId
    fence: int
    value: Json | None = None
    begun_at: Instant = 0  # where that is kept


class RateRecord(Record, tag="rate", frozen=True):
    """When all that has started under a limit by time is paid off."""

    name: str
    each: int  # 1: of the partition alone
    partition: str
    paid_at: Micros
    forget_at: Instant  # it makes no difference from then on: a copy may be without it


AnyRecord: TypeAlias = (
    DocumentRecord | TaskRecord | EventRecord | KeyRecord | EffectRecord | RateRecord
)
KINDS: Sequence[str] = [
    str(kind.__struct_config__.tag) for kind in get_args(AnyRecord) if kind is not RateRecord
]


def kind_of(record: Record) -> str:
    return str(record.__struct_config__.tag)


class RecordWriter(Protocol):
    async def write(self, records: Sequence[AnyRecord]) -> None:
        """A part as `read` returned it, in that order."""
        ...


class Portable(Protocol):
    """A ledger, or a file, that is read or written as a whole."""

    @property
    def snapshot(self) -> bool:
        """Whether what is read is as of one instant, beside servers that write."""
        ...

    async def servers(self, now: Instant) -> Sequence[str]:
        """Those that run on it."""
        ...

    def read(self, *, to_copy: bool = False) -> AsyncGenerator[Sequence[AnyRecord]]:
        """All there is, in parts: documents, tasks by birth, events by the log, keys, effects,
        rates.

        `to_copy`: Invalid if it also holds submissions that are no records yet.
        """
        ...

    async def counts(self) -> Mapping[tuple[str, str], int] | None:
        """Tasks by queue and state, as they are kept; None: they are not."""
        ...

    def writing(self) -> AbstractAsyncContextManager[RecordWriter]:
        """Refuses unless it is empty. Leaving with an error writes no ledger."""
        ...


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return int(value) if isinstance(value, bool) else value


_FIELDS = msgspec.structs.fields(Task)
DEFAULTS: Mapping[str, Any] = {
    field.name: _plain(field.default) for field in _FIELDS if field.default is not msgspec.NODEFAULT
}


def task_fields(row: Mapping[str, Any]) -> dict[str, Value]:
    """A row's columns, without those at their default and those that are not of a Task."""
    missing = object()
    return {
        field.name: value
        for field in _FIELDS
        if (value := _plain(row.get(field.name))) is not None
        and value != DEFAULTS.get(field.name, missing)
    }
