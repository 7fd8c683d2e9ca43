"""A notification is posted to a URL that the session chose: a CloudEvent, signed.

Each delivery is a task, retried like any other, and ends as a dead letter like any other. It names
the notification and never holds it: what is sent, where to and with which secret is read when it
runs. So a caller who can submit a task cannot have a text of their own signed.
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
from onward.native.notifications.preferences import PreferenceStore
from onward.native.notifications.store import NotificationStore, StoredNotification
from onward.wire.notifications import Notification
from onward.workers.http.address import Hosts, PinnedUrl

QUEUE = "onward:webhook"
SLOTS = 32
CALL_S = 10.0
SECRET = "whsec_"  # noqa: S105 what a secret in base64 begins with
# A receiver may be away for a night.
BACKOFF_MS = (5_000, 30_000, 120_000, 600_000, 1_800_000, 3_600_000, 7_200_000, 14_400_000)


class WebhookDelivery(msgspec.Struct, frozen=True):
    session_id: str
    notification_id: str


class PostResponse(Protocol):
    @property
    def status(self) -> int: ...
    @property
    def retry_after_ms(self) -> int | None: ...


Post = Callable[[PinnedUrl, bytes, dict[str, str], Instant], Awaitable[PostResponse]]
_decode = msgspec.json.Decoder(WebhookDelivery).decode


def new_secret() -> str:
    return SECRET + base64.b64encode(secrets.token_bytes(24)).decode()


def check_secret(secret: str) -> None:
    try:
        _key(secret)
    except binascii.Error:
        raise Invalid(f"what follows {SECRET} is not base64", pointer="/webhook/secret") from None


def cloud_event(session: str, notification: Notification) -> bytes:
    """CloudEvents 1.0, in one JSON object."""
    return msgspec.json.encode(
        {
            "specversion": "1.0",
            "id": notification.notification_id,
            "source": "onward",
            "type": f"onward.{notification.type}",
            "subject": notification.task_id,
            "time": notification.timestamp,
            "datacontenttype": "application/json",
            "sessionid": session,
            "data": notification,
        }
    )


def signed(secret: str, id: str, body: bytes, now: Instant) -> dict[str, str]:
    """The headers of Standard Webhooks: receivers have libraries that check them."""
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
    """Listens to the projector and submits the deliveries; also the Executor of these tasks."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        notifications: NotificationStore,
        preferences: PreferenceStore,
        hosts: Hosts,
        post: Post,
    ) -> None:
        self._dispatcher = dispatcher
        self._clock: Clock = dispatcher.clock
        self._notifications = notifications
        self._preferences = preferences
        self._hosts = hosts
        self._post = post

    async def submit(self, session: str, all_: Sequence[StoredNotification]) -> None:
        webhook = (await self._preferences.get(session)).webhook
        if webhook is None:
            return
        now = self._clock.now()
        await asyncio.gather(
            *[
                # Its key is the notification: an event that comes again adds no second delivery.
                self._dispatcher.submit(
                    _delivery(session, stored, now), key=Key(QUEUE, stored.id, stored.id)
                )
                for stored in all_
                if stored.notification.type in webhook.types
            ]
        )

    async def execute(self, task: Claimed) -> Outcome:
        try:
            delivery = _decode(task.payload)
        except msgspec.DecodeError as error:
            return _failed(f"not a webhook delivery: {error}", again=False)
        stored = await self._notifications.get(delivery.session_id, delivery.notification_id)
        webhook = (await self._preferences.get(delivery.session_id)).webhook
        if stored is None or webhook is None:
            missing = "no notification" if stored is None else "no webhook"
            return Succeeded(encode({"skipped": missing}))
        body = cloud_event(delivery.session_id, stored.notification)
        try:
            # The host is resolved and checked before each call, which goes to just these addresses.
            place = await self._hosts.pin(webhook.url)
            async with asyncio.timeout(CALL_S):
                now = self._clock.now()
                headers = signed(webhook.secret, stored.id, body, now)
                response = await self._post(place, body, headers, now)
        except Invalid as error:
            return _failed(str(error), again=True)
        except TimeoutError:
            return _failed(f"no response within {CALL_S:g} s", again=True)
        except OSError as error:
            return _failed(f"no response: {error}", again=True)
        if not 200 <= response.status < 300:
            return _refused(response)
        self._notifications.deliveries.pushed("webhook", stored, self._clock.now())
        await self._notifications.record(delivery.session_id, [stored], "webhook")
        return Succeeded(encode({"status": response.status}))

    def cancel(self, task: Claimed) -> None:
        """A call is short: it goes on to its end."""


def _delivery(session: str, stored: StoredNotification, now: Instant) -> Task:
    return Task(
        id=new_id(),
        type=QUEUE,
        queue=QUEUE,
        profile="console",
        payload=encode(WebhookDelivery(session, stored.id)),
        created_at=now,
        overrides=Overrides(len(BACKOFF_MS), BACKOFF_MS).encode(),
    )


def _refused(response: PostResponse) -> Failed:
    again = response.status >= 500 or response.status in (408, 425, 429)
    what = ", which is not followed" if 300 <= response.status < 400 else ""
    text = f"the webhook responded with {response.status}{what}"
    return _failed(text, again=again, after=response.retry_after_ms)


def _failed(message: str, *, again: bool, after: int | None = None) -> Failed:
    # No `status` and no kind that counts as an outage: one session's broken receiver must not open
    # the breaker of all. Nor `retryable`: a short Retry-After would use up all tries.
    retryable = None if again else False
    return Failed(
        Fault(kind="WebhookError", message=message, retryable=retryable, retry_after_ms=after)
    )
