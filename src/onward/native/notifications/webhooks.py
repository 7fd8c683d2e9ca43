"""A notice to a URL of the session's choice: a CloudEvent, signed, in a task of its own.

The task is retried and ends as a dead letter like any other. It names the notice and never holds
it: what is sent, where to and with which secret is read when it runs. So nobody who can submit a
task can have something signed that was never told.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from onward.core.clock import Clock
from onward.core.contract import Key
from onward.core.dispatch import Dispatcher
from onward.core.errors import Invalid
from onward.core.outcome import Failed, Outcome, Succeeded
from onward.core.policy import Overrides
from onward.core.task import Claimed, Fault, Instant, Task, encode, new_id
from onward.native.notifications.notices import Kept, Notice, Notices
from onward.native.notifications.preferences import Wishes
from onward.workers.http.address import Hosts, PinnedUrl

QUEUE = "onward:webhook"
SLOTS = 32
CALL_S = 10.0
SECRET = "whsec_"  # noqa: S105 what a secret in base64 begins with
# A receiver may be away for a night.
BACKOFF_MS = (5_000, 30_000, 120_000, 600_000, 1_800_000, 3_600_000, 7_200_000, 14_400_000)


class Errand(msgspec.Struct, frozen=True):
    session_id: str
    notification_id: str


class Answer(Protocol):
    @property
    def status(self) -> int: ...
    @property
    def retry_after_ms(self) -> int | None: ...


Post = Callable[[PinnedUrl, bytes, dict[str, str], Instant], Awaitable[Answer]]
_decode = msgspec.json.Decoder(Errand).decode


def new_secret() -> str:
    return SECRET + base64.b64encode(secrets.token_bytes(24)).decode()


def check_secret(secret: str) -> None:
    try:
        _key(secret)
    except binascii.Error:
        raise Invalid(f"what follows {SECRET} is not base64", pointer="/webhook/secret") from None


def cloud_event(session: str, notice: Notice) -> bytes:
    """CloudEvents 1.0, in one JSON object."""
    return msgspec.json.encode(
        {
            "specversion": "1.0",
            "id": notice.notification_id,
            "source": "onward",
            "type": f"onward.{notice.type}",
            "subject": notice.task_id,
            "time": notice.timestamp,
            "datacontenttype": "application/json",
            "sessionid": session,
            "data": notice,
        }
    )


def signed(secret: str, id: str, body: bytes, now: Instant) -> dict[str, str]:
    """Headers as the Standard Webhooks have them: who checks has a library for it."""
    at = str(now // 1000)
    mac = hmac.digest(_key(secret), f"{id}.{at}.".encode() + body, hashlib.sha256)
    return {
        "content-type": "application/cloudevents+json",
        "webhook-id": id,
        "webhook-timestamp": at,
        "webhook-signature": f"v1,{base64.b64encode(mac).decode()}",
    }


def _key(secret: str) -> bytes:
    if secret.startswith(SECRET):
        return base64.b64decode(secret.removeprefix(SECRET), validate=True)
    return secret.encode()


class Webhooks:
    """Who hears of notices, and the Executor of the tasks that follow from it."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        notices: Notices,
        wishes: Wishes,
        hosts: Hosts,
        post: Post,
    ) -> None:
        self._dispatcher = dispatcher
        self._clock: Clock = dispatcher.clock
        self._notices = notices
        self._wishes = wishes
        self._hosts = hosts
        self._post = post

    async def tell(self, session: str, all_: Sequence[Kept]) -> None:
        webhook = (await self._wishes.of(session)).webhook
        if webhook is None:
            return
        now = self._clock.now()
        await asyncio.gather(
            *[
                # Its key is the notice: an event that comes again adds no second call.
                self._dispatcher.submit(
                    _errand(session, kept, now), key=Key(QUEUE, kept.id, kept.id)
                )
                for kept in all_
                if kept.notice.type in webhook.types
            ]
        )

    async def execute(self, task: Claimed) -> Outcome:
        try:
            errand = _decode(task.payload)
        except msgspec.DecodeError as error:
            return _failed(f"no errand of ours: {error}", again=False)
        kept = await self._notices.get(errand.session_id, errand.notification_id)
        webhook = (await self._wishes.of(errand.session_id)).webhook
        if kept is None or webhook is None:
            return Succeeded(encode({"skipped": "no notice" if kept is None else "no webhook"}))
        body = cloud_event(errand.session_id, kept.notice)
        try:
            # Looked up and checked anew each time, and called at just the addresses found.
            place = await self._hosts.pin(webhook.url)
            async with asyncio.timeout(CALL_S):
                now = self._clock.now()
                headers = signed(webhook.secret, kept.id, body, now)
                said = await self._post(place, body, headers, now)
        except Invalid as error:
            return _failed(str(error), again=True)
        except TimeoutError:
            return _failed(f"no answer within {CALL_S:g} s", again=True)
        except OSError as error:
            return _failed(f"no answer: {error}", again=True)
        if not 200 <= said.status < 300:
            return _refused(said)
        self._notices.deliveries.pushed("webhook", kept, self._clock.now())
        await self._notices.record(errand.session_id, [kept], "webhook")
        return Succeeded(encode({"status": said.status}))

    def cancel(self, task: Claimed) -> None:
        """A call is short: it is left to end."""


def _errand(session: str, kept: Kept, now: Instant) -> Task:
    return Task(
        id=new_id(),
        type=QUEUE,
        queue=QUEUE,
        profile="console",
        payload=encode(Errand(session, kept.id)),
        created_at=now,
        overrides=Overrides(len(BACKOFF_MS), BACKOFF_MS).encode(),
    )


def _refused(said: Answer) -> Failed:
    again = said.status >= 500 or said.status in (408, 425, 429)
    what = ", which is not followed" if 300 <= said.status < 400 else ""
    return _failed(
        f"the webhook answered {said.status}{what}", again=again, after=said.retry_after_ms
    )


def _failed(message: str, *, again: bool, after: int | None = None) -> Failed:
    # No `status` and no name that is known for an outage: one session's broken receiver must not
    # open the breaker of everybody's. Nor `retryable`: a short Retry-After would use up all tries.
    retryable = None if again else False
    return Failed(
        Fault(kind="WebhookError", message=message, retryable=retryable, retry_after_ms=after)
    )
