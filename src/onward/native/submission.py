"""What a submission becomes: defaults of its service, idempotency key, clocks, a task."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypedDict

import msgspec

from onward.core.approval import WAITS, Approval, ask
from onward.core.coalesce import Coalescer
from onward.core.contended import STATES, UniqueRule
from onward.core.contract import Fate, Key
from onward.core.dispatch import Dispatcher
from onward.core.errors import Invalid, NotFound
from onward.core.intake import Entered, NewTask
from onward.core.policy import Overrides
from onward.core.task import Instant, Json, Priority, Task, TaskId, encode, new_id
from onward.errors import OnwardError
from onward.native.callbacks import check_callback
from onward.native.caller import OPERATOR, Caller
from onward.native.masking import Masking
from onward.native.notifications.preferences import PreferenceStore
from onward.native.reads import NO_TASK
from onward.native.session_keys import marked, scope_of
from onward.native.session_owners import SessionOwners
from onward.services.catalog import Declared
from onward.services.declarations import Declarations, as_declared
from onward.wire.tasks import ApprovalTerms, Submit
from onward.workers.http.address import Hosts
from onward.workers.roster import Roster, is_internal, is_service

SCOPE = "console"
STREAMS = "streams"
EVERY = "*"  # as a stream type: every type that no other worker serves
AGENTS, AGENT_STREAM = "agents", "agent-stream"


class _Against(TypedDict):
    """What a task may meet in the ledger."""

    key: Key | None
    unique: UniqueRule | None


class Submissions:
    def __init__(
        self,
        dispatcher: Dispatcher,
        declarations: Declarations,
        roster: Roster,
        sessions: SessionOwners,
        preferences: PreferenceStore,
        hosts: Hosts,
        stream_types: Sequence[str] = (),
    ) -> None:
        self._dispatcher = dispatcher
        self._declarations = declarations
        self._roster = roster
        self._sessions = sessions
        self._preferences = preferences
        self._hosts = hosts
        self._stream_types = frozenset(stream_types)
        # Those who wait for tasks that end together read them together.
        self._reads = Coalescer[TaskId, Task | None](dispatcher.backend.tasks.get)

    async def submit(
        self,
        caller: Caller,
        body: Submit,
        *,
        wait_ms: int = 0,
        idempotency_key: str | None = None,
    ) -> Task:
        """The task as it is after the wait. A key beside the body goes before the one in it."""
        await self._sessions.use(caller, body.session_id)
        if idempotency_key is not None:
            body = msgspec.structs.replace(body, idempotency_key=idempotency_key)
        task = await self._made(body, caller.key)
        more: _Against = {"key": _key(body, caller.key), "unique": _rule(body)}
        # A caller does not wait for a service whose breaker is open: the task is accepted, and the
        # caller learns when to ask.
        if wait_ms and self._dispatcher.pressure.breakers.shut(task.queue) is None:
            receipt, _ = await self._dispatcher.submit_and_wait(task, timeout_ms=wait_ms, **more)
        else:
            receipt = await self._dispatcher.submit(task, **more)
            if isinstance(receipt, Entered) and (found := receipt.task_then) is not None:
                return found
        found = await self._reads.one(receipt.task)
        if found is None:
            known = receipt.fate is Fate.KNOWN
            raise NotFound("the task of this key is past its retention" if known else NO_TASK)
        return found

    async def submit_each(
        self, caller: Caller, bodies: Sequence[Submit | OnwardError], batch: TaskId | None = None
    ) -> list[TaskId | OnwardError]:
        """Each for itself, in their order; what one is refused for stands in its place."""
        answers: list[TaskId | OnwardError] = []
        items: list[NewTask] = []
        at: list[int] = []
        services: dict[tuple[str, str], Declared | None] = {}
        for body in bodies:
            try:
                if isinstance(body, OnwardError):
                    raise body
                item = await self._item(caller, body, services, batch)
            except OnwardError as error:
                answers.append(error)
                continue
            at.append(len(answers))
            items.append(item)
            answers.append(item.task.id)
        for place, found in zip(at, await self._dispatcher.submit_each(items), strict=True):
            if isinstance(found, OnwardError):
                answers[place] = found
            elif isinstance(found, Exception):
                raise found
            else:
                answers[place] = found.task
        return answers

    async def _item(
        self,
        caller: Caller,
        body: Submit,
        services: dict[tuple[str, str], Declared | None],
        batch: TaskId | None,
    ) -> NewTask:
        """`services`: what was looked up for the others of its call."""
        await self._sessions.use(caller, body.session_id)
        if body.callback_url is not None:
            await check_callback(self._hosts, body.callback_url)
        named = (body.type, body.queue or body.type)
        if named not in services:
            services[named] = await self._declarations.of(*named)
        priority = await self._preferences.priority(body.priority, body.session_id)
        task = self._finished(body, services[named], priority, caller.key, batch)
        return NewTask(task, _key(body, caller.key), _rule(body))

    async def use_session(self, caller: Caller, session: str | None) -> None:
        """NotFound: it is another key's."""
        await self._sessions.use(caller, session)

    async def examine(self, caller: Caller, body: Submit) -> None:
        """Invalid, NotFound: it would be refused, if it were submitted now."""
        await self._sessions.use(caller, body.session_id)
        await self._made(body, caller.key)

    async def hand_in(self, body: Submit, key: Key, owner: str | None) -> TaskId:
        """Under a key that is not the caller's: of all who use it, the first one's task."""
        caller = msgspec.structs.replace(OPERATOR, key=owner)
        await self._sessions.use(caller, body.session_id)
        task = await self._made(body, owner)
        return (await self._dispatcher.submit(task, key=key, unique=_rule(body))).task

    async def take_over(self, id: TaskId, body: Submit, key: Key) -> None:
        """A submission that was made elsewhere, under the id that it got there."""
        # It can be refused no more, so a name server that is away must not decide on it. Each call
        # looks the callback's address up again.
        task = await self._made(body, None, look_up=False)
        task = msgspec.structs.replace(task, id=id)
        await self._dispatcher.submit(task, key=key, unique=_rule(body))

    async def _made(self, body: Submit, owner: str | None, *, look_up: bool = True) -> Task:
        if body.callback_url is not None:
            await check_callback(self._hosts, body.callback_url, look_up=look_up)
        service = await self._declarations.of(body.type, body.queue or body.type)
        priority = await self._preferences.priority(body.priority, body.session_id)
        return self._finished(body, service, priority, owner)

    def _finished(
        self,
        body: Submit,
        service: Declared | None,
        priority: Priority,
        owner: str | None,
        batch: TaskId | None = None,
    ) -> Task:
        task = _task(body, priority, self._dispatcher.clock.now(), owner, batch)
        if is_internal(task.queue):
            field = "type" if body.queue is None else "queue"
            message = f"{task.queue!r} is a queue of the server's own: no worker serves it"
            raise Invalid(message, pointer=f"/{field}")
        self._declarations.check(service, task.type, task.queue, body.payload)
        task = as_declared(self._routed(task, service), service)
        if task.debounce_key is not None and task.waiting_for is not None:
            message = "what a person must approve first cannot be debounced"
            raise Invalid(message, pointer="/debounce")
        return task

    def _routed(self, task: Task, service: Declared | None) -> Task:
        """Work for those who read a stream follows the rules of that stream's protocol."""
        if task.session is not None:
            return task  # a session's rules are the agents' own
        via = None if service is None else service.via
        if task.queue == AGENTS or via == AGENT_STREAM:
            return _as_agents(task)
        if STREAMS in (task.queue, via) or self._is_streamed(task):
            return msgspec.structs.replace(task, profile=STREAMS)
        return task

    def _is_streamed(self, task: Task) -> bool:
        if task.type in self._stream_types:
            return True
        if EVERY not in self._stream_types:
            return False
        return is_service(task.queue) and not self._roster.served_by_others(task.queue)

    async def check(self, type_: str, queue: str, payload: Any) -> None:
        """Invalid: this payload does not fit what the service declares."""
        await self._declarations.fitting(type_, queue, payload)


class Replacements:
    """Payloads that a person puts in the place of a task's own, checked as any submission is."""

    def __init__(self, submissions: Submissions, masking: Masking) -> None:
        self._submissions = submissions
        self._masking = masking

    async def checked(self, task: Task, payload: Any) -> Json:
        """Invalid: it does not fit, or a mask stands in it where a sensitive part should be."""
        await self._masking.refuse(task, payload)
        await self._submissions.check(task.type, task.queue, payload)
        return encode(payload)


def _task(
    body: Submit, priority: Priority, now: Instant, owner: str | None, batch: TaskId | None
) -> Task:
    timeout_ms, debounce = body.timeout_ms, body.debounce
    payload = encode(body.payload)
    asked = _asked(body, payload, now)
    # A session is notified when the time allowed is over; the time is not enforced.
    notified = body.session_id is not None
    return Task(
        id=new_id(),
        type=body.type,
        queue=body.queue or body.type,
        profile="session" if notified else "console",
        payload=payload,
        created_at=now,
        priority=priority,
        run_at=_starts_at(body, now),
        expires_at=now + timeout_ms if notified and timeout_ms is not None else None,
        attempt_ms=None if notified else timeout_ms,
        overrides=Overrides(body.max_retries, body.backoff_ms).encode(),
        session=body.session_id,
        owner=owner,
        key=marked(body.idempotency_key, body.session_id, owner),
        waiting_for=None if asked is None else WAITS,
        approval=None if asked is None else asked.encode(),
        callback_url=body.callback_url,
        tags=encode(sorted(set(body.tags))) if body.tags else None,
        partition=body.partition or "",
        batch=batch,
        unique_key=None if body.unique is None else _shared_key(body, body.unique.key, owner),
        debounce_key=None if debounce is None else _shared_key(body, debounce.key, owner),
        debounce_by=None if debounce is None or debounce.max_ms is None else now + debounce.max_ms,
    )


def _starts_at(body: Submit, now: Instant) -> Instant | None:
    if body.debounce is not None:
        ms, most = body.debounce.ms, body.debounce.max_ms
        return now + (ms if most is None else min(ms, most))
    return body.run_at if body.delay_ms is None else now + body.delay_ms


def _shared_key(body: Submit, key: str, owner: str | None) -> str:
    """Of its type and owner: hashed, because each of the parts may hold any sign."""
    return hashlib.sha256(encode([body.type, owner, key]).encode()).hexdigest()[:32]


def _rule(body: Submit) -> UniqueRule | None:
    if body.unique is None:
        return None
    return UniqueRule(STATES[body.unique.while_], body.unique.then)


def _as_agents(task: Task) -> Task:
    """The time allowed counts from its creation; that it is over is announced on the stream."""
    expires_at = None if task.attempt_ms is None else task.created_at + task.attempt_ms
    return msgspec.structs.replace(task, profile="session", expires_at=expires_at, attempt_ms=None)


def _asked(body: Submit, payload: Json, now: Instant) -> Approval | None:
    """What a person is asked first, if the submission says so."""
    if not (body.requires_approval or body.approval):
        return None
    terms = body.approval or ApprovalTerms()
    return ask(
        payload, now, expires_ms=terms.expires_ms, default=terms.default, reason=terms.reason
    )


def _key(body: Submit, owner: str | None) -> Key | None:
    key = marked(body.idempotency_key, body.session_id, owner)
    if key is None:
        return None
    # A priority that is left out is the same request, whatever the session prefers by now.
    rest = msgspec.structs.replace(body, idempotency_key=None, priority=body.priority or "normal")
    digest = hashlib.sha256(msgspec.json.encode(rest, order="deterministic")).hexdigest()
    return Key(scope_of(SCOPE, body.session_id, owner), key, digest)
