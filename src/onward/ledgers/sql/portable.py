"""A SQL ledger as a whole: its rows out, and rows in; in one transaction each.

So what is read is as of one instant, beside running servers too, and what is written is there as a
whole or not at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from onward.core.errors import Invalid
from onward.core.task import FINAL_EVENTS, Instant
from onward.ledgers.codec import FIELDS
from onward.ledgers.portable.readers import MovedReaders
from onward.ledgers.portable.records import (
    DEFAULTS,
    AnyRecord,
    DocumentRecord,
    EffectRecord,
    EventRecord,
    KeyRecord,
    RateRecord,
    RecordWriter,
    TaskRecord,
    task_fields,
)
from onward.ledgers.sql.dialect import Row

PART = 500  # rows
TASK = ("tid", "place", "mail", *FIELDS)
LETTER = ("tid", "n", "name", "body")
EVENT = ("seq", "tid", "n", "generation", "type", "at", "data", "final")
DOCUMENT = ("kind", "key", "body", "version", "expires_at")
KEY = ("scope", "key", "body", "task", "forget_at")
EFFECT = ("scope", "key", "name", "task", "fence", "value", "begun_at")
RATE = ("name", "each", "partition", "paid_at", "forget_at")
TALLY = """
INSERT INTO tally (queue, state, lane, priority, count)
SELECT queue, state, CASE state WHEN 'queued' THEN lane ELSE '' END,
    CASE state WHEN 'queued' THEN priority ELSE 0 END, count(*)
FROM task GROUP BY 1, 2, 3, 4
"""


class Transaction(Protocol):
    """One connection of a database, in one transaction."""

    async def select(self, statement: str, *arguments: Any) -> list[Row]: ...

    async def insert(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None: ...


Reading = Callable[[], AbstractAsyncContextManager[Transaction]]
# Committed at its end, with what follows from the rows: counts, and the next numbers.
Writing = Callable[[], AbstractAsyncContextManager[Transaction]]


class SqlPortable:
    snapshot = True

    def __init__(
        self, reading: Reading, writing: Writing, task_columns: str, enqueued: str = ""
    ) -> None:
        """`task_columns`: the fields of a Task as this database reads them. `enqueued`: the table
        of what callers handed in by transactions of their own, if there is one.
        """
        self._reading = reading
        self._writing = writing
        self._task_columns = task_columns
        self._enqueued = enqueued

    async def servers(self, now: Instant) -> Sequence[str]:
        async with self._reading() as transaction:
            statement = "SELECT key FROM document WHERE kind = 'server' AND expires_at > ?"
            return [key for (key,) in await transaction.select(statement, now)]

    async def counts(self) -> Mapping[tuple[str, str], int]:
        statement = "SELECT queue, state, sum(count) FROM tally GROUP BY queue, state"
        async with self._reading() as transaction:
            rows = await transaction.select(statement)
        return {(queue, state): int(count) for queue, state, count in rows}

    async def read(self, *, to_copy: bool = False) -> AsyncGenerator[Sequence[AnyRecord]]:
        async with self._reading() as transaction:
            if to_copy and self._enqueued:
                await _refuse_enqueued(transaction, self._enqueued)
            async for records in _Rows(transaction).records(self._task_columns):
                yield records

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[RecordWriter]:
        async with self._writing() as transaction:
            for table in ("task", "document", "submission_key"):
                if await transaction.select(f"SELECT 1 FROM {table} LIMIT 1"):  # noqa: S608
                    raise Invalid("there is a ledger already", hint="use an empty database")
            writer = _RowWriter(transaction)
            yield writer
            await writer.end()


async def _refuse_enqueued(transaction: Transaction, table: str) -> None:
    """In the transaction that reads the tasks: a row that is committed after an earlier look, or
    taken over before a later one, would be missing from the copy unnoticed.
    """
    ((count,),) = await transaction.select(f"SELECT count(*) FROM {table}")  # noqa: S608
    if count:
        what = "1 submission has" if count == 1 else f"{count:,} submissions have"
        raise Invalid(
            f"{what} not been taken over yet",
            hint="start a server on it once; beside a running one, try again",
        )


class _Rows:
    def __init__(self, transaction: Transaction) -> None:
        self._select = transaction.select

    async def records(self, task_columns: str) -> AsyncIterator[Sequence[AnyRecord]]:
        async for rows in self._keyed("document", DOCUMENT, 2):
            yield [DocumentRecord(*row) for row in rows]
        async for rows in self._walk(
            f"SELECT tid, place, {task_columns} FROM task"  # noqa: S608 our own words
            " WHERE tid > ? ORDER BY tid LIMIT ?"
        ):
            yield await self._tasks(rows)
        async for rows in self._walk(
            "SELECT e.seq, t.id, e.n, e.generation, e.type, e.at, e.data"
            " FROM event e JOIN task t USING (tid) WHERE e.seq > ? ORDER BY e.seq LIMIT ?"
        ):
            yield [EventRecord(str(seq), *event) for seq, *event in rows]
        async for rows in self._keyed("submission_key", KEY, 2):
            yield [KeyRecord(*row) for row in rows]
        async for rows in self._keyed("effect", EFFECT, 3):
            yield [EffectRecord(*row) for row in rows]
        async for rows in self._keyed("rate", RATE, 3, first=("", -1, "")):
            yield [RateRecord(*row) for row in rows]

    async def _walk(self, statement: str) -> AsyncIterator[list[Row]]:
        after = 0
        while rows := await self._select(statement, after, PART):
            yield rows
            after = rows[-1][0]

    async def _keyed(
        self, table: str, columns: Sequence[str], keys: int, *, first: Row = ()
    ) -> AsyncIterator[list[Row]]:
        names = ", ".join(columns[:keys])
        first = first or ("",) * keys
        statement = (
            f"SELECT {', '.join(columns)} FROM {table}"  # noqa: S608 our own words
            f" WHERE ({names}) > ({', '.join('?' * keys)}) ORDER BY {names} LIMIT ?"
        )
        while rows := await self._select(statement, *first, PART):
            yield rows
            first = rows[-1][:keys]

    async def _tasks(self, rows: Sequence[Row]) -> Sequence[TaskRecord]:
        letters: dict[int, list[tuple[str, str]]] = defaultdict(list)
        for tid, name, body in await self._select(
            "SELECT tid, name, body FROM letter WHERE tid BETWEEN ? AND ? ORDER BY tid, n",
            *(rows[0][0], rows[-1][0]),
        ):
            letters[tid].append((name, body))
        return [
            TaskRecord(
                tid, place, task_fields(dict(zip(FIELDS, row, strict=True))), tuple(letters[tid])
            )
            for tid, place, *row in rows
        ]


class _RowWriter:
    def __init__(self, transaction: Transaction) -> None:
        self._insert = transaction.insert
        self._readers = MovedReaders()
        self._tids: dict[str, int] = {}
        self._last_event = 0

    async def write(self, records: Sequence[AnyRecord]) -> None:
        for table, columns, rows in self._rows(records):
            if rows:
                await self._insert(table, columns, rows)

    def _rows(
        self, records: Sequence[AnyRecord]
    ) -> Iterator[tuple[str, Sequence[str], Sequence[Row]]]:
        by_kind: dict[type, list[Any]] = defaultdict(list)
        for record in records:
            by_kind[type(record)].append(record)
        documents = self._readers.without(by_kind[DocumentRecord])
        tasks: list[TaskRecord] = by_kind[TaskRecord]
        yield "document", DOCUMENT, [_values(record, DOCUMENT) for record in documents]
        yield "task", TASK, [self._task(task) for task in tasks]
        yield "letter", LETTER, [row for task in tasks for row in _letters(task)]
        yield "event", EVENT, [self._event(event) for event in by_kind[EventRecord]]
        yield "submission_key", KEY, [_values(record, KEY) for record in by_kind[KeyRecord]]
        yield "effect", EFFECT, [_values(record, EFFECT) for record in by_kind[EffectRecord]]
        yield "rate", RATE, [_values(record, RATE) for record in by_kind[RateRecord]]

    def _task(self, task: TaskRecord) -> Row:
        self._tids[task.id] = task.born
        fields = [task.fields.get(name, DEFAULTS.get(name)) for name in FIELDS]
        return (task.born, task.place, len(task.letters), *fields)

    def _event(self, event: EventRecord) -> Row:
        """Under its own number, if it has one."""
        number = int(event.cursor) if event.cursor.isdecimal() else self._last_event + 1
        self._last_event = number
        self._readers.passed(event, str(number))
        final = event.generation if event.type in FINAL_EVENTS else None
        row = (number, self._tids[event.task], event.n, event.generation)
        return (*row, event.type, event.at, event.data, final)

    async def end(self) -> None:
        rows = [_values(document, DOCUMENT) for document in self._readers.documents()]
        if rows:
            await self._insert("document", DOCUMENT, rows)


def _values(record: AnyRecord, columns: Sequence[str]) -> Row:
    return tuple(getattr(record, column) for column in columns)


def _letters(task: TaskRecord) -> Iterator[Row]:
    """Numbered from below: those that come later have the numbers of places."""
    for at, (name, body) in enumerate(task.letters, start=-len(task.letters)):
        yield (task.born, at, name, body)
