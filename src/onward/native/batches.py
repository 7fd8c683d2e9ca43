"""Many tasks in one request (B-1), and batches: their counts, and what comes of their end (B-2).

A batch is a task of our own. It waits until the tasks that came with it are over; the ledger counts
them and posts it a letter then. Its executor decides what its end brings about.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import msgspec

from onward.core import strict_json
from onward.core.contended import LIVE
from onward.core.contract import Key
from onward.core.dispatch import CHUNK, Dispatcher
from onward.core.errors import Conflict, Invalid, Malformed, NotFound
from onward.core.outcome import Failed, Outcome, Parked, Succeeded
from onward.core.policy import Overrides
from onward.core.task import (
    FINAL,
    Claimed,
    Instant,
    State,
    Task,
    TaskId,
    encode,
    new_id,
)
from onward.errors import OnwardError
from onward.faults import Fault
from onward.native.batch_view import QUEUE, TYPE, Ended, Terms, batch_view, decode_terms, is_batch
from onward.native.callbacks import check_callback
from onward.native.caller import READS, Caller, Scope, needs
from onward.native.reads import get_task, when_over
from onward.native.session_keys import marked, scope_of
from onward.native.submission import Submissions
from onward.native.views import task_view
from onward.wire.base import MAX_BODY
from onward.wire.base import Key as IdempotencyKey
from onward.wire.batches import (
    MOST_TASKS,
    BatchQuery,
    BatchTerms,
    BatchView,
    SubmitMany,
)
from onward.wire.problems import fault_of
from onward.wire.tasks import Submit, TaskView, Wait
from onward.workers.http.address import Hosts

T = TypeVar("T")

SLOTS = 32
LINES = "application/x-ndjson"
TASKS = "tasks"  # what a batch waits for
CLOSED = "closed"  # the name of the letter: no more tasks will join it
JOINED = "joined"
OPEN_MS = 600_000  # without news of who makes it; then it counts as closed
NO_BATCH = "no such batch"
RETRIES = Overrides(1_000, (1_000, 5_000, 30_000)).encode()


class Memory(msgspec.Struct, omit_defaults=True):
    """The journal of a batch."""

    open_until: Instant | None  # None: closed


class HandedInEach(NamedTuple):
    batch: TaskId | None
    items: Sequence[TaskId | OnwardError]
    tasks: Mapping[TaskId, TaskView]  # those that are to be shown


class _Outer(msgspec.Struct, forbid_unknown_fields=True):
    """A request, its items not read yet: a bad one among them is that one's own matter."""

    tasks: list[msgspec.Raw]
    batch: msgspec.Raw = msgspec.Raw(b"null")


_decode_outer = msgspec.json.Decoder(_Outer).decode
_decode_memory = msgspec.json.Decoder(Memory).decode


class Batches:
    def __init__(self, dispatcher: Dispatcher, submissions: Submissions, hosts: Hosts) -> None:
        self._dispatcher = dispatcher
        self._store = dispatcher.backend.tasks
        self._submissions = submissions
        self._hosts = hosts

    @needs(Scope.SUBMIT)
    async def submit(
        self,
        caller: Caller,
        body: bytes,
        query: BatchQuery,
        content_type: str | None = None,
        idempotency_key: IdempotencyKey | None = None,
    ) -> HandedInEach:
        """Up to 10,000 tasks, each taken or refused by itself; as JSON, or a task a line. A key
        beside them is the batch's, and, with its place, that of each task that has none: the same
        once more is the same batch with the same tasks.
        """
        if (content_type or "").partition(";")[0].strip().lower() == LINES:
            raws, terms = _lines(body), _terms_of(query)
        else:
            raws, terms = _request(body)
        batch = None if terms is None else await self._batch(caller, terms, idempotency_key)
        items: list[TaskId | OnwardError] = []
        for at in range(0, len(raws), CHUNK):
            part = [_item(raw) for raw in raws[at : at + CHUNK]]
            if idempotency_key is not None:
                part = [_keyed(one, f"{idempotency_key}:{n}") for n, one in enumerate(part, at)]
            items += await self._submissions.submit_each(caller, part, batch)
            await asyncio.sleep(0)  # a chunk at a time: others have their turn
        if batch is not None and terms is not None:
            # A request that came once more, after a cut: its batch may be over by now.
            with suppress(NotFound):
                await self._dispatcher.signal(batch, JOINED if terms.open else CLOSED, "null")
        return HandedInEach(batch, items, await self._shown(items) if query.full else {})

    @needs(*READS)
    async def read(self, caller: Caller, batch_id: str, query: Wait) -> BatchView:
        """How many of its tasks are in which state; kept, never counted."""
        missing = NotFound(NO_BATCH)
        task = await get_task(self._store, caller, batch_id, is_batch, missing=missing)
        task = await when_over(self._dispatcher, task, query.wait_ms)
        (states,) = await self._store.batches([task.id])
        return batch_view(task, dict(states))

    async def _shown(self, items: Sequence[TaskId | OnwardError]) -> Mapping[TaskId, TaskView]:
        ids = list({item for item in items if isinstance(item, str)})
        shown: dict[TaskId, TaskView] = {}
        for at in range(0, len(ids), CHUNK):
            found = await self._store.look(ids[at : at + CHUNK])
            shown |= {task.id: task_view(task) for task in found if task is not None}
            await asyncio.sleep(0)
        return shown

    async def _batch(self, caller: Caller, terms: BatchTerms, given: str | None) -> TaskId:
        if terms.id is not None:
            task = await get_task(
                self._store, caller, terms.id, is_batch, missing=NotFound(NO_BATCH)
            )
            caller.acts_on(task)
            if task.state in FINAL or (task.journal and memory_of(task).open_until is None):
                raise Conflict("the batch is closed", hint="hand the tasks in with a new one")
            return task.id
        if terms.webhook is not None:
            try:
                await check_callback(self._hosts, terms.webhook)
            except Invalid as error:
                text = str(error).removeprefix("callback_url: ")
                raise Invalid(text, pointer="/batch/webhook", hint=error.hint) from None
        if terms.on_complete is not None:
            try:
                await self._submissions.examine(caller, terms.on_complete)
            except Invalid as error:
                pointer = f"/batch/on_complete{error.pointer}"
                raise Invalid(str(error), pointer=pointer, hint=error.hint) from None
        now = self._dispatcher.clock.now()
        task = Task(
            id=new_id(),
            type=TYPE,
            queue=QUEUE,
            profile="console",
            payload=encode(Terms(terms.name, terms.on_complete)),
            created_at=now,
            run_at=now + OPEN_MS,
            waiting_for=TASKS,
            overrides=RETRIES,
            session=terms.session_id,
            owner=caller.key,
            callback_url=terms.webhook,
        )
        await self._submissions.use_session(caller, terms.session_id)
        key = marked(given, None, caller.key)
        if key is None:
            await self._dispatcher.submit(task)
            return task.id
        scope = scope_of(QUEUE, None, caller.key)
        digest = hashlib.sha256(task.payload.encode()).hexdigest()
        return (await self._dispatcher.submit(task, key=Key(scope, key, digest))).task


class BatchExecutor:
    """Carries a batch out: it waits for its tasks, and then does once what was asked for."""

    def __init__(self, dispatcher: Dispatcher, submissions: Submissions) -> None:
        self._dispatcher = dispatcher
        self._submissions = submissions

    async def execute(self, task: Claimed) -> Outcome:
        if task.type != TYPE:
            fault = Fault(kind="InvalidInput", message="not a batch", retryable=False)
            return Failed(fault)
        memory, now = self._heard(task), self._dispatcher.clock.now()
        (found,) = await self._dispatcher.backend.tasks.batches([task.id])
        states = dict(found)
        if memory.open_until is not None or any(states.get(state) for state in LIVE):
            return Parked(
                seen=len(task.letters),
                journal=encode(memory),
                waiting_for=TASKS,
                until=memory.open_until and max(memory.open_until, now + 1),
            )
        return await self._ended(task, states)

    def cancel(self, task: Claimed) -> None:
        """Nothing to stop: it runs for a moment, and one that waits is canceled in the ledger."""

    def _heard(self, task: Claimed) -> Memory:
        """From the first of its claims on."""
        now = self._dispatcher.clock.now()
        memory = Memory(task.created_at + OPEN_MS)
        if task.journal is not None:
            memory = _decode_memory(task.journal)
        names = [letter.name for letter in task.letters]
        if JOINED in names and memory.open_until is not None:
            memory.open_until = now + OPEN_MS
        if CLOSED in names or (memory.open_until is not None and memory.open_until <= now):
            memory.open_until = None
        return memory

    async def _ended(self, task: Claimed, states: dict[State, int]) -> Outcome:
        on_complete: TaskId | None = None
        why: str | None = None
        body = decode_terms(task.payload).on_complete
        if body is not None:
            try:
                # Under a key that is the batch's: an executor that is killed after this, and the
                # one after it, make one task.
                key = Key(QUEUE, task.id, task.id)
                on_complete = await self._submissions.hand_in(body, key, task.owner)
            except (Invalid, Conflict, NotFound) as error:
                why = str(error)
        ended = Ended(total=sum(states.values()), states=states, on_complete=on_complete, error=why)
        result = encode(ended)
        return Succeeded(result, notes=(("batch.finished", result),))


def memory_of(task: Task) -> Memory:
    return _decode_memory(task.journal or "null")


# Reading a request.


def _request(body: bytes) -> tuple[Sequence[bytes | msgspec.Raw], BatchTerms | None]:
    try:
        outer = _decode_outer(body)
    except msgspec.ValidationError as error:
        raise _invalid(error, SubmitMany) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(strict_json.fault(body, str(error))) from None
    if len(outer.tasks) > MOST_TASKS:
        raise _too_many("/tasks")
    given = strict_json.parse(bytes(outer.batch))
    return outer.tasks, None if given is None else _converted(given, BatchTerms, "/batch")


def _lines(body: bytes) -> Sequence[bytes]:
    lines = [line for line in body.split(b"\n") if line.strip()]
    if len(lines) > MOST_TASKS:
        raise _too_many("")
    return lines


def _too_many(pointer: str) -> Invalid:
    message = f"more than {MOST_TASKS:,} tasks"
    return Invalid(message, pointer=pointer, hint="hand them in by several requests")


def _terms_of(query: BatchQuery) -> BatchTerms | None:
    if query == BatchQuery():
        return None
    given = {name: value for name, value in msgspec.structs.asdict(query).items() if value}
    if query.on_complete is not None:
        given["on_complete"] = strict_json.parse(query.on_complete.encode())
    return _converted(given, BatchTerms, "")


def _item(raw: bytes | msgspec.Raw) -> Submit | OnwardError:
    try:
        if len(raw) > MAX_BODY:
            raise Invalid(
                f"the task is larger than {MAX_BODY >> 20} MiB", hint="keep what is large elsewhere"
            )
        return _converted(strict_json.parse(bytes(raw)), Submit, "")
    except OnwardError as error:
        return error


def _keyed(item: Submit | OnwardError, key: str) -> Submit | OnwardError:
    if isinstance(item, OnwardError) or item.idempotency_key is not None:
        return item
    return msgspec.structs.replace(item, idempotency_key=key)


def _converted(value: Any, kind: type[T], at: str) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _invalid(error, kind, at) from None


def _invalid(error: msgspec.ValidationError, kind: Any, at: str = "") -> Invalid:
    fault = fault_of(str(error), kind)
    where = f"{at}{fault.pointer}"
    return Invalid(f"{where}: {fault.message}" if where else fault.message, pointer=where)
