"""A revoked key, real servers: whatever it holds open ends, also on the other server (K-9)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.processes import Server
from tests.servers import fresh_url, postgres_ledger_url
from tests.support import wait_until

ADMIN = "the-admin-key-of-this-test-alone-0123456789"
LEDGERS: dict[str, Callable[[], str | None]] = {
    "sqlite": lambda: None,
    "redis": lambda: fresh_url("redis7"),
    "postgres": lambda: postgres_ledger_url("postgres15"),
}
STREAM = {"accept": "text/event-stream"}
FLOW = {"start": "a", "nodes": {"a": {"kind": "approval"}}, "edges": []}
CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "slow", "arguments": {"input": {}}},
}
MCP = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}


class Site:
    """Two servers of one ledger (of SQLite: one), the key `held`, and what it holds open."""

    def __init__(self, here: Server, other: Server, http: httpx2.AsyncClient) -> None:
        self.here, self.other, self.http = here, other, http
        self.began: dict[str, asyncio.Event] = {}
        self.ended: dict[str, float] = {}
        self.how: dict[str, Any] = {}
        self.headers: dict[str, str] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def admin(self, method: str, path: str, body: Any = None) -> Any:
        url = f"{self.here.url}{path}"
        headers = {"x-api-key": ADMIN}
        response = await self.http.request(method, url, json=body, headers=headers)
        assert response.status_code < 300, response.text
        return response.json() if response.content else None

    def hold(self, name: str, opened: Callable[[asyncio.Event], Awaitable[Any]]) -> None:
        began = self.began[name] = asyncio.Event()

        async def held() -> None:
            try:
                self.how[name] = await opened(began)
            except (httpx2.TransportError, ConnectionClosed) as error:
                self.how[name] = type(error).__name__
            self.ended[name] = time.monotonic()

        self._tasks.append(asyncio.create_task(held()))

    def request(self, name: str, method: str, path: str, body: Any = None, **more: str) -> None:
        async def opened(began: asyncio.Event) -> int:
            headers = {**self.headers, **more}
            began.set()
            url = f"{self.other.url}{path}"
            response = await self.http.request(method, url, json=body, headers=headers)
            return response.status_code

        self.hold(name, opened)

    def stream(self, name: str, method: str, path: str, body: Any = None, **more: str) -> None:
        async def opened(began: asyncio.Event) -> int:
            headers = {**self.headers, **more}
            url = f"{self.other.url}{path}"
            async with self.http.stream(method, url, json=body, headers=headers) as response:
                began.set()
                async for _ in response.aiter_raw():
                    pass
                return response.status_code

        self.hold(name, opened)

    def socket(self, name: str, path: str, *frames: Any) -> None:
        async def opened(began: asyncio.Event) -> int | None:
            url = self.other.url.replace("http", "ws")
            async with connect(f"{url}{path}", additional_headers=self.headers) as socket:
                for frame in frames:
                    await socket.send(json.dumps(frame))
                    await socket.recv()
                began.set()
                try:
                    while True:
                        await socket.recv()
                except ConnectionClosed:
                    return socket.close_code

        self.hold(name, opened)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def site(folder: Path, ledger: str | None) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        servers: list[Server] = []
        for name in ("here", "other") if ledger else ("here",):
            (folder / name).mkdir()
            server = Server(folder / name, ledger=ledger, ONWARD_ADMIN_KEY=ADMIN)
            stack.callback(server.kill)
            servers.append(server)
        for server in servers:
            await asyncio.to_thread(server.wait_ready)
        http = httpx2.AsyncClient(trust_env=False, timeout=120)
        found = Site(servers[0], servers[-1], await stack.enter_async_context(http))
        stack.push_async_callback(found.close)
        yield found


@pytest.mark.slow
@pytest.mark.contract("K-9")
@pytest.mark.parametrize("ledger", LEDGERS)
async def test_whatever_a_revoked_key_holds_open_ends(tmp_path: Path, ledger: str) -> None:
    async with site(tmp_path, LEDGERS[ledger]()) as held:
        await held.admin("POST", "/api/v2/services", {"name": "slow", "task_types": ["slow"]})
        await held.admin("POST", "/api/v2/flows", {"name": "asks", "definition": FLOW})
        scopes = ["submit", "read", "work", "operate"]
        key = await held.admin("POST", "/api/v2/keys", {"name": "held", "scopes": scopes})
        held.headers = {"authorization": f"Bearer {key['token']}"}

        async def known() -> bool:
            url = f"{held.other.url}/api/v2/me"
            return (await held.http.get(url, headers=held.headers)).status_code == 200

        await wait_until(known)
        task, batch, run = await asyncio.gather(
            held.admin("POST", "/api/v2/tasks", {"type": "slow", "payload": {}}),
            held.admin("POST", "/api/v2/tasks/batch", {"tasks": [], "batch": {"open": True}}),
            held.admin("POST", "/api/v2/runs", {"flow": "asks"}),
        )
        waits = "wait_ms=90000"
        held.socket("worker", "/ws/worker", {"type": "register", "group": "g"})
        held.socket("notifications", "/ws/notifications/s")
        held.socket("live", "/ws/worker", {"type": "register", "services": ["other"]})
        for name, path in {
            "events": f"/api/v2/tasks/{task['id']}/events",
            "run events": f"/api/v2/tasks/{run['id']}/events",
            "session events": "/api/v2/sessions/s/notifications",
            "live events": "/api/v2/live",
        }.items():
            held.stream(name, "GET", path, **STREAM)
        for name, path in {
            "task": f"/api/v2/tasks/{task['id']}?{waits}",
            "run": f"/api/v2/runs/{run['id']}?{waits}",
            "batch": f"/api/v2/batches/{batch['batch']}?{waits}",
        }.items():
            held.request(name, "GET", path)
        held.request("submit", "POST", f"/api/v2/tasks?{waits}", {"type": "slow"})
        held.request(
            "session submit", "POST", f"/api/v2/sessions/s/tasks?{waits}", {"type": "slow"}
        )
        held.request("start", "POST", f"/api/v2/runs?{waits}", {"flow": "asks"})
        held.request("mcp", "POST", "/mcp?session_id=s", CALL, **MCP)
        # These wait for the worker above, which never answers.
        await asyncio.gather(*[began.wait() for began in held.began.values()])
        message = {"group": "g", "messages": [{"role": "user", "content": "hi"}]}
        held.request("dispatch", "POST", "/api/openai", {**message, "timeout": 90_000})
        chat = {"model": "g", "messages": message["messages"], "stream": True}
        held.stream("chat", "POST", "/v1/chat/completions", chat)

        async def rests() -> bool:
            """All of them are under way, as the server counts them."""
            listed = await held.admin("GET", "/api/v2/tasks?limit=100")
            return len(listed["items"]) >= 8

        await wait_until(rests, timeout=30)
        assert not held.ended, held.how
        await held.admin("DELETE", f"/api/v2/keys/{key['id']}")
        await wait_until(lambda: held.ended.keys() == held.began.keys())
        waiting = ("task", "run", "batch", "submit", "session submit", "start", "dispatch")
        assert {name: held.how[name] for name in waiting} == dict.fromkeys(waiting, 401)
        # A stream, once its first event is sent: it is cut off then.
        assert held.how["mcp"] in (401, "RemoteProtocolError")
        assert {held.how["worker"], held.how["notifications"]} == {1008}
