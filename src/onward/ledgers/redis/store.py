"""The TaskStore on Redis: each method is one call of a function in ledger.lua."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import structlog

from onward.core.contract import (
    LOG_BYTES,
    MAX_LETTER_BYTES,
    MAX_LETTERS,
    PAGE_BYTES,
    POSTPONE_MS,
    Ask,
    Fate,
    Inserted,
    LeaseRenewal,
    LeaseStatus,
    Move,
    Moved,
    OpenApproval,
    Page,
    Query,
    Receipt,
    Submission,
    Verdict,
    Want,
)
from onward.core.limits import Bound, Usage
from onward.core.machine import NEVER
from onward.core.task import STATES, Claimed, Event, Instant, Lane, Letter, State, Task, TaskId
from onward.ledgers.codec import (
    FIELDS,
    FLAGS,
    LANES,
    NUMBERS,
    PRIORITIES,
    merge_renewals,
    text_bytes,
)
from onward.ledgers.redis.client import Functions

log = structlog.get_logger("onward.redis")

SEP = "\x1f"
HOLDS = 500  # renewed in one call; others wait for its end
ROUNDS = 10  # of setting aside, until something is due that can be read
REPORTED = 1_000  # rows that cannot be read and get a log line each
DOCTOR = "onward doctor --ledger <url>"
FAR = 1_000
STEPS = 1_000  # tasks looked at in one call of `find`
LOG_PART = 64  # entries of the log in one reply
KEY_MEMORY_MS = 24 * 3_600_000

VERDICTS = {verdict.value: verdict for verdict in Verdict}
LEASE_STATUSES = {status.value: status for status in LeaseStatus}
FATES = {fate.value: fate for fate in Fate}


def _whole(value: str) -> int:
    return int(float(value)) if "e" in value or "." in value else int(value)


_READERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(FIELDS, str),
    **dict.fromkeys(NUMBERS, _whole),
    "state": STATES.__getitem__,
    "lane": LANES.__getitem__,
    "priority": lambda value: PRIORITIES[int(value)],
    **dict.fromkeys(FLAGS, lambda value: value == "1"),
}


class RedisStore:
    def __init__(self, functions: Functions) -> None:
        self._functions = functions

    async def insert(
        self, submissions: Sequence[Submission], asks: Sequence[Ask], *, now: Instant
    ) -> Inserted:
        templates = _TaskTemplates()
        packed = [templates.pack(submission) for submission in submissions]
        request = (packed, *_numbered(asks, templates.list))
        fates, claimed = await self._functions.call("insert", now, *request)
        receipts = [
            _receipt(fate, one.task.id) for fate, one in zip(fates, submissions, strict=True)
        ]
        return Inserted(receipts, [_claimed(row, now) for row in claimed])

    async def claim(self, asks: Sequence[Ask], *, now: Instant) -> Sequence[Claimed]:
        rows = await self._functions.call("claim", now, *_numbered(asks))
        return [_claimed(row, now) for row in rows]

    async def start_at(self, wants: Sequence[Want], *, now: Instant) -> Mapping[str, Instant]:
        bounds = _Bounds()
        packed = [bounds.want(want) for want in wants]
        found = await self._functions.call("start_at", now, packed, bounds.list)
        earliest: dict[str, Instant] = {}
        for want, at in zip(wants, map(int, found), strict=True):
            earliest[want.queue] = min(at, earliest.get(want.queue, NEVER))
        return {queue: at for queue, at in earliest.items() if 0 < at < NEVER}

    async def usage(
        self, bounds: Sequence[Bound], partition: str, *, now: Instant
    ) -> Sequence[Usage]:
        packed = [_bound(bound) for bound in bounds]
        found = await self._functions.call("usage", now, partition, packed)
        return [Usage(int(used), None if at is None else int(at)) for used, at in found]

    async def extend(
        self, renewals: Sequence[LeaseRenewal], *, now: Instant
    ) -> Sequence[LeaseStatus]:
        merged = merge_renewals(renewals)
        answers: list[str] = []
        for at in range(0, len(merged), HOLDS):
            answers += await self._functions.call("extend", now, merged[at : at + HOLDS])
        statuses = {
            (renewal.task, renewal.fence): LEASE_STATUSES[status]
            for renewal, status in zip(merged, answers, strict=True)
        }
        return [statuses[renewal.task, renewal.fence] for renewal in renewals]

    async def apply(
        self,
        moves: Sequence[Move],
        asks: Sequence[Ask] = (),
        *,
        now: Instant,
        frees: Collection[str] = (),
    ) -> Moved:
        templates = _MoveTemplates()
        packed = [templates.pack(move) for move in moves]
        request = (packed, *_numbered(asks, templates.list, templates.tasks.list), list(frees))
        return _moved(await self._functions.call("apply", now, *request), now)

    async def post(self, letters: Sequence[Letter], *, now: Instant) -> Moved:
        bounds = (MAX_LETTERS, MAX_LETTER_BYTES)
        return _moved(await self._functions.call("post", now, letters, *bounds), now)

    async def due(
        self,
        *,
        now: Instant,
        limit: int,
        without: Collection[TaskId] = (),
        most_bytes: int = PAGE_BYTES,
    ) -> Sequence[Task]:
        for _ in range(ROUNDS):
            rows, odd = await self._functions.call("due", now, limit, [*without], most_bytes)
            tasks = [_readable(row) for row in rows]
            odd += [row["id"] for row, task in zip(rows, tasks, strict=True) if task is None]
            if odd:
                log.error("due, and cannot be read: set aside", tasks=odd[:10], count=len(odd))
                await self._functions.call("set_aside", now, odd)
            if not odd or any(tasks):
                return [task for task in tasks if task is not None]
        return []

    async def get(self, ids: Sequence[TaskId]) -> Sequence[Task | None]:
        rows = await self._functions.call("get", 0, ids)
        return [_readable(row) if row else None for row in rows]

    look = get  # only a sealed store tells them apart

    async def find(self, query: Query) -> Page[Task]:
        found = await self.placed(query)
        return Page([task for _, task in found.items], found.next)

    async def placed(self, query: Query) -> Page[tuple[int, Task]]:
        """What `find` finds, each with its place at birth."""
        found: list[tuple[int, Task | None]] = []
        left, stopped = query.most_bytes, query.after
        while left >= 0:
            look = msgspec.structs.replace(query, most_bytes=left)
            rows, stopped = await self._functions.call("find", 0, look, stopped, STEPS)
            found += [(_whole(place), _readable(row)) for place, row in rows]
            left -= sum(text_bytes(row.values()) for _, row in rows)
            # Counted with those that cannot be read: the functions have counted them, too.
            if len(found) > query.limit:
                found, stopped = found[: query.limit], str(found[query.limit - 1][0])
                break
            if not stopped:
                break
        return Page([(place, task) for place, task in found if task is not None], stopped or None)

    async def places(self, ids: Sequence[TaskId]) -> Sequence[int | None]:
        """The place at birth of each; None: it is not here."""
        if not ids:
            return []
        index = f"{self._functions.prefix}onward:index"
        scores = await self._functions.command("ZMSCORE", index, *ids)
        return [None if score is None else int(float(score)) for score in scores]

    async def continue_after(self, place: int) -> None:
        """An empty ledger goes on counting where an earlier one stopped."""
        await self._functions.command("SET", f"{self._functions.prefix}onward:place", place, "NX")

    async def position(self, task: TaskId) -> int | None:
        return await self._functions.call("position", 0, task, FAR) or None

    async def counts(self) -> Mapping[tuple[str, Lane, State], int]:
        key = f"{self._functions.prefix}onward:counts"
        flat = await self._functions.command("HGETALL", key)
        counts: Counter[tuple[str, Lane, State]] = Counter()
        for name, count in _pairs(flat):
            queue, lane, state = counted(name.decode())
            if state == "offered":
                counts[queue, Lane.PRIMARY, State.RUNNING] -= int(count)
                state = State.QUEUED.value
            counts[queue, lane, STATES[state]] += int(count)
        return {key: count for key, count in counts.items() if count}

    async def batches(self, ids: Sequence[TaskId]) -> Sequence[Mapping[State, int]]:
        keys = [f"{self._functions.prefix}onward:batch:{id}" for id in ids]
        rows = [_pairs(await self._functions.command("HGETALL", key)) for key in keys]
        return [{STATES[state.decode()]: int(many) for state, many in row} for row in rows]

    async def oldest(self, queues: Collection[str]) -> Mapping[str, Instant]:
        names = list(queues)
        found = await self._functions.call("oldest", 0, names)
        return {queue: since for queue, since in zip(names, found, strict=True) if since}

    async def open_approvals(self, limit: int) -> Sequence[OpenApproval]:
        found = await self._functions.call("open_approvals", 0, limit)
        return [OpenApproval(*row) for row in found]

    async def events(
        self, *, after: str, limit: int, task: TaskId | None = None, most_bytes: int = LOG_BYTES
    ) -> Page[Event]:
        if task is not None:
            return await self._history(task, int(after or 0), limit, most_bytes)
        stream = f"{self._functions.prefix}onward:events"
        if after == "$":
            last = await self._functions.command("XREVRANGE", stream, "+", "-", "COUNT", 1)
            return Page([], last[0][0].decode() if last else "0-0")
        return await self._log(stream, after, limit, most_bytes)

    async def _log(self, stream: str, after: str, limit: int, most_bytes: int) -> Page[Event]:
        """In small parts: how large entries are is known only once they were read.

        By a plain command: a function would take Redis four times as long.
        """
        events: list[Event] = []
        read = spent = 0
        while read < limit and spent <= most_bytes:
            wanted = min(limit - read, LOG_PART)
            start = f"({after}" if after else "-"
            rows = await self._functions.command("XRANGE", stream, start, "+", "COUNT", wanted)
            read += len(rows)
            at = b""
            for at, fields in rows:
                try:
                    events.append(_event(fields))
                except ValueError as error:
                    _report(at.decode(), error)
                    continue
                spent += len(fields[3])
                if spent > most_bytes:
                    break
            after = at.decode() or after
            if len(rows) < wanted:
                return Page(events, after, spent > most_bytes)
        return Page(events, after, True)

    async def _history(self, task: TaskId, after: int, limit: int, most_bytes: int) -> Page[Event]:
        rows, last, more = await self._functions.call("history", 0, task, after, limit, most_bytes)
        events = [
            Event(task, n, generation, type_, at, data or None)
            for n, generation, type_, at, data in rows
        ]
        return Page(events, str(last), more)

    async def purge(
        self, ids: Sequence[TaskId], *, now: Instant, postpone_ms: int = POSTPONE_MS
    ) -> int:
        slowest = await self._slowest()
        gone: int = await self._functions.call(
            "purge", now, ids, slowest, now + postpone_ms, now + KEY_MEMORY_MS
        )
        return gone

    async def _slowest(self) -> str | None:
        """The log id that the slowest projector has reached."""
        key = f"{self._functions.prefix}onward:doc:cursor"
        rows = _pairs(await self._functions.command("HGETALL", key))
        cursors = [_log_order(value.split(SEP.encode(), 2)[2]) for _, value in rows]
        return "{}-{}".format(*min(cursors)) if cursors else None


def counted(name: str) -> tuple[str, Lane, str]:
    """Queue, lane and state, or "offered", that a field of `onward:counts` is about."""
    queue, state = name.rsplit(":", 1)
    if state not in ("queued", "offered"):
        return queue, Lane.PRIMARY, state
    queue, lane = queue.rsplit(":", 1)  # these are counted by lane, as in ledger.lua
    return queue, LANES[lane], state


def _pairs(flat: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """HGETALL as it comes."""
    return zip(flat[::2], flat[1::2], strict=True)


def _log_order(body: bytes) -> tuple[int, int]:
    """One that cannot be read stands at the beginning: what its reader has seen is not known."""
    try:
        ms, _, n = (msgspec.json.decode(body, type=str) or "0-0").partition("-")
        return int(ms), int(n or 0)
    except ValueError:  # msgspec's is one
        return 0, 0


class _Bounds:
    """The bounds of one call, each sent once: wants name them by their place among these."""

    def __init__(self) -> None:
        self.list: list[dict[str, Any]] = []
        self._known: dict[Bound, int] = {}

    def ask(self, ask: Ask) -> dict[str, Any]:
        wants = [self.want(want) for want in ask.wants]
        return {**msgspec.structs.asdict(ask), "wants": wants}

    def want(self, want: Want) -> dict[str, Any]:
        found = msgspec.structs.asdict(want)
        bounds = [self._number(bound) for bound in found.pop("bounds")]
        return {**found, "bounds": bounds} if bounds else found

    def _number(self, bound: Bound) -> int:
        number = self._known.get(bound)
        if number is None:
            self.list.append(_bound(bound))
            number = self._known[bound] = len(self.list)
        return number


def _numbered(asks: Sequence[Ask], *rest: Any) -> tuple[Any, ...]:
    """Asks as the functions take them, then the rest, then the bounds of the asks."""
    if not any(want.bounds for ask in asks for want in ask.wants):
        return asks, *rest, ()
    bounds = _Bounds()
    return [bounds.ask(ask) for ask in asks], *rest, bounds.list


def _bound(bound: Bound) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": bound.name,
        "each": bound.each,
        "queues": bound.queues,
        "types": bound.types,
    }
    if bound.most is not None:
        found["most"] = bound.most
    if bound.rate is not None:
        rate = bound.rate
        found |= {"step": rate.step, "burst": rate.burst, "per_ms": rate.per_ms}
    return found


_PAYLOAD = Task.__struct_fields__.index("payload")
_PARTITION = Task.__struct_fields__.index("partition")
_TASK_TEMPLATE = ("task", "events", "cap", "unique", "parted")
_COUNTS = frozenset({"attempt", "failures", "retries", "lost"})  # kept unless they are 0


class _TaskTemplates:
    """Submissions as the functions take them. What many share is sent once, as with moves."""

    def __init__(self) -> None:
        self.list: list[dict[str, Any]] = []
        self._known: dict[Any, int] = {}

    def pack(self, submission: Submission) -> Sequence[Any]:
        task = submission.task
        values = msgspec.structs.astuple(task)
        parted = task.partition != ""
        rest = (submission.events, submission.cap, submission.unique, parted)
        before, between = values[1:_PAYLOAD], values[_PAYLOAD + 1 : _PARTITION]
        like = (before, between, values[_PARTITION + 1 :], *rest)
        template = self._known.get(like)
        if template is None:
            shared = msgspec.structs.replace(task, id="", payload="", partition="")
            self.list.append(dict(zip(_TASK_TEMPLATE, (shared, *rest), strict=True)))
            template = self._known[like] = len(self.list)
        if parted:
            return task.id, template, task.payload, submission.key or False, task.partition
        if submission.key is None:
            return task.id, template, task.payload
        return task.id, template, task.payload, submission.key


def _receipt(fate: str | tuple[str, TaskId], task: TaskId) -> Receipt:
    if fate == "running":
        return Receipt(Fate.FRESH, task, running=True)
    if isinstance(fate, str):
        return Receipt(FATES[fate], task)
    fate, task = fate
    return Receipt(FATES[fate], task)


class _MoveTemplates:
    """Moves as the function takes them. What many share (all but the result) is sent once."""

    def __init__(self) -> None:
        self.list: list[dict[str, Any]] = []
        self.tasks = _TaskTemplates()
        self._known: dict[Any, int] = {}

    def pack(self, move: Move) -> Sequence[Any]:
        result = move.changes.get("result")
        changes = [pair for pair in move.changes.items() if result is None or pair[0] != "result"]
        flags = (move.expect, move.to, move.due_at, move.due_by, move.front, move.ahead)
        like = (*flags, move.service, move.events, *changes)
        template = self._known.get(like)
        if template is None:
            self.list.append(_template(move, changes))
            template = self._known[like] = len(self.list)
        row = [move.task, move.fence, move.rev, template, result]
        more = move.spawn or move.letters or move.keys
        if more or move.seen is not None or move.answer is not None:
            row.append(
                {
                    "seen": move.seen,
                    "spawn": [self.tasks.pack(child) for child in move.spawn],
                    "letters": move.letters,
                    "keys": move.keys,
                    "answer": move.answer and self.pack(move.answer),
                }
            )
        return row


def _template(move: Move, changes: Iterable[tuple[str, str | int | None]]) -> dict[str, Any]:
    """What to set and what to unset in two lists."""
    given: dict[str, str | int] = {}
    unset: list[str] = []
    for name, value in changes:
        if value is None or value is False or (value == 0 and name in _COUNTS):
            unset.append(name)
        else:
            given[name] = value
    return {
        "expect": move.expect,
        "to": move.to,
        "due_at": move.due_at,
        "due_by": move.due_by,
        "front": move.front,
        "ahead": move.ahead,
        "set": given,
        "unset": unset,
        "events": move.events,
        "type": move.service or None,
    }


def _moved(answer: Any, now: Instant) -> Moved:
    verdicts, awake, claimed, answered = answer
    return Moved(
        [VERDICTS[verdict] for verdict in verdicts],
        frozenset(awake),
        tuple(_claimed(row, now) for row in claimed),
        frozenset(answered),
    )


def _claimed(row: list[Any], now: Instant) -> Claimed:
    """As `decide_claim` in intake.lua returns it."""
    if len(row) == 10:
        return _plainly_claimed(row, now)
    *head, attempt, created_at, more = row
    generation, failures, retries, lost, lane, *rest, queued_at, mail = more
    counts = (attempt, failures, retries, lost)
    letters = tuple([Letter(to=row[0], name=name, body=body) for name, body in mail])
    clocks = (queued_at or created_at, now, None)
    values: list[Any] = [*head, generation, *counts, LANES[lane], created_at, *rest]
    return Claimed(*[*values, *clocks, letters])


def _plainly_claimed(row: list[Any], now: Instant) -> Claimed:
    """Most tasks: never moved before, and asking for nothing in particular.

    Written out, because it is made for every task: put together in a list it takes twice as long.
    """
    id, worker, fence, rev, type_, queue, profile, payload, attempt, created_at = row
    return Claimed(
        id, worker, fence, rev, type_, queue, profile, payload,
        1, attempt, 0, 0, 0, Lane.PRIMARY, created_at,
        None, None, None, None, None, None, None, None, None, "", False, created_at, now,
    )  # fmt: skip


def _task(row: Mapping[str, str]) -> Task:
    fields: dict[str, Any] = {}
    for name, value in row.items():
        reader = _READERS.get(name)
        if reader is not None:  # else it is the store's own
            fields[name] = reader(value)
    return Task(**fields)


def _readable(row: Mapping[str, str]) -> Task | None:
    """None: it is no task, or not all of one. Others in the same batch are served all the same."""
    try:
        return _task(row)
    except (TypeError, ValueError, KeyError) as error:
        _report(str(row.get("id")), error)
        return None


_reported: set[str] = set()


def _report(row: str, error: Exception) -> None:
    """One log line a row: every page that it is on meets it again."""
    if row not in _reported and len(_reported) < REPORTED:
        _reported.add(row)
        log.error("a row of the ledger cannot be read", row=row, error=repr(error), hint=DOCTOR)


def _event(fields: Sequence[bytes]) -> Event:
    """Names and values by turns, as `record` in ledger.lua wrote them."""
    _, task, _, text = fields
    n, generation, type_, at, data = text.decode().split(SEP, 4)
    return Event(task.decode(), int(n), int(generation), type_, int(at), data or None)
