"""Alerts: what begins and what is over, once each, to the operator's webhooks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from onward.core.duty import Duty
from onward.core.task import encode
from onward.native.alerts import TYPE, Alerts
from tests.agents.test_webhooks import verified
from tests.push.conftest import PlainWorker
from tests.running_app import App, running_app
from tests.support import wait_until

HOLD_MS = 60_000
SECRET = "a secret of the operator"


@pytest.fixture
def hook() -> Iterator[PlainWorker]:
    with ExitStack() as stack:
        worker = PlainWorker(lambda _: None)
        stack.callback(worker.stop)
        yield worker


def alerting(app: App, *urls: str, server: str = "one", **more: Any) -> Alerts:
    """As the engine makes it; looked at by hand, so that no test waits for its pace."""
    onward = app.onward
    duty = Duty(onward.backend.documents, app.clock, "alerts", server)
    options = {"secret": SECRET, "hold_ms": HOLD_MS, "public_url": None, "duty": duty, **more}
    alerts = Alerts(onward.dispatcher, onward.attention, urls, **options)
    onward._webhooks._executor._sources[TYPE] = alerts  # type: ignore[attr-defined]
    return alerts


async def held(app: App, alerts: Alerts) -> None:
    """A look, and another one when what it found has stood for long enough."""
    await alerts.look()
    app.clock.advance(HOLD_MS)
    await alerts.look()


async def count(app: App) -> int:
    return len((await app.get(f"/api/v2/tasks?type={TYPE}")).json()["items"])


@pytest.mark.every_ledger
@pytest.mark.contract("N-9")
async def test_what_begins_and_what_is_over_is_sent_once(app: App, hook: PlainWorker) -> None:
    alerts = alerting(app, f"{hook.url}/ops")
    task = await app.submit("mail")
    since = app.clock.now()
    await held(app, alerts)
    await wait_until(lambda: len(hook.calls) == 1)
    call = hook.calls[0]
    assert call.path == "/ops"
    assert verified(call, SECRET.encode())
    assert call.headers["webhook-id"] == call.body["id"]
    assert (call.body["type"], call.body["data"]["over"]) == ("onward.attention", [])
    (began,) = call.body["data"]["began"]
    assert (began["rule"], began["target"], began["since"]) == ("no_worker", "mail", since)
    assert (began["began_at"], began["over_at"]) == (since + HOLD_MS, None)

    await held(app, alerts)
    await app.post(f"/api/v2/tasks/{task}/cancel", None)
    await held(app, alerts)
    await wait_until(lambda: len(hook.calls) == 2)
    (over,) = hook.calls[1].body["data"]["over"]
    assert over == {**began, "over_at": app.clock.now()}
    await held(app, alerts)
    assert await count(app) == 2


@pytest.mark.every_ledger
async def test_what_comes_and_goes_sends_nothing(app: App, hook: PlainWorker) -> None:
    alerts = alerting(app, hook.url)
    for _ in range(3):
        task = await app.submit("mail")
        await alerts.look()
        app.clock.advance(HOLD_MS - 1)
        await alerts.look()
        await app.post(f"/api/v2/tasks/{task}/cancel", None)
        await alerts.look()
        app.clock.advance(HOLD_MS)
    await alerts.look()
    assert await count(app) == 0
    await app.submit("mail")
    await held(app, alerts)
    for _ in range(3):  # gone for less than the hold: it is not over
        await app.post("/api/v2/queues/mail/pause", None)
        await alerts.look()
        app.clock.advance(HOLD_MS - 1)
        await app.post("/api/v2/queues/mail/resume", None)
        await alerts.look()
    assert await count(app) == 1


@pytest.mark.every_ledger
async def test_many_that_begin_together_are_one_message(app: App, hook: PlainWorker) -> None:
    alerts = alerting(app, hook.url)
    for at in range(12):
        await app.submit(f"q{at}")
    await held(app, alerts)
    await wait_until(lambda: hook.calls)
    assert len(hook.calls[0].body["data"]["began"]) == 12
    assert await count(app) == 1


@pytest.mark.every_ledger
async def test_another_server_sends_nothing_again(app: App, hook: PlainWorker) -> None:
    alerts = alerting(app, hook.url)
    await app.submit("mail")
    await held(app, alerts)
    standby = alerting(app, hook.url, server="two")
    await standby.look()  # the first one has the duty
    app.clock.advance(2 * HOLD_MS)
    await held(app, standby)
    await held(app, standby)
    assert await count(app) == 1


@pytest.mark.every_ledger
async def test_a_server_that_dies_between_writing_and_sending_loses_no_alert(
    app: App, hook: PlainWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts = alerting(app, hook.url)
    await app.submit("mail")

    async def die(_: object) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patched:
        patched.setattr(alerts, "_submit", die)
        with pytest.raises(asyncio.CancelledError):
            await held(app, alerts)
    assert await count(app) == 0
    app.clock.advance(HOLD_MS)
    successor = alerting(app, hook.url, server="two")
    await successor.look()
    await wait_until(lambda: hook.calls)
    monkeypatch.setattr(successor, "_put", _nothing)  # and it dies after sending, before noting it
    await held(app, successor)
    await held(app, alerting(app, hook.url, server="three"))
    assert await count(app) == 1


async def _nothing(*_: object) -> None:
    return None


async def test_slack_gets_a_text_that_addresses_no_channel(hook: PlainWorker) -> None:
    async with running_app() as app:
        public = "https://onward.example/"
        alerts = alerting(app, f"slack+{hook.url}/services/T0", secret=None, public_url=public)
        task = await app.submit("<!channel> & co")
        await held(app, alerts)
        await wait_until(lambda: hook.calls)
        call = hook.calls[0]
        assert (call.path, call.headers["content-type"]) == ("/services/T0", "application/json")
        assert "webhook-signature" not in call.headers
        text = call.body["text"]
        assert text.startswith(":rotating_light: &lt;!channel&gt; &amp; co: 1 task waits")
        assert text.endswith("|open>")
        assert "<https://onward.example/ui/tasks?q=" in text
        await app.post(f"/api/v2/tasks/{task}/cancel", None)
        await held(app, alerts)
        await wait_until(lambda: len(hook.calls) == 2)
        assert hook.calls[1].body["text"].startswith(":white_check_mark: over: &lt;!channel")


async def test_nobody_can_hand_in_an_alert(hook: PlainWorker) -> None:
    async with running_app(alert_urls=[hook.url], alert_secret=SECRET) as app:
        (receiver,) = app.onward.alerts._urls
        forged = {"change_id": "forged", "receiver": receiver, "text": "hello"}
        body = {"type": TYPE, "queue": "onward:webhook", "payload": forged}
        assert (await app.post("/api/v2/tasks?wait_ms=5000", body)).status_code == 422
        assert await app.onward.alerts.prepare(encode(forged)) == "no such alert"
        assert hook.calls == []


async def test_after_a_restart_nothing_that_was_sent_is_sent_again(
    tmp_path: Path, hook: PlainWorker
) -> None:
    settings: dict[str, Any] = {"ledger": f"sqlite:///{tmp_path}/a.db", "alert_hold_ms": 0}
    async with running_app(alert_urls=[hook.url], **settings) as app:
        await app.submit("mail")
        await wait_until(lambda: hook.calls)

        async def delivered() -> Any:
            path = f"/api/v2/tasks?type={TYPE}&state=succeeded"
            return (await app.get(path)).json()["items"]

        await wait_until(delivered)
    async with running_app(alert_urls=[hook.url], **settings) as app:
        await app.onward.alerts.look()
        assert await count(app) == 1
        assert len(hook.calls) == 1
