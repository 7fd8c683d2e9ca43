"""What a submission becomes: defaults of its service, idempotency key, clocks, a task."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from onward.core.approval import WAITS, Approval, ask
from onward.core.contract import Fate, Key
from onward.core.dispatch import Dispatcher
from onward.core.errors import NotFound
from onward.core.policy import Overrides
from onward.core.task import Instant, Json, Task, TaskId, encode, new_id
from onward.native.masking import Masking
from onward.native.reads import NO_TASK
from onward.native.session_keys import in_session
from onward.native.views import PRIORITIES
from onward.services.catalog import Declared
from onward.services.declarations import Declarations, as_declared
from onward.wire.tasks import ApprovalTerms, Submit
from onward.workers.roster import Roster, is_service

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
        stream_types: Sequence[str] = (),
    ) -> None:
        self._dispatcher = dispatcher
        self._declarations = declarations
        self._roster = roster
        self._stream_types = frozenset(stream_types)

    async def submit(
        self, body: Submit, *, wait_ms: int = 0, idempotency_key: str | None = None
    ) -> Task:
        """The task as it is after the wait. A key beside the body goes before the one in it."""
        if idempotency_key is not None:
            body = msgspec.structs.replace(body, idempotency_key=idempotency_key)
        task = await self._made(body)
        key = _key(body)
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

    async def hand_in(self, body: Submit, key: Key) -> TaskId:
        """Under a key that is not the caller's: of all who use it, the first one's task."""
        return (await self._dispatcher.submit(await self._made(body), key=key)).task

    async def _made(self, body: Submit) -> Task:
        task = _task(body, self._dispatcher.clock.now())
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


def _task(body: Submit, now: Instant) -> Task:
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
        key=in_session(body.idempotency_key, body.session_id),
        waiting_for=None if asked is None else WAITS,
        approval=None if asked is None else asked.encode(),
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


def _key(body: Submit) -> Key | None:
    key = in_session(body.idempotency_key, body.session_id)
    if key is None:
        return None
    rest = msgspec.structs.replace(body, idempotency_key=None)
    digest = hashlib.sha256(msgspec.json.encode(rest, order="deterministic")).hexdigest()
    # A scope of their own: no key without a session can be made to look like a session's.
    return Key(SCOPE if body.session_id is None else f"{SCOPE}:session", key, digest)
