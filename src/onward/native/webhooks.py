"""Posts to URLs that others chose: signed, at least once, to allowed hosts alone.

Each delivery is a task, retried like any other, and ends as a dead letter like any other. It names
what is to be sent and never holds it: text, URL and secret are read when it runs. So a caller who
can submit a task cannot have a text of their own signed.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import msgspec

from onward.core.clock import Clock
from onward.core.contract import Key
from onward.core.dispatch import Dispatcher
from onward.core.errors import Invalid
from onward.core.outcome import Failed, Outcome, Succeeded
from onward.core.policy import Overrides
from onward.core.task import Claimed, Instant, Json, Priority, Task, encode, new_id
from onward.faults import Fault
from onward.workers.http.address import Hosts, PinnedUrl

QUEUE = "onward:webhook"
SLOTS = 32
CALL_S = 10.0
SECRET = "whsec_"  # noqa: S105 what a secret in base64 begins with
SECRET_BYTES = 24
CLOUD_EVENT, JSON = "application/cloudevents+json", "application/json"
# A receiver may be away for a night.
BACKOFF_MS = (5_000, 30_000, 120_000, 600_000, 1_800_000, 3_600_000, 7_200_000, 14_400_000)


class WebhookCall(msgspec.Struct, frozen=True, kw_only=True):
    """What is posted. Its id is the same each time it is tried: a receiver knows it again."""

    id: str
    url: str
    secret: str | None  # None: it is not signed
    body: bytes
    content: str = CLOUD_EVENT


class WebhookSource(Protocol):
    """One kind of delivery: what stands behind the tasks of this type."""

    type: str
    hosts: Hosts

    async def prepare(self, payload: Json) -> WebhookCall | str:
        """What to post, or why nothing is posted; DecodeError if this is no such delivery,
        LookupError if another server may know how to post it.
        """
        ...

    async def delivered(self, payload: Json) -> None: ...


class PostResponse(Protocol):
    @property
    def status(self) -> int: ...
    @property
    def retry_after_ms(self) -> int | None: ...


Post = Callable[[PinnedUrl, bytes, dict[str, str], Instant], Awaitable[PostResponse]]


def new_secret() -> str:
    return as_secret(secrets.token_bytes(SECRET_BYTES))


def as_secret(key: bytes) -> str:
    return SECRET + base64.b64encode(key).decode()


def check_secret(secret: str) -> None:
    try:
        _key(secret)
    except binascii.Error:
        raise Invalid(f"what follows {SECRET} is not base64", pointer="/webhook/secret") from None


def signed(secret: str, id: str, body: bytes, now: Instant) -> dict[str, str]:
    """The headers of Standard Webhooks: receivers have libraries that check them."""
    at = str(now // 1000)
    mac = hmac.digest(_key(secret), f"{id}.{at}.".encode() + body, hashlib.sha256)
    return {
        "webhook-timestamp": at,
        "webhook-signature": f"v1,{base64.b64encode(mac).decode()}",
    }


def _key(secret: str) -> bytes:
    if secret.startswith(SECRET):
        return base64.b64decode(secret.removeprefix(SECRET), validate=True)
    return secret.encode()


async def submit_delivery(
    dispatcher: Dispatcher,
    type_: str,
    payload: object,
    key: str,
    priority: Priority = Priority.NORMAL,
) -> None:
    """Its key is what it delivers: the same once more adds no second delivery."""
    task = Task(
        id=new_id(),
        type=type_,
        queue=QUEUE,
        profile="console",
        payload=encode(payload),
        created_at=dispatcher.clock.now(),
        priority=priority,
        overrides=Overrides(len(BACKOFF_MS), BACKOFF_MS).encode(),
    )
    await dispatcher.submit(task, key=Key(QUEUE, key, key))


class WebhookExecutor:
    """Carries out the deliveries of all kinds."""

    def __init__(self, clock: Clock, post: Post, sources: Iterable[WebhookSource]) -> None:
        self._clock = clock
        self._post = post
        self._sources = {source.type: source for source in sources}

    async def execute(self, task: Claimed) -> Outcome:
        source = self._sources.get(task.type)
        if source is None:
            return _failed(f"{task.type!r} is no kind of webhook", again=False)
        try:
            call = await source.prepare(task.payload)
        except msgspec.DecodeError as error:
            return _failed(f"not a webhook delivery: {error}", again=False)
        except LookupError as error:
            return _failed(str(error), again=True)
        if isinstance(call, str):
            return Succeeded(encode({"skipped": call}))
        response = await self._posted(call, source.hosts)
        if isinstance(response, str):
            return _failed(response, again=True)
        if not 200 <= response.status < 300:
            return _refused(response)
        await source.delivered(task.payload)
        return Succeeded(encode({"status": response.status}))

    async def _posted(self, call: WebhookCall, hosts: Hosts) -> PostResponse | str:
        """A text: why there is no response."""
        try:
            # The host is resolved and checked before each call, which goes to just these addresses.
            place = await hosts.pin(call.url)
            async with asyncio.timeout(CALL_S):
                now = self._clock.now()
                headers = {"content-type": call.content, "webhook-id": call.id}
                if call.secret is not None:
                    headers |= signed(call.secret, call.id, call.body, now)
                return await self._post(place, call.body, headers, now)
        except Invalid as error:
            return str(error)
        except TimeoutError:
            return f"no response within {CALL_S:g} s"
        except OSError as error:
            return f"no response: {error}"

    def cancel(self, task: Claimed) -> None:
        """A call is short: it goes on to its end."""


def _refused(response: PostResponse) -> Failed:
    again = response.status >= 500 or response.status in (408, 425, 429)
    what = ", which is not followed" if 300 <= response.status < 400 else ""
    text = f"the webhook responded with {response.status}{what}"
    return _failed(text, again=again, after=response.retry_after_ms)


def _failed(message: str, *, again: bool, after: int | None = None) -> Failed:
    # No `status` and no kind that counts as an outage: one broken receiver must not open the
    # breaker of all. Nor `retryable`: a short Retry-After would use up all tries.
    retryable = None if again else False
    return Failed(
        Fault(kind="WebhookError", message=message, retryable=retryable, retry_after_ms=after)
    )
