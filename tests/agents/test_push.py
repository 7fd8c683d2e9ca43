"""Notices as they come, over a WebSocket and by server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from onward.doors.agents import socket
from onward.doors.agents.socket import TRY_LATER
from onward.native.notifications import hub
from onward.native.notifications.hub import BEHIND, Subscription
from tests.agents.sessions import Sessions
from tests.agents.test_notices import a_notice, rewind
from tests.support import wait_until


async def connected(sessions: Sessions, session: str = "s1", count: int = 1) -> None:
    lines = sessions.app.onward.hub._subscriptions
    await wait_until(lambda: len(lines.get(session, ())) >= count)


@pytest.mark.contract("S2-6")
async def test_a_connected_session_is_pushed_the_notification_itself(sessions: Sessions) -> None:
    listeners = [sessions.listen(), sessions.listen()]
    other = sessions.listen("s2")
    await connected(sessions, count=2)
    task = await sessions.succeed()
    frames = [await listener.receive() for listener in listeners]
    (notice,) = await sessions.told(1)
    assert notice.pop("read") is False
    assert frames == [notice, notice]
    assert notice["task_id"] == task
    assert other.pending() == 1  # the handshake, and nothing else
    how = {"how": "websocket"}
    counted = "onward_notifications_delivered_total"
    assert await wait_until(lambda: _reaches(sessions, counted, 2, **how))
    assert await sessions.metric("onward_notification_delay_seconds_count", until="websocket") == 2
    for one in (*listeners, other):
        await one.close()


async def _reaches(sessions: Sessions, name: str, count: int, **labels: str) -> bool:
    return await sessions.metric(name, **labels) >= count


async def test_a_session_that_was_away_is_told_when_it_comes_back(sessions: Sessions) -> None:
    listener = sessions.listen()
    await connected(sessions)
    await listener.close()
    task = await sessions.succeed()
    (notice,) = await sessions.told(1)
    assert notice["task_id"] == task
    again = sessions.listen()
    assert (await again.receive())["notification_id"] == notice["notification_id"]
    await again.close()


async def test_a_connection_is_told_each_thing_once(sessions: Sessions) -> None:
    listener = sessions.listen()
    await connected(sessions)
    await sessions.succeed()
    await listener.receive()
    await rewind(sessions)
    for line in sessions.app.onward.hub._subscriptions["s1"]:
        line.reread()
    await listener.send({"type": "ping"})
    assert await listener.receive() == {"type": "pong"}
    task = await sessions.succeed()
    assert (await listener.receive())["task_id"] == task
    await listener.close()


async def test_an_ack_over_the_socket_is_an_ack(sessions: Sessions) -> None:
    await sessions.succeed()
    listener = sessions.listen()
    id_ = (await listener.receive())["notification_id"]
    await listener.send({"type": "ack", "notification_id": id_})
    assert await listener.receive() == {"type": "acked", "notification_id": id_}
    assert await sessions.notices(unread=True) == []
    await listener.send({"type": "ack", "notification_id": "notif-of-nobody"})
    assert (await listener.receive())["type"] == "error"
    await listener.close()
    later = sessions.listen()
    await later.send({"type": "ping"})
    assert await later.receive() == {"type": "pong"}  # and no notice before it
    await later.close()


@pytest.mark.parametrize(
    "said",
    [
        "{",
        "[]",
        '{"type":"dance"}',
        "\ud800",
        "[" * 3_000,
        '{"type":"ack","notification_id":"\\ud800"}',
    ],
)
async def test_nonsense_is_answered_and_the_line_stays(sessions: Sessions, said: str) -> None:
    listener = sessions.listen()
    await listener.send_text(said)
    assert (await listener.receive())["type"] == "error"
    await listener.send({"type": "ping"})
    assert await listener.receive() == {"type": "pong"}
    await listener.close()


async def test_who_says_too_much_is_hung_up_on(sessions: Sessions) -> None:
    listener = sessions.listen()
    await listener.send_text("x" * 5_000)
    with pytest.raises(ConnectionError):
        await listener.receive()


async def refused(sessions: Sessions, session: str) -> None:
    listener = sessions.listen(session)
    with pytest.raises(ConnectionError):
        await listener.receive()
    assert listener.closed is not None
    assert listener.closed["code"] == TRY_LATER


async def test_connections_are_bounded(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "MOST_EACH", 2)
    monkeypatch.setattr(sessions.app.onward.hub.all_places, "most", 3)
    open_ = [sessions.listen(session) for session in ("s1", "s1")]
    await connected(sessions, "s1", 2)
    await refused(sessions, "s1")
    open_.append(sessions.listen("s2"))
    await connected(sessions, "s2")
    await refused(sessions, "s3")
    path = "/api/v2/sessions/s1/notifications"
    answer = await sessions.app.get(path, headers={"accept": "text/event-stream"})
    assert (answer.status_code, answer.json()["code"]) == (503, "too_busy")
    for one in open_:
        await one.close()
    assert sessions.app.onward.hub._subscriptions == {}


async def test_a_foreign_page_cannot_listen(sessions: Sessions) -> None:
    listener = sessions.listen(origin="http://evil.example")
    with pytest.raises(ConnectionError):
        await listener.receive()


async def test_a_stopping_server_says_goodbye(sessions: Sessions) -> None:
    listener = sessions.listen()
    await connected(sessions)
    await sessions.app.onward.hub.close()
    with pytest.raises(ConnectionError):
        await listener.receive()
    assert listener.closed is not None
    assert listener.closed["code"] == socket.GOING_AWAY


@pytest.mark.contract("S2-6")
async def test_what_is_not_wished_for_is_not_pushed_and_is_still_there(sessions: Sessions) -> None:
    assert (await sessions.prefer(types=["task_failed"])).status_code == 200
    await sessions.prefer("s2", push=False)
    listeners = [sessions.listen("s1"), sessions.listen("s2")]
    await connected(sessions, "s1")
    await connected(sessions, "s2")
    for session in ("s1", "s2"):
        await sessions.succeed(session)
        assert len(await sessions.told(1, session)) == 1
    for listener in listeners:
        await listener.send({"type": "ping"})
        assert await listener.receive() == {"type": "pong"}
        await listener.close()


async def test_a_listener_who_falls_behind_reads_the_ledger() -> None:
    subscription = Subscription()
    subscription.reads_ledger = False
    subscription.add([a_notice(number) for number in range(BEHIND + 1)])
    assert subscription.reads_ledger
    assert not subscription.waiting


class Stream:
    """The far end of server-sent events: raw ASGI, because a client would wait for the end."""

    def __init__(self, lines: asyncio.Queue[dict[str, Any]]) -> None:
        self._lines = lines

    async def event(self) -> dict[str, str]:
        async with asyncio.timeout(30):
            while True:
                message = await self._lines.get()
                text = message.get("body", b"").decode()
                if text.startswith("id:"):
                    return dict(line.split(": ", 1) for line in text.strip().splitlines())


@asynccontextmanager
async def streaming(sessions: Sessions, **headers: str) -> AsyncIterator[Stream]:
    said = {"host": "127.0.0.1", "accept": "text/event-stream", **headers}
    lines: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    path = "/api/v2/sessions/s1/notifications"
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(),
        "query_string": b"", "root_path": "", "scheme": "http", "http_version": "1.1",
        "headers": [(name.encode(), value.encode()) for name, value in said.items()],
        "asgi": {"version": "3.0"}, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8070),
        "state": {},
    }  # fmt: skip
    gone = asyncio.Event()
    asked = False

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    call = asyncio.ensure_future(sessions.app.asgi(scope, receive, lines.put))
    yield Stream(lines)
    gone.set()
    await call


async def test_server_sent_events_resume_after_the_last_one(sessions: Sessions) -> None:
    first = await sessions.succeed()
    async with streaming(sessions) as stream:
        event = await stream.event()
        assert json.loads(event["data"])["task_id"] == first
        assert event["event"] == "task_completed"
        sessions.app.clock.advance(1_000)
        second = await sessions.succeed()
        live = await stream.event()
        assert json.loads(live["data"])["task_id"] == second
    await wait_until(lambda: not sessions.app.onward.hub._subscriptions)
    sessions.app.clock.advance(1_000)
    third = await sessions.succeed()
    await sessions.told(3)
    async with streaming(sessions, **{"last-event-id": live["id"]}) as stream:
        found = await stream.event()
        assert json.loads(found["data"])["task_id"] == third
    async with streaming(sessions, **{"last-event-id": "notif-gone"}) as stream:
        seen = [json.loads((await stream.event())["data"])["task_id"] for _ in range(3)]
        assert set(seen) == {first, second, third}
