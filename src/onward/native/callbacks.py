"""A webhook per task: how it ended is posted to the URL that came with its submission (N-3).

Reads final events of the log, once the ledger has a task with a callback; submits one delivery for
each generation. Sent is the task as its owner sees it, unmasked: who named the URL may read it all.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Sequence

import msgspec

from onward.core.clock import Clock
from onward.core.contract import Documents
from onward.core.dispatch import Dispatcher
from onward.core.errors import Conflict, Invalid
from onward.core.task import FINAL, FINAL_EVENTS, Event, Json, Task, TaskId, encode
from onward.native.batch_view import batch_view, is_batch
from onward.native.caller import Caller, Scope, needs
from onward.native.views import task_view
from onward.native.webhooks import (
    JSON,
    SECRET_BYTES,
    WebhookCall,
    as_secret,
    new_secret,
    submit_delivery,
)
from onward.wire.callbacks import CallbackSecret
from onward.wire.tasks import TaskView
from onward.workers.http.address import Hosts

TYPE = "onward:callback"
ROOT = ("callback-secret", "root")  # kind and key of a document


class CallbackDelivery(msgspec.Struct, frozen=True):
    task_id: TaskId
    generation: int


_decode = msgspec.json.Decoder(CallbackDelivery).decode


async def check_callback(hosts: Hosts, url: str, *, look_up: bool = True) -> None:
    """Invalid: the server may not call it."""
    try:
        if look_up:
            await hosts.pin(url)
        else:
            hosts.check(url)
    except Invalid as error:
        text = str(error).removeprefix("url: ")
        raise Invalid(f"callback_url: {text}", pointer="/callback_url", hint=error.hint) from None


class CallbackSecrets:
    """What callbacks are signed with: another secret for each owner, made from one of the ledger.

    So a receiver that knows one key's secret cannot forge what is sent for another's tasks.
    """

    def __init__(self, documents: Documents, clock: Clock) -> None:
        self._documents = documents
        self._clock = clock
        self._root: bytes | None = None

    async def of(self, owner: str | None) -> str:
        if self._root is None:
            self._root = await self._read()
        made = hmac.digest(self._root, encode(["callback", owner]).encode(), hashlib.sha256)
        return as_secret(made[:SECRET_BYTES])

    async def _read(self) -> bytes:
        now = self._clock.now()
        # Two servers may be the first at once: what stands there is what both take.
        await self._documents.put(*ROOT, encode(new_secret()), now=now, expect=0)
        found = await self._documents.get(*ROOT, now=now)
        if found is None:
            raise Conflict("the secret of callbacks is not there")
        return found.body.encode()


class Callbacks:
    """The projector, and what stands behind its deliveries."""

    name = "callbacks"  # of its cursor in the ledger
    type = TYPE

    def __init__(self, dispatcher: Dispatcher, secrets: CallbackSecrets, hosts: Hosts) -> None:
        self._dispatcher = dispatcher
        self._store = dispatcher.backend.tasks
        self._secrets = secrets
        self.hosts = hosts

    async def project(self, events: Sequence[Event]) -> None:
        ended = {event.task: event.generation for event in events if event.type in FINAL_EVENTS}
        tasks = await self._store.look(list(ended))
        await asyncio.gather(
            *[
                submit_delivery(
                    self._dispatcher,
                    TYPE,
                    CallbackDelivery(task.id, ended[task.id]),
                    _id(task.id, ended[task.id]),
                )
                for task in tasks
                if task is not None and task.callback_url is not None
            ]
        )

    async def prepare(self, payload: Json) -> WebhookCall | str:
        delivery = _decode(payload)
        (task,) = await self._store.get([delivery.task_id])
        if task is None or task.callback_url is None:
            return "no such task" if task is None else "no callback"
        if task.generation != delivery.generation or task.state not in FINAL:
            # What it ended with is gone from the ledger; how its new life ends is sent then.
            return "replayed since"
        view = batch_view(task) if is_batch(task) else _without_payload(task)
        return WebhookCall(
            id=_id(task.id, task.generation),
            url=task.callback_url,
            secret=await self._secrets.of(task.owner),
            body=msgspec.json.encode(view),
            content=JSON,
        )

    async def delivered(self, payload: Json) -> None:
        """The task that delivered it shows that."""


def _without_payload(task: Task) -> TaskView:
    return msgspec.structs.replace(task_view(task), payload=None)


class CallbackKeys:
    def __init__(self, secrets: CallbackSecrets) -> None:
        self._secrets = secrets

    @needs(Scope.SUBMIT)
    async def secret(self, caller: Caller) -> CallbackSecret:
        """What the callbacks of this key's tasks are signed with."""
        return CallbackSecret(secret=await self._secrets.of(caller.key))


def _id(task: TaskId, generation: int) -> str:
    return f"{task}.{generation}"
