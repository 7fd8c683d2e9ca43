"""Notices posted to a URL: signed, at least once, and never to where they must not go."""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from onward.core.contract import Key
from onward.core.task import encode
from onward.native import webhooks
from onward.native.notifications.webhooks import WebhookDelivery
from onward.native.webhooks import QUEUE
from tests.agents.sessions import Sessions
from tests.agents.test_notices import rewind
from tests.push.conftest import PlainWorker, Request, raw
from tests.support import NOW, a_task, wait_until

SECRET = "whsec_" + base64.b64encode(b"a secret of thirty-two bytes ...").decode()
Receive = Callable[..., PlainWorker]


@pytest.fixture
def receiver() -> Iterator[Receive]:
    with ExitStack() as stack:

        def open_(answer: Any = lambda _: None) -> PlainWorker:
            worker = PlainWorker(answer)
            stack.callback(worker.stop)
            return worker

        yield open_


def verified(request: Request, secret: bytes) -> bool:
    """As a receiver would, from the text of Standard Webhooks."""
    headers = request.headers
    said = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + request.raw
    mac = base64.b64encode(hmac.new(secret, said, hashlib.sha256).digest()).decode()
    return bool(headers["webhook-signature"] == f"v1,{mac}")


async def webhook_deliveries(sessions: Sessions, **query: Any) -> list[dict[str, Any]]:
    answer = await sessions.app.get("/api/v2/tasks", params={"queue": QUEUE, **query})
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


@pytest.mark.contract("S2-6")
async def test_a_notice_is_posted_as_a_signed_cloud_event(
    sessions: Sessions, receiver: Receive
) -> None:
    hook = receiver()
    await sessions.prefer(webhook={"url": f"{hook.url}/hooks/onward", "secret": SECRET})
    task = await sessions.succeed()
    (notice,) = await sessions.told(1)
    del notice["read"]
    await wait_until(lambda: hook.calls)
    (call,) = hook.calls
    assert call.path == "/hooks/onward"
    assert call.headers["content-type"] == "application/cloudevents+json"
    assert call.headers["webhook-timestamp"] == str(NOW // 1000)
    assert verified(call, b"a secret of thirty-two bytes ...")
    assert call.body == {
        "specversion": "1.0",
        "id": notice["notification_id"],
        "source": "onward",
        "type": "onward.task_completed",
        "subject": task,
        "time": notice["timestamp"],
        "datacontenttype": "application/json",
        "sessionid": "s1",
        "data": notice,
    }
    assert await wait_until(lambda: webhook_deliveries(sessions, state="succeeded"))
    assert await sessions.metric("onward_notifications_delivered_total", how="webhook") == 1


async def test_a_plain_secret_signs_as_it_is(sessions: Sessions, receiver: Receive) -> None:
    hook = receiver()
    await sessions.prefer(webhook={"url": hook.url, "secret": "long enough"})
    await sessions.succeed()
    await wait_until(lambda: hook.calls)
    assert verified(hook.calls[0], b"long enough")


@pytest.mark.contract("S2-6")
async def test_a_receiver_that_is_away_is_tried_again(
    sessions: Sessions, receiver: Receive
) -> None:
    answers = [503, 200]

    def answer(request: Request) -> Any:
        return raw(answers.pop(0))(request)

    hook = receiver(answer)
    await sessions.prefer(webhook={"url": hook.url, "secret": SECRET})
    await sessions.succeed()
    assert await wait_until(lambda: webhook_deliveries(sessions, state="scheduled"))
    await sessions.app.advance(5_000)
    assert await wait_until(lambda: webhook_deliveries(sessions, state="succeeded"))
    first, second = hook.calls
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert int(second.headers["webhook-timestamp"]) == int(first.headers["webhook-timestamp"]) + 5
    assert first.body == second.body
    breakers = sessions.app.onward.dispatcher.pressure.breakers
    assert breakers.shut(QUEUE) is None


async def test_one_broken_receiver_does_not_keep_others_waiting(
    sessions: Sessions, receiver: Receive
) -> None:
    broken, hook = receiver(raw(503)), receiver()
    await sessions.prefer("s1", webhook={"url": broken.url})
    await sessions.prefer("s2", webhook={"url": hook.url})
    for _ in range(12):  # more than a breaker needs to open
        await sessions.succeed("s1")
    await wait_until(lambda: len(broken.calls) == 12)
    await sessions.succeed("s2")
    await wait_until(lambda: hook.calls)


@pytest.mark.parametrize("status", [302, 400, 410])
async def test_a_refusal_for_good_is_a_dead_letter(
    sessions: Sessions, receiver: Receive, status: int
) -> None:
    elsewhere = receiver()
    hook = receiver(raw(status, location=elsewhere.url))
    await sessions.prefer(webhook={"url": hook.url})
    await sessions.succeed()
    (delivery,) = await wait_until(lambda: webhook_deliveries(sessions, state="dead"))
    assert str(status) in delivery["error"]["message"]
    assert len(hook.calls) == 1
    assert elsewhere.calls == []  # a redirect is not followed


async def test_an_event_that_is_read_again_posts_nothing(
    sessions: Sessions, receiver: Receive
) -> None:
    hook = receiver()
    await sessions.prefer(webhook={"url": hook.url})
    await sessions.succeed()
    assert await wait_until(lambda: webhook_deliveries(sessions, state="succeeded"))
    await rewind(sessions)
    assert len(await webhook_deliveries(sessions)) == 1
    assert len(hook.calls) == 1


async def test_only_what_is_wished_for_is_posted(sessions: Sessions, receiver: Receive) -> None:
    hook = receiver()
    await sessions.prefer(webhook={"url": hook.url, "types": ["task_failed"]})
    await sessions.succeed()
    await sessions.told(1)
    await sessions.app.onward._notifying.step()
    assert await webhook_deliveries(sessions) == []


@pytest.mark.parametrize("payload", [{"session_id": "s1", "notification_id": "notif-1"}, [1]])
async def test_a_delivery_cannot_be_handed_in(sessions: Sessions, payload: Any) -> None:
    answer = await sessions.app.post("/api/v2/tasks", {"type": QUEUE, "payload": payload})
    assert answer.status_code == 422
    assert "the server's own" in answer.json()["detail"]


async def test_a_host_that_is_no_longer_allowed_is_not_called(
    sessions: Sessions, receiver: Receive, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = receiver()
    await sessions.prefer(webhook={"url": hook.url})
    monkeypatch.setattr(sessions.app.onward.hosts, "_nets", [])
    await sessions.succeed()
    (delivery,) = await wait_until(lambda: webhook_deliveries(sessions, state="scheduled"))
    assert "is not among the hosts" in delivery["error"]["message"]
    assert hook.calls == []


async def test_a_receiver_that_hangs_is_given_up_on(
    sessions: Sessions, receiver: Receive, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = threading.Event()
    hook = receiver(lambda _: held.wait(60))
    monkeypatch.setattr(webhooks, "CALL_S", 0.05)
    await sessions.prefer(webhook={"url": hook.url})
    await sessions.succeed()
    try:
        assert await wait_until(lambda: webhook_deliveries(sessions, state="scheduled"))
    finally:
        held.set()


async def test_an_errand_for_a_webhook_that_is_gone_is_skipped(sessions: Sessions) -> None:
    await sessions.succeed()
    (notice,) = await sessions.told(1)
    delivery = a_task(
        type=QUEUE, queue=QUEUE, payload=encode(WebhookDelivery("s1", notice["notification_id"]))
    )
    dispatcher = sessions.app.onward.dispatcher
    _, ending = await dispatcher.submit_and_wait(
        delivery, timeout_ms=5_000, key=Key(QUEUE, "x", "x")
    )
    assert ending is not None
    assert ending.result == '{"skipped":"no webhook"}'
