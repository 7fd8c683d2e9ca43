"""What a submission becomes: defaults of its service, idempotency key, clocks, a task."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from onward.core.approval import WAITS, Approval, ask
from onward.core.contract import Fate, Key
from onward.core.dispatch import Dispatcher
from onward.core.errors import Invalid, NotFound
from onward.core.policy import Overrides
from onward.core.task import Instant, Json, Task, TaskId, encode, new_id
from onward.native.callbacks import check_callback
from onward.native.caller import OPERATOR, Caller
from onward.native.masking import Masking
from onward.native.reads import NO_TASK
from onward.native.session_keys import marked, scope_of
from onward.native.session_owners import SessionOwners
from onward.native.views import PRIORITIES
from onward.services.catalog import Declared
from onward.services.declarations import Declarations, as_declared
from onward.wire.tasks import ApprovalTerms, Submit
from onward.workers.http.address import Hosts
from onward.workers.roster import Roster, is_internal, is_service

SCOPE = "console"
STREAMS = "streams"
EVERY = "*"  # as a stream type: every type that no other worker serves
AGENTS, AGENT_STREAM = "agents", "agent-stream"


class Submissions:
    def __init__(
        self,
        dispatcher: Dispatcher,
        declarations: Declarations,
        roster: Roster,
        sessions: SessionOwners,
        hosts: Hosts,
        stream_types: Sequence[str] = (),
    ) -> None:
        self._dispatcher = dispatcher
        self._declarations = declarations
        self._roster = roster
        self._sessions = sessions
        self._hosts = hosts
        self._stream_types = frozenset(stream_types)

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
        key = _key(body, caller.key)
        # A caller does not wait for a service whose breaker is open: the task is accepted, and the
        # caller learns when to ask.
        if wait_ms and self._dispatcher.pressure.breakers.shut(task.queue) is None:
            receipt, _ = await self._dispatcher.submit_and_wait(task, timeout_ms=wait_ms, key=key)
        else:
            receipt = await self._dispatcher.submit(task, key=key)
        found = (await self._dispatcher.backend.tasks.get([receipt.task]))[0]
        if found is None:
            known = receipt.fate is Fate.KNOWN
            raise NotFound("the task of this key is past its retention" if known else NO_TASK)
        return found

    async def hand_in(self, body: Submit, key: Key, owner: str | None) -> TaskId:
        """Under a key that is not the caller's: of all who use it, the first one's task."""
        caller = msgspec.structs.replace(OPERATOR, key=owner)
        await self._sessions.use(caller, body.session_id)
        return (await self._dispatcher.submit(await self._made(body, owner), key=key)).task

    async def take_over(self, id: TaskId, body: Submit, key: Key) -> None:
        """A submission that was made elsewhere, under the id that it got there."""
        # It can be refused no more, so a name server that is away must not decide on it. Each call
        # looks the callback's address up again.
        task = await self._made(body, None, look_up=False)
        await self._dispatcher.submit(msgspec.structs.replace(task, id=id), key=key)

    async def _made(self, body: Submit, owner: str | None, *, look_up: bool = True) -> Task:
        if body.callback_url is not None:
            await check_callback(self._hosts, body.callback_url, look_up=look_up)
        task = _task(body, self._dispatcher.clock.now(), owner)
        if is_internal(task.queue):
            field = "type" if body.queue is None else "queue"
            message = f"{task.queue!r} is a queue of the server's own: no worker serves it"
            raise Invalid(message, pointer=f"/{field}")
        service = await self._declarations.fitting(task.type, task.queue, body.payload)
        return as_declared(self._routed(task, service), service)

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
        free = is_service(task.queue) and not self._roster.served_by_others(task.queue)
        return EVERY in self._stream_types and free

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


def _task(body: Submit, now: Instant, owner: str | None) -> Task:
    timeout_ms = body.timeout_ms
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
        priority=PRIORITIES[body.priority],
        run_at=body.run_at if body.delay_ms is None else now + body.delay_ms,
        expires_at=now + timeout_ms if notified and timeout_ms is not None else None,
        attempt_ms=None if notified else timeout_ms,
        overrides=Overrides(body.max_retries, body.backoff_ms).encode(),
        session=body.session_id,
        owner=owner,
        key=marked(body.idempotency_key, body.session_id, owner),
        waiting_for=None if asked is None else WAITS,
        approval=None if asked is None else asked.encode(),
        callback_url=body.callback_url,
    )


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
    rest = msgspec.structs.replace(body, idempotency_key=None)
    digest = hashlib.sha256(msgspec.json.encode(rest, order="deterministic")).hexdigest()
    return Key(scope_of(SCOPE, body.session_id, owner), key, digest)
