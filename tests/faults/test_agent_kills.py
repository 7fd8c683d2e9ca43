"""kill -9 of the server under sessions: what was accepted ends, and is told, under one id each."""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from onward.client.address import http_options
from tests.faults.invariants import check_invariants
from tests.faults.redis_invariants import check_redis_invariants
from tests.processes import Server, free_port
from tests.servers import RedisServer
from tests.support import wait_until

pytestmark = pytest.mark.slow

LISTENERS, POLLERS = ("ada", "bob"), ("eve", "mallory")
EACH = 16  # tasks of a session in one life of the server
KILLS = 3
PAUSE_S = 0.05  # between two tries of a client


class Session:
    """A user's client: hands in, hears, and acknowledges every other notice."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url
        self.path = f"/api/v2/sessions/{name}"
        self.accepted: set[str] = set()
        self.told: defaultdict[str, set[str]] = defaultdict(set)  # notices by task
        self.acked: set[str] = set()  # and the server has said so
        self.back: set[str] = set()  # came again after that

    async def submit(self, http: httpx2.AsyncClient, number: int) -> None:
        # Some are over at once, and some are under way when the server dies.
        quick = {"type": "echo", "payload": number}
        slow = {"type": "countdown", "payload": {"seconds": 0.3}}
        with suppress(httpx2.TransportError):
            answer = await http.post(f"{self.path}/tasks", json=slow if number % 5 == 0 else quick)
            assert answer.status_code in (200, 202), answer.text
            self.accepted.add(answer.json()["id"])

    def hear(self, notice: dict[str, Any], before: set[str]) -> bool:
        """Whether to acknowledge it. `before`: what was acknowledged when we last asked."""
        id: str = notice["notification_id"]
        assert notice["type"] == "task_completed", notice
        self.told[notice["task_id"]].add(id)
        if id in before:
            self.back.add(id)
        return id not in self.acked and hash(id) % 2 == 0

    async def listen(self) -> None:
        """On a WebSocket, connected again and again."""
        while True:
            with suppress(OSError, WebSocketException):
                await self._listen()
            await asyncio.sleep(PAUSE_S)

    async def _listen(self) -> None:
        before = set(self.acked)
        at = f"{self.url.replace('http', 'ws', 1)}/ws/notifications/{self.name}"
        async with connect(at, proxy=None) as line:
            async for text in line:
                frame = json.loads(text)
                if frame["type"] == "acked":
                    self.acked.add(frame["notification_id"])
                elif self.hear(frame, before):
                    said = {"type": "ack", "notification_id": frame["notification_id"]}
                    await line.send(json.dumps(said))

    async def poll(self) -> None:
        async with httpx2.AsyncClient(**http_options(self.url), timeout=60) as http:
            while True:
                with suppress(httpx2.TransportError):
                    await self._poll(http)
                await asyncio.sleep(PAUSE_S)

    async def _poll(self, http: httpx2.AsyncClient) -> None:
        before = set(self.acked)
        answer = await http.get(f"{self.path}/notifications?unread=true&limit=1000")
        if answer.status_code == 503:
            return
        for notice in answer.json()["items"]:
            if self.hear(notice, before):
                id = notice["notification_id"]
                said = await http.post(f"{self.path}/notifications/{id}/ack")
                if said.status_code == 200:
                    self.acked.add(id)


@asynccontextmanager
async def hearing(sessions: list[Session]) -> AsyncIterator[None]:
    ways = [
        asyncio.ensure_future(one.listen() if one.name in LISTENERS else one.poll())
        for one in sessions
    ]
    try:
        yield
        for way in ways:
            assert not way.done(), way
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


class KilledServer:
    """The sessions, and a server that dies and comes back at the same place."""

    def __init__(self, folder: Path, ledger: str | None) -> None:
        self._folder = folder
        self._ledger = ledger
        self._port = free_port()
        self._pick = random.Random()
        self.server = self.start()
        self.sessions = [Session(name, self.server.url) for name in (*LISTENERS, *POLLERS)]

    def start(self) -> Server:
        env = {
            "ONWARD_LEASE_MS": 1000,
            "ONWARD_ARCHIVE": f"sqlite:///{self._folder}/archive.db",
            "ONWARD_LOG_LEVEL": "warning",
        }
        port, ledger = self._port, self._ledger
        return Server(self._folder, port=port, up=True, ledger=ledger, **env).wait_ready(60)

    def accepted(self) -> int:
        return sum(len(one.accepted) for one in self.sessions)

    def heard(self) -> int:
        return sum(len(one.told) for one in self.sessions)

    async def live(self, *, dies: bool) -> None:
        """One life: work comes in and, if it dies, at any moment the server is killed."""
        async with httpx2.AsyncClient(**http_options(self.server.url), timeout=30) as http:
            turns = [one.submit(http, number) for number in range(EACH) for one in self.sessions]
            loading = asyncio.gather(*turns)
            if dies:
                # Nothing is told yet, or half of it, and work is being handed in or all is in.
                most = EACH * len(self.sessions) // 2
                took = self.accepted() + self._pick.randrange(most)
                told = self.heard() + self._pick.choice([0, self._pick.randrange(most)])
                await wait_until(lambda: self.accepted() >= took, timeout=60)
                await wait_until(lambda: self.heard() >= told, timeout=60)
                self.server.kill()
            await loading
        if dies:
            self.server = await asyncio.to_thread(self.start)

    async def rest(self) -> None:
        """Until every task is over, those too whose submission nobody was told of."""
        async with httpx2.AsyncClient(**http_options(self.server.url), timeout=30) as http:

            async def over() -> bool:
                queues = (await http.get("/api/v2/queues")).json()["items"]
                states = [queue["states"] for queue in queues]
                return not any(one[name] for one in states for name in ("queued", "running"))

            await wait_until(over)

    async def look(self) -> None:
        """Nothing was told under two ids, and what was acknowledged did not come back."""
        async with httpx2.AsyncClient(**http_options(self.server.url), timeout=30) as http:
            for one in self.sessions:
                kept = (await http.get(f"{one.path}/notifications?limit=1000")).json()["items"]
                ids = {item["task_id"]: item["notification_id"] for item in kept}
                assert len(ids) == len(kept)
                assert one.told == {task: {ids[task]} for task in one.told}
                assert one.back == set()
                assert one.acked
                unread = {item["notification_id"] for item in kept if not item["read"]}
                assert unread & one.acked == set()


@pytest.fixture(params=["sqlite", "redis"])
def redis(request: pytest.FixtureRequest) -> Iterator[RedisServer | None]:
    server = RedisServer("valkey") if request.param == "redis" else None
    yield server
    if server is not None:
        server.close()


@pytest.mark.contract("S2-6", "N-7")
async def test_a_server_killed_under_sessions_loses_no_task_and_no_notice(
    tmp_path: Path, redis: RedisServer | None
) -> None:
    killed = KilledServer(tmp_path, None if redis is None else redis.url)
    sessions = killed.sessions
    try:
        async with hearing(sessions):
            for _ in range(KILLS):
                await killed.live(dies=True)
            await killed.live(dies=False)
            await wait_until(
                lambda: all(one.accepted <= one.told.keys() for one in sessions), timeout=60
            )
        await killed.rest()
        await killed.look()
        assert await asyncio.to_thread(killed.server.stop, 60) == 0
    finally:
        killed.server.kill()
    tasks = set().union(*[one.accepted for one in sessions])
    assert len(tasks) >= EACH * len(sessions), "the last life alone accepts so many"
    if redis is None:
        check_invariants(tmp_path / "ledger.db", tasks)
    else:
        check_redis_invariants(redis.client, tasks)
