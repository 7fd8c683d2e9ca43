"""Three servers and six workers on one Postgres; all of them, and Postgres itself, are killed."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from onward.client.address import http_options
from tests.faults.invariants import OVER, check_ledger_invariants
from tests.processes import Process, Server, free_port
from tests.servers import PostgresServer
from tests.support import wait_until

FULL = "ONWARD_FULL_FAULTS" in os.environ
TASKS = 5_000 if FULL else 300
SLOTS = 8  # of a worker: all of them together have fewer than there are callers
CALLERS = 60
LEASE_MS = 4_000
WAIT_S = 120
CHORES = f"{Path(__file__).with_name('stream_worker.py')}:worker"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800 if FULL else 400)]


class Cluster:
    """The processes on one Postgres, by number: each that dies is replaced."""

    def __init__(self, folder: Path, postgres: PostgresServer) -> None:
        self._folder = folder
        self.postgres = postgres
        self.url = postgres.fresh_url()
        self.servers = [self._serve(at) for at in range(3)]
        for server in self.servers:
            server.wait_ready(60)
        self.workers = [self._hire(at) for at in range(6)]

    def _serve(self, at: int, port: int | None = None) -> Server:
        folder = self._folder / f"server-{at}"
        folder.mkdir(exist_ok=True)
        return Server(folder, port=port, ledger=self.url, ONWARD_LEASE_MS=LEASE_MS)

    def _hire(self, at: int) -> Process:
        way = ("socket", "http", "ledger")[at % 3]
        command = [sys.executable, "-m", "onward.cli", "worker", CHORES, "--via", way]
        command += ["--concurrency", str(SLOTS)]
        if way == "http":
            command += ["--listen", f"http://127.0.0.1:{free_port()}"]
        env = {
            "ONWARD_URL": self.servers[at % 3].url,
            "ONWARD_LEDGER": self.url,
            "ONWARD_LEASE_MS": str(LEASE_MS),
        }
        return Process(*command, env=env, log=self._folder / f"worker-{at}.log")

    def kill_server(self, at: int) -> None:
        self.servers[at].kill()
        self.servers[at] = self._serve(at, self.servers[at].port).wait_ready(60)

    def kill_worker(self, at: int) -> None:
        self.workers[at].kill()
        self.workers[at] = self._hire(at)

    def kill_postgres(self) -> None:
        self.postgres.kill()
        self.postgres.start()

    def close(self) -> None:
        for process in (*self.workers, *self.servers):
            process.kill()

    def log(self) -> str:
        return "".join(path.read_text() for path in sorted(self._folder.glob("**/*.log")))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    postgres = PostgresServer("postgres15", durable=True)
    try:
        cluster = Cluster(tmp_path, postgres)
        yield cluster
        cluster.close()
    finally:
        postgres.close()


class Callers:
    """Each hands in one task after the other and waits for its end, at whichever server answers."""

    def __init__(self, servers: list[Server]) -> None:
        self.accepted: dict[int, str] = {}
        self.states: Counter[str] = Counter()
        self._clients = [
            httpx2.AsyncClient(**http_options(server.url), timeout=60) for server in servers
        ]

    async def run(self) -> None:
        await asyncio.gather(*[self._some(range(at, TASKS, CALLERS)) for at in range(CALLERS)])
        for client in self._clients:
            await client.aclose()

    async def done(self, many: int) -> None:
        await wait_until(self.states.total, WAIT_S, holds=lambda done: done >= many)

    async def see_workers(self, many: int) -> None:
        async def workers() -> int:
            return len((await self._clients[0].get("/api/v2/workers")).json()["items"])

        await wait_until(workers, WAIT_S, holds=lambda found: found >= many)

    async def _some(self, numbers: range) -> None:
        for n in numbers:
            # Whether a call that was not answered was heard is not known: the key makes it one.
            body = {
                "type": "chore",
                "payload": {"n": n},
                "idempotency_key": f"chore-{n}",
                "max_retries": 20,
            }
            task = await self._answered(n, "POST", "/api/v2/tasks", json=body)
            assert self.accepted.setdefault(n, task["id"]) == task["id"]
            while task["state"] not in OVER:
                path = f"/api/v2/tasks/{task['id']}"
                task = await self._answered(n, "GET", path, params={"wait_ms": 5_000})
            assert task["result"] is None or task["result"]["n"] == n
            self.states[task["state"]] += 1

    async def _answered(self, turn: int, method: str, path: str, **more: Any) -> dict[str, Any]:
        """Of one server after the other, until one answers."""
        while True:
            turn += 1
            with suppress(httpx2.TransportError):
                response = await self._clients[turn % 3].request(method, path, **more)
                if response.status_code < 300:
                    found: dict[str, Any] = response.json()
                    return found
                assert response.status_code == 503, response.text
            await asyncio.sleep(0.1)


async def test_killed_in_turn_they_lose_nothing_and_end_nothing_twice(cluster: Cluster) -> None:
    callers = Callers(cluster.servers)
    await callers.see_workers(len(cluster.workers))
    calling = asyncio.create_task(callers.run())
    kills: list[Callable[[], None]] = []
    for turn in range(3):
        kills += [cluster.kill_postgres, partial(cluster.kill_server, turn)]
        kills += [partial(cluster.kill_worker, turn), partial(cluster.kill_worker, turn + 3)]
    for number, kill in enumerate(kills):
        await callers.done(TASKS * number // (len(kills) + 1))
        await asyncio.to_thread(kill)
    await calling
    assert callers.states == {"succeeded": TASKS}, callers.states
    cluster.close()
    assert "Traceback" not in cluster.log()
    events = await check_ledger_invariants(cluster.url, callers.accepted.values())
    assert events["task.reclaimed"] > 0, "nobody was killed with anything in hand"
