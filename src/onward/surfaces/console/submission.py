"""What the native door makes of a submission: defaults of the service, key, clocks, a task."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import jsonschema_rs
import msgspec

from onward.core.approval import WAITS, Approval, ask
from onward.core.catalog import Catalog, Declared
from onward.core.contract import Fate, Key
from onward.core.dispatch import Dispatcher
from onward.core.errors import Invalid, NotFound
from onward.core.policy import Overrides
from onward.core.task import Instant, Json, Task, encode, new_id
from onward.surfaces.console.shapes import PRIORITIES, ApprovalTerms, SubmitBody

SCOPE = "console"
STREAMS = "streams"


class Submissions:
    def __init__(
        self, dispatcher: Dispatcher, catalog: Catalog, stream_types: Sequence[str] = ()
    ) -> None:
        self._dispatcher = dispatcher
        self._catalog = catalog
        self._stream_types = frozenset(stream_types)
        self._validators: dict[tuple[str, str], Any] = {}

    async def submit(self, body: SubmitBody, *, wait_ms: int) -> tuple[Task, bool]:
        """The task as it is now, and whether it is over."""
        service = await self._catalog.of(body.type)
        if service is not None:
            self._check_payload(service, body.type, body.payload)
        task = self._routed(_task(body, service, self._dispatcher.clock.now()), service)
        key = _key(body)
        if wait_ms:
            receipt, ending = await self._dispatcher.submit_and_wait(
                task, timeout_ms=wait_ms, key=key
            )
        else:
            receipt, ending = await self._dispatcher.submit(task, key=key), None
        found = (await self._dispatcher.backend.tasks.get([receipt.task]))[0]
        if found is None:
            known = receipt.fate is Fate.KNOWN
            raise NotFound(
                "the task of this key is past its retention" if known else "no such task"
            )
        return found, ending is not None

    def _routed(self, task: Task, service: Declared | None) -> Task:
        """Work for stream workers follows the stream protocol's rules of retry."""
        declared = service is not None and service.via == STREAMS
        if task.queue != STREAMS and task.type not in self._stream_types and not declared:
            return task
        profile = task.profile if task.session is not None else STREAMS
        return msgspec.structs.replace(task, profile=profile)

    async def check(self, type_: str, payload: Any) -> None:
        """A payload that was mended by hand is held to what any other is held to."""
        service = await self._catalog.of(type_)
        if service is not None:
            self._check_payload(service, type_, payload)

    def _check_payload(self, service: Declared, type_: str, payload: Any) -> None:
        schema = service.schema.get(type_)
        if schema is None:
            return
        text = encode(schema)
        validator = self._validators.get((type_, text))
        if validator is None:
            validator = jsonschema_rs.validator_for(text)
            if len(self._validators) > 1_000:
                self._validators.clear()
            self._validators[type_, text] = validator
        for error in validator.iter_errors(payload):
            path = "".join(f"/{part}" for part in error.instance_path)
            raise Invalid(
                f"payload does not fit {type_!r}: {error.message}",
                pointer=f"/payload{path}",
                hint=f"GET /api/v2/services/{service.name} shows the schema",
            )


def _task(body: SubmitBody, service: Declared | None, now: Instant) -> Task:
    timeout_ms, max_retries = body.timeout_ms, body.max_retries
    payload = encode(body.payload)
    asked = _asked(body, service, payload, now)
    if service is not None:
        timeout_ms = service.timeout_ms if timeout_ms is None else timeout_ms
        max_retries = service.max_retries if max_retries is None else max_retries
    # With somebody to tell, the time allowed is told of and not enforced.
    told = body.session_id is not None
    backoff = None if body.backoff_ms is None else tuple(body.backoff_ms)
    return Task(
        id=new_id(),
        type=body.type,
        queue=body.queue or body.type,
        profile="session" if told else "console",
        payload=payload,
        created_at=now,
        priority=PRIORITIES[body.priority],
        run_at=body.run_at if body.delay_ms is None else now + body.delay_ms,
        expires_at=now + timeout_ms if told and timeout_ms is not None else None,
        attempt_ms=None if told else timeout_ms,
        overrides=Overrides(max_retries, backoff).encode(),
        session=body.session_id,
        key=body.idempotency_key,
        waiting_for=None if asked is None else WAITS,
        approval=None if asked is None else asked.encode(),
    )


def _asked(
    body: SubmitBody, service: Declared | None, payload: Json, now: Instant
) -> Approval | None:
    """What a person is asked first, if anything."""
    guarded = service is not None and service.requires_approval
    # A service's guard cannot be waved away by whoever submits.
    if not (guarded or body.requires_approval or body.approval):
        return None
    terms = body.approval or ApprovalTerms()
    if guarded and terms.default == "approve":
        # Nor waited out: a guard that expires into a yes, at a time of the submitter's, is none.
        raise Invalid(
            f"{body.type!r} is guarded by its service: only a person can approve it",
            pointer="/approval/default",
        )
    return ask(
        payload, now, expires_ms=terms.expires_ms, default=terms.default, reason=terms.reason
    )


def _key(body: SubmitBody) -> Key | None:
    if body.idempotency_key is None:
        return None
    said = body.model_dump(exclude={"idempotency_key"}, exclude_unset=True)
    digest = hashlib.sha256(msgspec.json.encode(said, order="deterministic")).hexdigest()
    return Key(SCOPE, body.idempotency_key, digest)
