"""Limits and turns while servers and workers are killed, as the handlers wrote it down."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from onward.client.address import http_options
from onward.core.contract import Query
from onward.ledgers import open_backend
from tests.faults.invariants import check_ledger_invariants
from tests.processes import Process, Server
from tests.servers import PostgresServer, RedisServer
from tests.support import wait_until

FULL = "ONWARD_FULL_FAULTS" in os.environ
BIG, DEEP = (20, 5_000) if FULL else (5, 80)  # partitions with much to do, and how much
SMALL = 180 if FULL else 25  # partitions with a single task
AT_ONCE, EACH = (50, 2) if FULL else (8, 2)
KILLS = 600 if FULL else 6
RATE, SECONDS = 50, 60 if FULL else 6
USED = 0.95  # of the rate, while something waits; in full alone, as a busy machine uses less
LEASE_MS = 6_000  # much longer than a handler runs: one that is left alone is over by then
WAIT_S = 600 if FULL else 120
TOGETHER = 500  # tasks of one request
QUEUED = ("task.created", "task.queued", "task.reclaimed", "task.released")
WORKER = Path(__file__).with_name("limited_worker.py")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800 if FULL else 400)]


class Cluster:
    """Two servers and four workers on one ledger; each that is killed is replaced."""

    def __init__(self, folder: Path, ledger: str) -> None:
        self._folder = folder
        self.ledger = ledger
        self.record = folder / "record.txt"
        self.record.touch()
        self.killed: dict[int, float] = {}  # by process: when
        self._kills = 0
        self.servers = [self._serve(at) for at in range(2)]
        for server in self.servers:
            server.wait_ready()
        self.workers: list[Process] = []

    def work(self) -> None:
        self.workers = [self._hire(at) for at in range(4)]

    def _serve(self, at: int, port: int | None = None) -> Server:
        folder = self._folder / f"server-{at}"
        folder.mkdir(exist_ok=True)
        return Server(folder, port=port, ledger=self.ledger, ONWARD_LEASE_MS=LEASE_MS)

    def _hire(self, at: int) -> Process:
        command = [sys.executable, str(WORKER), self.servers[at % 2].url, str(self.record)]
        return Process(*command, log=self._folder / f"worker-{at}.log")

    def kill_next(self) -> None:
        """Workers, and every third time a server."""
        self._kills += 1
        at = self._kills % 4
        if self._kills % 3:
            self.killed[self.workers[at].popen.pid] = time.monotonic()
            self.workers[at].kill()
            self.workers[at] = self._hire(at)
        else:
            server = self.servers[at % 2]
            server.kill()
            self.servers[at % 2] = self._serve(at % 2, server.port).wait_ready()

    def close(self) -> None:
        for process in (*self.workers, *self.servers):
            process.kill()

    async def post(self, path: str, body: Any) -> dict[str, Any]:
        """At whichever server answers."""
        turn = 0
        while True:
            turn += 1
            with suppress(httpx2.TransportError):
                async with httpx2.AsyncClient(**http_options(self.servers[turn % 2].url)) as http:
                    response = await http.post(path, json=body)
                    assert response.status_code < 300, response.text
                    found: dict[str, Any] = response.json()
                    return found

    async def submit(self, partitions: list[str]) -> list[str]:
        tasks: list[str] = []
        for at in range(0, len(partitions), TOGETHER):
            bodies = [
                {"type": "work", "payload": {"who": who}, "max_retries": 50}
                for who in partitions[at : at + TOGETHER]
            ]
            answer = await self.post("/api/v2/tasks/batch", {"tasks": bodies})
            tasks += [str(item["id"]) for item in answer["items"]]
        return tasks

    async def killing_until_done(self, tasks: int) -> None:
        async def left() -> int:
            with suppress(httpx2.TransportError):
                async with httpx2.AsyncClient(**http_options(self.servers[0].url)) as http:
                    queue = (await http.get("/api/v2/queues/work")).json()
                    return tasks - int(queue["states"]["succeeded"])
            return tasks

        for _ in range(KILLS):
            if not await left():
                return
            await asyncio.sleep(1)
            await asyncio.to_thread(self.kill_next)
        await wait_until(left, WAIT_S, holds=lambda many: many == 0)


@pytest.fixture(params=["valkey", "postgres15"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    kind = request.param
    server: Any = RedisServer(kind) if kind == "valkey" else PostgresServer(kind, durable=True)
    try:
        cluster = Cluster(tmp_path, server.url if kind == "valkey" else server.fresh_url())
        try:
            yield cluster
        finally:
            cluster.close()
    finally:
        server.close()


def at_once(cluster: Cluster) -> tuple[int, Counter[str]]:
    """How many handlers ran at once at the most: altogether, and of each partition."""
    begun: dict[tuple[str, str], tuple[float, str, int]] = {}
    changes: list[tuple[float, int, str]] = []
    for line in cluster.record.read_text().splitlines():
        what, at, process, who, task, attempt = line.split(" ")
        if what == "begin":
            begun[task, attempt] = (float(at), who, int(process))
        else:
            since, who, _ = begun.pop((task, attempt))
            changes += [(since, 1, who), (float(at), -1, who)]
    for since, who, pid in begun.values():  # cut short with their process
        changes += [(since, 1, who), (max(since, cluster.killed[pid]), -1, who)]
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()
    all_now = all_most = 0
    for _, change, who in sorted(changes):
        now[who] += change
        most[who] = max(most[who], now[who])
        all_now += change
        all_most = max(all_most, all_now)
    return all_most, most


class Start(NamedTuple):
    at: int
    after: int  # so many others, its task was queued
    partition: str
    first: bool  # attempt of its task


async def starts_of(ledger: str) -> list[Start]:
    """All attempts, in the order in which they were claimed."""
    backend = open_backend(ledger)
    try:
        found: list[Start] = []
        partitions: dict[str, str] = {}
        after: str | None = None
        while True:
            page = await backend.tasks.find(Query(type="work", after=after, limit=500))
            partitions |= {task.id: task.partition for task in page.items}
            if page.next is None:
                break
            after = page.next
        queued: dict[str, int] = {}
        started: set[str] = set()
        cursor = ""
        while True:
            log = await backend.tasks.events(after=cursor, limit=1_000)
            if not log.items:
                return found
            cursor = log.next or cursor
            for event in log.items:
                if event.type == "task.claimed":
                    first = event.task not in started
                    started.add(event.task)
                    partition = partitions[event.task]
                    found.append(Start(event.at, queued[event.task], partition, first))
                elif event.type in QUEUED:
                    queued[event.task] = len(found)
    finally:
        await backend.close()


@pytest.mark.contract("L-2", "L-3")
async def test_killed_in_turn_they_never_run_more_than_they_may(cluster: Cluster) -> None:
    body = {
        "name": "work",
        "task_types": ["work"],
        "partition_by": "who",
        "concurrency": {"total": AT_ONCE, "per_partition": EACH},
    }
    await cluster.post("/api/v2/services", body)
    big = [f"big-{at}" for at in range(BIG)] * DEEP
    tasks = await cluster.submit(big)
    tasks += await cluster.submit([f"small-{at}" for at in range(SMALL)])
    cluster.work()
    await cluster.killing_until_done(len(tasks))
    cluster.close()
    all_most, of_each = at_once(cluster)
    assert all_most <= AT_ONCE
    assert max(of_each.values()) <= EACH, of_each.most_common(3)
    await check_ledger_invariants(cluster.ledger, tasks)
    # Nobody's clock: how many starts of others it let pass. A fair share of them is one round of
    # all partitions; a kill may put one that was running back to the end.
    passed: dict[str, int] = defaultdict(int)
    for at, start in enumerate(await starts_of(cluster.ledger)):
        if (who := start.partition).startswith("small"):
            passed[who] = max(passed[who], at - start.after)
    first_round = BIG + SMALL + AT_ONCE
    assert max(passed.values()) <= 2 * first_round, sorted(passed.values())[-5:]


@pytest.mark.contract("L-4")
async def test_no_window_holds_more_starts_than_a_rate_lets(cluster: Cluster) -> None:
    rate = {"count": RATE, "per_ms": 1_000}
    body = {"name": "work", "task_types": ["work"], "partition_by": "who", "rate": [rate]}
    await cluster.post("/api/v2/services", body)
    cluster.work()
    tasks = await cluster.submit([f"who-{at % 7}" for at in range(RATE * SECONDS)])
    await cluster.killing_until_done(len(tasks))
    cluster.close()
    await check_ledger_invariants(cluster.ledger, tasks)
    starts = await starts_of(cluster.ledger)
    assert len(starts) >= len(tasks)
    at = sorted(start.at for start in starts)
    fullest = max(bisect_left(at, begin + 1_000) - nth for nth, begin in enumerate(at))
    assert fullest <= RATE + 1
    # Until the last of them had been started once, something waited all the time. What died with a
    # server after that is started again up to a lease later, and nothing waits meanwhile.
    last = max(start.at for start in starts if start.first)
    used = bisect_left(at, last) * 1_000 / (last - at[0]) / RATE
    idle_s = (at[-1] - last) / 1_000
    print(f"{len(at)} starts, {used:.3f} of the rate, then {idle_s:.1f} s")  # noqa: T201 to report
    assert not FULL or used >= USED
