"""A Redis ledger as a whole: its rows out, and rows in. No server may use it meanwhile.

Only rows are written here. Where tasks stand (lists, zsets, counts) follows from them: repair.py.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from onward.core.errors import Invalid
from onward.core.limits import Micros
from onward.core.task import FINAL, FINAL_EVENTS, Instant, State
from onward.ledgers.codec import NUMBERS
from onward.ledgers.portable.readers import MovedReaders
from onward.ledgers.portable.records import (
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
from onward.ledgers.redis.client import refused
from onward.ledgers.redis.layout import LAYOUT, living
from onward.ledgers.redis.repair import STEP, RowRepair, by_birth, parts, scan
from onward.ledgers.redis.store import SEP, _whole, counted

SHORT = 64  # bytes: as in ledger.lua
RATE_SLACK_MS = 60_000  # SLACK_MS of limits.lua
LONG = {"payload": "onward:payload:", "result": "onward:output:"}


class RedisPortable:
    snapshot = False  # what changes while it is read is read in part

    def __init__(self, url: str, prefix: str) -> None:
        # Never twice: a letter or an event whose reply was lost would be there a second time.
        self._client: Any = Redis.from_url(
            url, decode_responses=True, retry=Retry(NoBackoff(), 0), socket_connect_timeout=5
        )
        self._prefix = prefix

    async def servers(self, now: Instant) -> Sequence[str]:
        with _explained():
            servers = self._client.hgetall(self._key("onward:doc:server"))
        return living(servers, now // 1000)

    async def counts(self) -> Mapping[tuple[str, str], int]:
        found: Counter[tuple[str, str]] = Counter()
        with _explained():
            kept = self._client.hgetall(self._key("onward:counts"))
        for name, count in kept.items():
            queue, _, state = counted(name)
            if state != "offered":  # counted as running, too
                found[queue, state] += int(count)
        return found

    async def read(self, *, to_copy: bool = False) -> AsyncGenerator[Sequence[AnyRecord]]:
        with _explained():
            layout = self._client.get(self._key("onward:layout"))
            if layout not in (None, LAYOUT):
                raise Invalid(
                    f"this Redis holds a ledger of layout {layout}, and this Onward knows {LAYOUT}",
                    hint="start a server of this version on it once: it brings it up to date",
                )
            for kind in (
                self._documents,
                self._tasks,
                self._events,
                self._keys,
                self._effects,
                self._rates,
            ):
                for part in kind():
                    yield part

    def _documents(self) -> Iterator[Sequence[DocumentRecord]]:
        for kind in self._scan("onward:doc:"):
            rows = self._client.hscan_iter(self._key(f"onward:doc:{kind}"), count=STEP)
            yield from parts(_document(kind, key, value) for key, value in dict(rows).items())

    def _tasks(self) -> Iterator[Sequence[TaskRecord]]:
        for found in by_birth(self._client, self._prefix):
            rows = self._rows([id for id, _ in found])
            yield [_task(id, int(born), *row) for (id, born), row in zip(found, rows, strict=True)]

    def _rows(self, ids: Sequence[str]) -> Iterator[tuple[dict[str, str], Sequence[str]]]:
        pipe = self._client.pipeline(transaction=False)
        for id in ids:
            pipe.hgetall(self._key(f"onward:task:{id}"))
            pipe.lrange(self._key(f"onward:mail:{id}"), 0, -1)
            pipe.mget([self._key(place + id) for place in LONG.values()])
        found = pipe.execute()
        for row, mail, longs in zip(found[::3], found[1::3], found[2::3], strict=True):
            aside = zip(LONG, longs, strict=True)
            row |= {name: text for name, text in aside if row.get(name) == ""}
            yield row, mail

    def _events(self) -> Iterator[Sequence[EventRecord]]:
        after = "-"
        while found := self._client.xrange(self._key("onward:events"), after, count=STEP):
            yield [_event(cursor, fields) for cursor, fields in found]
            after = f"({found[-1][0]}"

    def _keys(self) -> Iterator[Sequence[KeyRecord]]:
        for names in parts(self._scan("onward:key:")):
            pipe = self._client.pipeline(transaction=False)
            for name in names:
                key = self._key(f"onward:key:{name}")
                pipe.hmget(key, "body", "task")
                pipe.zscore(self._key("onward:forget"), key)
            found = pipe.execute()
            yield [
                KeyRecord(*_owner(name), body, task, None if ends is None else int(ends))
                for name, (body, task), ends in zip(names, found[::2], found[1::2], strict=True)
            ]

    def _effects(self) -> Iterator[Sequence[EffectRecord]]:
        for names in parts(self._scan("onward:effect:")):
            pipe = self._client.pipeline(transaction=False)
            for name in names:
                pipe.hgetall(self._key(f"onward:effect:{name}"))
            for name, notes in zip(names, pipe.execute(), strict=True):
                yield [_effect(name, field, note) for field, note in notes.items()]

    def _rates(self) -> Iterator[Sequence[RateRecord]]:
        for names in parts(self._scan("onward:rate:")):
            pipe = self._client.pipeline(transaction=False)
            for name in names:
                pipe.get(self._key(f"onward:rate:{name}"))
                pipe.pttl(self._key(f"onward:rate:{name}"))
            found = pipe.execute()
            yield [
                _rate(name, int(paid_at), _wall_ms() + lives_ms - RATE_SLACK_MS)
                for name, paid_at, lives_ms in zip(names, found[::2], found[1::2], strict=True)
                if paid_at is not None
            ]

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[RecordWriter]:
        with _explained():
            held = [self._key(f"onward:{name}") for name in ("index", "events", "place")]
            if self._client.exists(*held) or any(True for _ in self._scan("onward:doc:")):
                raise Invalid(
                    "this Redis holds a ledger already",
                    hint="use an empty database, or another ONWARD_REDIS_PREFIX",
                )
            try:
                self._client.set(self._key("onward:layout"), LAYOUT)
                writer = _RowWriter(self._client, self._prefix)
                yield writer
                writer.end()
            except BaseException:
                # Half of a ledger must not be taken for one.
                for name in self._scan("onward:"):
                    self._client.unlink(self._key(f"onward:{name}"))
                raise

    def _key(self, name: str) -> str:
        return self._prefix + name

    def _scan(self, kind: str) -> Iterator[str]:
        seen: set[str] = set()  # a scan may meet a key twice
        for name in scan(self._client, self._key(kind)):
            if name not in seen:
                seen.add(name)
                yield name


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        raise refused(error) from error


class _RowWriter:
    def __init__(self, client: Any, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        self._readers = MovedReaders()
        self._last_place = 0
        self._generations: dict[str, int] = {}  # of tasks that live not for the first time

    async def write(self, records: Sequence[AnyRecord]) -> None:
        pipe = self._client.pipeline(transaction=False)
        put: Mapping[type, Callable[[Any, Any], None]] = {
            TaskRecord: self._put_task,
            EventRecord: self._put_event,
            KeyRecord: self._put_key,
            EffectRecord: self._put_effect,
            RateRecord: self._put_rate,
        }
        documents = [record for record in records if isinstance(record, DocumentRecord)]
        for document in self._readers.without(documents):
            self._put_document(pipe, document)
        for record in records:
            if not isinstance(record, DocumentRecord):
                put[type(record)](pipe, record)
        pipe.execute()

    def _put_document(self, pipe: Any, document: DocumentRecord) -> None:
        ends = document.expires_at
        value = SEP.join((str(document.version), str(ends or ""), document.body))
        pipe.hset(self._key(f"onward:doc:{document.kind}"), document.key, value)
        if ends is not None:
            name = document.kind + SEP + document.key
            pipe.zadd(self._key("onward:ends"), {name: ends})

    def _put_task(self, pipe: Any, task: TaskRecord) -> None:
        # A claim looks for most fields only where there is a rev, a move only with a generation.
        row = {"state": "queued", "rev": 0, "generation": 1, **task.fields, "place": task.place}
        for name, place in LONG.items():
            if len(str(row.get(name, "")).encode()) > SHORT:
                pipe.set(self._key(place + task.id), row[name])
                row[name] = ""
        if task.letters:
            flat = [text for letter in task.letters for text in letter]
            pipe.rpush(self._key(f"onward:mail:{task.id}"), *flat)
            size = sum(len(text.encode()) for text in flat)
            row |= {"mail": len(task.letters), "mail_bytes": size}
        del row["id"]
        pipe.hset(self._key(f"onward:task:{task.id}"), mapping=row)
        pipe.zadd(self._key("onward:index"), {task.id: task.born})
        self._put_company(pipe, task)
        session = task.fields.get("session")
        if session is not None:
            pipe.zadd(self._key(f"onward:session:{session}"), {task.id: task.born})
            pipe.zadd(self._key("onward:sessions"), {str(session): task.born}, gt=True)
        for index in _indexes(task.fields):
            pipe.zadd(self._key(index), {task.id: task.born})
        self._last_place = max(self._last_place, task.born, task.place)
        if "generation" in task.fields:
            self._generations[task.id] = int(task.fields["generation"])

    def _put_company(self, pipe: Any, task: TaskRecord) -> None:
        """Its batch counts it, and others with its keys meet it."""
        state = State(str(task.fields.get("state", State.QUEUED)))
        batch, unique, debounce = map(task.fields.get, ("batch", "unique_key", "debounce_key"))
        if batch is not None:
            pipe.hincrby(self._key(f"onward:batch:{batch}"), state.value, 1)
        if unique is not None and state not in FINAL:
            pipe.zadd(self._key(f"onward:holders:{unique}"), {task.id: task.born})
            if state is State.RUNNING:
                pipe.zadd(self._key(f"onward:runners:{unique}"), {task.id: task.born})
        if debounce is not None and state is State.SCHEDULED and not task.fields.get("fence"):
            pipe.set(self._key(f"onward:debounce:{debounce}"), task.id)

    def _put_event(self, pipe: Any, event: EventRecord) -> None:
        """Under its own cursor, or one that stands before all that Redis gives itself."""
        cursor = event.cursor if "-" in event.cursor else f"0-{event.cursor}"
        parts = (event.n, event.generation, event.type, event.at, event.data or "")
        entry = {"t": event.task, "e": SEP.join(map(str, parts))}
        pipe.xadd(self._key("onward:events"), entry, id=cursor)
        row = self._key(f"onward:task:{event.task}")
        pipe.hset(row, f"e{event.n}", cursor)
        if event.type in FINAL_EVENTS and event.generation < self._generations.get(event.task, 1):
            pipe.hset(row, "final", event.generation)
        self._readers.passed(event, cursor)

    def _put_key(self, pipe: Any, record: KeyRecord) -> None:
        key = self._key(f"onward:key:{record.scope}|{record.key}")
        pipe.hset(key, mapping={"body": record.body, "task": record.task})
        if record.forget_at is None:  # its task is here
            pipe.hset(self._key(f"onward:task:{record.task}"), "skey", key)
        else:
            pipe.zadd(self._key("onward:forget"), {key: record.forget_at})

    def _put_effect(self, pipe: Any, effect: EffectRecord) -> None:
        key = self._key(f"onward:effect:{effect.scope}|{effect.key}")
        pipe.hset(key, effect.name, f"{effect.fence}:{effect.task}{SEP}{effect.value or ''}")

    def _put_rate(self, pipe: Any, rate: RateRecord) -> None:
        key = self._key(f"onward:rate:{rate.name}")
        lives_ms = rate.forget_at - _wall_ms() + RATE_SLACK_MS
        if lives_ms > 0:
            pipe.set(f"{key}{SEP}{rate.partition}" if rate.each else key, rate.paid_at, px=lives_ms)

    def end(self) -> None:
        pipe = self._client.pipeline(transaction=False)
        for document in self._readers.documents():
            self._put_document(pipe, document)
        pipe.set(self._key("onward:place"), self._last_place)
        pipe.execute()
        repair = RowRepair(
            self._client, self._prefix, mends=True, quiet=True, progress=lambda _: None
        )
        for _ in repair.faults():
            pass  # each is where a task stands by its row, and did not yet

    def _key(self, name: str) -> str:
        return self._prefix + name


def _indexes(fields: Mapping[str, Any]) -> Iterator[str]:
    if fields.get("batch") is not None:
        yield f"onward:in-batch:{fields['batch']}"
    for tag in json.loads(fields.get("tags") or "[]"):
        yield f"onward:tag:{tag}"


def _document(kind: str, key: str, value: str) -> DocumentRecord:
    version, expires_at, body = value.split(SEP, 2)
    return DocumentRecord(kind, key, body, int(version), int(expires_at) if expires_at else None)


def _task(id: str, born: int, row: Mapping[str, str], mail: Sequence[str]) -> TaskRecord:
    try:
        found = {name: _whole(text) if name in NUMBERS else text for name, text in row.items()}
        fields = task_fields({**found, "id": id})
        place = _whole(row["place"])
    except (KeyError, ValueError) as error:
        raise Invalid(
            f"the row of task {id} cannot be read ({error})", hint="onward doctor, or delete it"
        ) from error
    return TaskRecord(born, place, fields, tuple(zip(mail[::2], mail[1::2], strict=True)))


def _event(cursor: str, fields: Mapping[str, str]) -> EventRecord:
    n, generation, type_, at, data = fields["e"].split(SEP, 4)
    return EventRecord(cursor, fields["t"], int(n), int(generation), type_, int(at), data or None)


def _owner(name: str) -> tuple[str, str]:
    scope, _, key = name.partition("|")
    return scope, key


def _effect(name: str, field: str, note: str) -> EffectRecord:
    by, _, value = note.partition(SEP)
    fence, _, task = by.partition(":")
    scope, key = _owner(name)
    return EffectRecord(scope, key, field, task or key, int(fence), value or None)


def _rate(name: str, paid_at: Micros, forget_at: Instant) -> RateRecord:
    bound, each, partition = name.partition(SEP)
    return RateRecord(bound, int(bool(each)), partition, paid_at, forget_at)


def _wall_ms() -> Instant:
    return time.time_ns() // 1_000_000
