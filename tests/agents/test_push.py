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
from tests.agents.lobby import Lobby, until
from tests.agents.test_notices import a_notice, rewind
from tests.support import wait_until


async def connected(lobby: Lobby, session: str = "s1", count: int = 1) -> None:
    lines = lobby.house.onward.hub._subscriptions
    await wait_until(lambda: len(lines.get(session, ())) >= count)


@pytest.mark.contract("S2-6")
async def test_a_connected_session_is_pushed_the_notification_itself(lobby: Lobby) -> None:
    listeners = [lobby.listen(), lobby.listen()]
    other = lobby.listen("s2")
    await connected(lobby, count=2)
    task = await lobby.succeed()
    frames = [await listener.receive() for listener in listeners]
    (notice,) = await lobby.told(1)
    assert notice.pop("read") is False
    assert frames == [notice, notice]
    assert notice["task_id"] == task
    assert other.pending() == 1  # the handshake, and nothing else
    how = {"how": "websocket"}
    counted = "onward_notifications_delivered_total"
    assert await until(lambda: _reaches(lobby, counted, 2, **how))
    assert await lobby.metric("onward_notification_delay_seconds_count", until="websocket") == 2
    for one in (*listeners, other):
        await one.close()


async def _reaches(lobby: Lobby, name: str, count: int, **labels: str) -> bool:
    return await lobby.metric(name, **labels) >= count


async def test_a_session_that_was_away_is_told_when_it_comes_back(lobby: Lobby) -> None:
    listener = lobby.listen()
    await connected(lobby)
    await listener.close()
    task = await lobby.succeed()
    (notice,) = await lobby.told(1)
    assert notice["task_id"] == task
    again = lobby.listen()
    assert (await again.receive())["notification_id"] == notice["notification_id"]
    await again.close()


async def test_a_connection_is_told_each_thing_once(lobby: Lobby) -> None:
    listener = lobby.listen()
    await connected(lobby)
    await lobby.succeed()
    await listener.receive()
    await rewind(lobby)
    for line in lobby.house.onward.hub._subscriptions["s1"]:
        line.reread()
    await listener.send({"type": "ping"})
    assert await listener.receive() == {"type": "pong"}
    task = await lobby.succeed()
    assert (await listener.receive())["task_id"] == task
    await listener.close()


async def test_an_ack_over_the_socket_is_an_ack(lobby: Lobby) -> None:
    await lobby.succeed()
    listener = lobby.listen()
    id_ = (await listener.receive())["notification_id"]
    await listener.send({"type": "ack", "notification_id": id_})
    assert await listener.receive() == {"type": "acked", "notification_id": id_}
    assert await lobby.notices(unread=True) == []
    await listener.send({"type": "ack", "notification_id": "notif-of-nobody"})
    assert (await listener.receive())["type"] == "error"
    await listener.close()
    later = lobby.listen()
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
async def test_nonsense_is_answered_and_the_line_stays(lobby: Lobby, said: str) -> None:
    listener = lobby.listen()
    await listener.send_text(said)
    assert (await listener.receive())["type"] == "error"
    await listener.send({"type": "ping"})
    assert await listener.receive() == {"type": "pong"}
    await listener.close()


async def test_who_says_too_much_is_hung_up_on(lobby: Lobby) -> None:
    listener = lobby.listen()
    await listener.send_text("x" * 5_000)
    with pytest.raises(ConnectionError):
        await listener.receive()


async def refused(lobby: Lobby, session: str) -> None:
    listener = lobby.listen(session)
    with pytest.raises(ConnectionError):
        await listener.receive()
    assert listener.closed is not None
    assert listener.closed["code"] == TRY_LATER


async def test_connections_are_bounded(lobby: Lobby, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "MOST_EACH", 2)
    monkeypatch.setattr(lobby.house.onward.hub.all_places, "most", 3)
    open_ = [lobby.listen(session) for session in ("s1", "s1")]
    await connected(lobby, "s1", 2)
    await refused(lobby, "s1")
    open_.append(lobby.listen("s2"))
    await connected(lobby, "s2")
    await refused(lobby, "s3")
    path = "/api/v2/sessions/s1/notifications"
    answer = await lobby.house.get(path, headers={"accept": "text/event-stream"})
    assert (answer.status_code, answer.json()["code"]) == (503, "too_busy")
    for one in open_:
        await one.close()
    assert lobby.house.onward.hub._subscriptions == {}


async def test_a_foreign_page_cannot_listen(lobby: Lobby) -> None:
    listener = lobby.listen(origin="http://evil.example")
    with pytest.raises(ConnectionError):
        await listener.receive()


async def test_a_stopping_server_says_goodbye(lobby: Lobby) -> None:
    listener = lobby.listen()
    await connected(lobby)
    await lobby.house.onward.hub.close()
    with pytest.raises(ConnectionError):
        await listener.receive()
    assert listener.closed is not None
    assert listener.closed["code"] == socket.GOING_AWAY


@pytest.mark.contract("S2-6")
async def test_what_is_not_wished_for_is_not_pushed_and_is_still_there(lobby: Lobby) -> None:
    assert (await lobby.prefer(types=["task_failed"])).status_code == 200
    await lobby.prefer("s2", push=False)
    listeners = [lobby.listen("s1"), lobby.listen("s2")]
    await connected(lobby, "s1")
    await connected(lobby, "s2")
    for session in ("s1", "s2"):
        await lobby.succeed(session)
        assert len(await lobby.told(1, session)) == 1
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
async def streaming(lobby: Lobby, **headers: str) -> AsyncIterator[Stream]:
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

    call = asyncio.ensure_future(lobby.house.app(scope, receive, lines.put))
    yield Stream(lines)
    gone.set()
    await call


async def test_server_sent_events_resume_after_the_last_one(lobby: Lobby) -> None:
    first = await lobby.succeed()
    async with streaming(lobby) as stream:
        event = await stream.event()
        assert json.loads(event["data"])["task_id"] == first
        assert event["event"] == "task_completed"
        lobby.house.clock.advance(1_000)
        second = await lobby.succeed()
        live = await stream.event()
        assert json.loads(live["data"])["task_id"] == second
    await wait_until(lambda: not lobby.house.onward.hub._subscriptions)
    lobby.house.clock.advance(1_000)
    third = await lobby.succeed()
    await lobby.told(3)
    async with streaming(lobby, **{"last-event-id": live["id"]}) as stream:
        found = await stream.event()
        assert json.loads(found["data"])["task_id"] == third
    async with streaming(lobby, **{"last-event-id": "notif-gone"}) as stream:
        seen = [json.loads((await stream.event())["data"])["task_id"] for _ in range(3)]
        assert set(seen) == {first, second, third}
