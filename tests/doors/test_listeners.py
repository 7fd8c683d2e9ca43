"""More listeners than are allowed, all at once: none of them gets past the bound."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from onward.native.live import MOST_LISTENERS
from onward.native.notifications.hub import MOST_EACH
from onward.native.tasks import MOST_FOLLOWERS
from tests.running_app import App, SocketWorker
from tests.support import wait_until


class Listener:
    """A caller who asks for a stream and reads it until it hangs up."""

    def __init__(self, app: Any, path: str) -> None:
        self.status = 0
        self._gone = asyncio.Event()
        headers = {"host": "127.0.0.1", "accept": "text/event-stream"}
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "http_version": "1.1",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "asgi": {"version": "3.0"},
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8070),
            "state": {},
        }
        self._asked = False
        self._call = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]

    async def hang_up(self) -> None:
        self._gone.set()
        await self._call


async def path_of(app: App, kind: str) -> str:
    if kind != "events":
        return {"live": "/api/v2/live", "notices": "/api/v2/sessions/s/notifications"}[kind]
    task = await app.submit("report")
    return f"/api/v2/tasks/{task}/events"


@pytest.mark.parametrize(
    ("kind", "asked", "most"),
    [
        ("live", 320, MOST_LISTENERS),
        ("notices", 40, MOST_EACH),
        pytest.param("events", 1_100, MOST_FOLLOWERS, marks=pytest.mark.slow),
    ],
)
async def test_a_bound_holds_when_all_come_at_once(
    app: App, kind: str, asked: int, most: int
) -> None:
    path = await path_of(app, kind)
    listeners = [Listener(app.asgi, path) for _ in range(asked)]
    await wait_until(lambda: all(one.status for one in listeners))
    assert Counter(one.status for one in listeners) == {200: most, 503: asked - most}
    for one in listeners:
        await one.hang_up()
    last = Listener(app.asgi, path)
    await wait_until(lambda: last.status)
    assert last.status == 200, "places are given back"
    await last.hang_up()


async def test_sockets_of_a_session_are_bounded_when_all_come_at_once(app: App) -> None:
    sockets = [SocketWorker(app.asgi, "/ws/notifications/s") for _ in range(40)]
    await wait_until(lambda: app.onward.hub.connected("s") == MOST_EACH)
    await app.settled()
    assert app.onward.hub.connected("s") == MOST_EACH
    for one in sockets:
        await one.close()
    assert app.onward.hub.all_places.taken == 0
