"""Several servers on one Redis: which one a caller or a worker speaks to makes no difference."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from onward import Context, Worker
from onward.client.address import http_options
from onward.client.worker import MakeTransport
from tests.faults.redis_invariants import Snapshot, check_redis_invariants
from tests.processes import Server
from tests.servers import RedisServer
from tests.support import wait_until

pytestmark = pytest.mark.slow

LEASE_MS = 2_000
WAIT_S = 60


class Pair:
    """Two servers that have nothing in common but a Redis and an archive."""

    def __init__(self, folder: Path, redis: RedisServer) -> None:
        self._folder = folder
        self.redis = redis
        self.a, self.b = self._serve("a"), self._serve("b")

    def _serve(self, name: str, port: int | None = None) -> Server:
        (self._folder / name).mkdir(exist_ok=True)
        return Server(
            self._folder / name,
            port=port,
            ledger=self.redis.url,
            ONWARD_ARCHIVE=f"sqlite:///{self._folder}/archive.db",
            ONWARD_LEASE_MS=LEASE_MS,
            MIN_TASK_TIMEOUT_MS=100,
        )

    def kill_b(self) -> None:
        """It dies at once, and comes back under its old address."""
        self.b.kill()
        self.b = self._serve("b", self.b.port).wait_ready()

    def log(self) -> str:
        return self.a.log.read_text() + self.b.log.read_text()


@contextmanager
def serving_pair(folder: Path) -> Iterator[Pair]:
    redis = RedisServer("valkey")
    try:
        pair = Pair(folder, redis)
        try:
            pair.a.wait_ready()
            pair.b.wait_ready()
            yield pair
        finally:
            pair.a.kill()
            pair.b.kill()
        assert "Traceback" not in pair.log()
    finally:
        redis.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with serving_pair(tmp_path) as pair:
        yield pair


@asynccontextmanager
async def working(
    url: str,
    transport: MakeTransport | None = None,
    until: asyncio.Event | None = None,
    **options: Any,
) -> AsyncIterator[Worker]:
    """A worker on a socket, or by another transport: chores, and the group `default`. No chore ends
    before `until` is set.
    """
    worker = Worker(url, grace_ms=1_000, **options)

    @worker.service
    async def chore(ctx: Context, seconds: float = 0, n: int = 0) -> dict[str, Any]:
        await ctx.progress(0.5, "half")
        await (until.wait() if until else asyncio.sleep(seconds))
        return {"by": worker.id, "n": n, "attempt": ctx.attempt}

    @worker.group()
    async def chat(payload: Any) -> Any:
        await asyncio.sleep(payload.get("data", {}).get("seconds", 0))
        return {"by": worker.id}

    serving = asyncio.create_task(worker.serve(transport=transport))
    try:
        await wait_until(lambda: worker.connected, WAIT_S)
        yield worker
    finally:
        worker.drain()
        await asyncio.wait([serving], timeout=WAIT_S)


def http(server: Server) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(**http_options(server.url), timeout=30)


async def ended(client: httpx2.AsyncClient, task: str) -> dict[str, Any]:
    response = await client.get(f"/api/v2/tasks/{task}", params={"wait_ms": WAIT_S * 1000})
    found: dict[str, Any] = response.json()
    assert found["state"] in ("succeeded", "failed", "dead", "canceled"), found
    return found


async def running(client: httpx2.AsyncClient, task: str) -> None:
    async def state() -> str:
        return str((await client.get(f"/api/v2/tasks/{task}")).json()["state"])

    await wait_until(state, WAIT_S, holds="running".__eq__)


@pytest.mark.contract("S0-1")
@pytest.mark.parametrize("swapped", [False, True])
async def test_a_caller_and_a_worker_on_different_servers_meet(pair: Pair, swapped: bool) -> None:
    here, there = (pair.b, pair.a) if swapped else (pair.a, pair.b)
    async with http(here) as client, working(there.url, id="far") as far:
        took = []
        for _ in range(10):
            began = time.monotonic()
            said = await client.post("/api/openai", json={"data": {"n": 1}})
            took.append(time.monotonic() - began)
            assert (said.status_code, said.json()["result"]) == (200, {"by": far.id})
        # Each follows the last at once: by a second look alone, each would take a whole interval.
        assert min(took[1:]) < 0.5, "the bell carries it, not the second look"
    check_redis_invariants(pair.redis.client)


@pytest.mark.contract("S0-1", "S0-9")
async def test_no_worker_is_said_only_when_no_server_has_one(pair: Pair) -> None:
    async with http(pair.a) as client:

        async def ask() -> httpx2.Response:
            return await client.post("/api/openai", json={"data": {}, "timeout": 1500})

        async def refused(within_s: float) -> None:
            """Whoever asks meanwhile is taken for a short while, and told that time is over."""

            def is_over(said: httpx2.Response) -> bool:
                assert said.status_code in (200, 503) or said.json() == {"error": "Task timeout"}
                return said.status_code == 503

            said = await wait_until(ask, within_s, holds=is_over)
            assert said.json() == {"error": "No worker available"}

        assert (await ask()).json() == {"error": "No worker available"}
        async with working(pair.b.url):
            assert (await ask()).status_code == 200, "as soon as it is registered"
        await refused(5)
        async with working(pair.b.url):
            assert (await ask()).status_code == 200
            pair.b.kill()
            await refused(10)


async def test_a_server_that_was_held_up_is_counted_on_again(pair: Pair) -> None:
    async with http(pair.a) as client, working(pair.b.url):

        async def answered(status: int) -> None:
            body = {"data": {}, "timeout": 500}
            await wait_until(
                lambda: client.post("/api/openai", json=body),
                holds=lambda said: said.status_code == status,
            )

        await answered(200)
        pair.b.signal(signal.SIGSTOP)
        await answered(503)  # taken for dead, and its workers struck off
        pair.b.signal(signal.SIGCONT)
        await answered(200)


async def test_what_ran_on_a_killed_server_is_done_by_the_others_within_the_lease(
    pair: Pair,
) -> None:
    async with http(pair.a) as client, working(pair.b.url, id="doomed"):
        body = {"type": "chore", "payload": {"seconds": 60}}
        native = (await client.post("/api/v2/tasks", json=body)).json()["id"]
        door = (
            await client.post("/api/openai", json={"data": {"seconds": 60}, "async": True})
        ).json()["taskId"]
        await running(client, native)
        await running(client, door)
        async with working(pair.a.url, id="heir"):
            pair.b.kill()
            killed_ms = time.time() * 1000

            async def took_ms(task: str, event: str) -> float:
                items = (await client.get(f"/api/v2/tasks/{task}/events")).json()["items"]
                (at,) = [item["at"] for item in items if item["type"] == event]
                return float(at - killed_ms)

            async with asyncio.timeout(WAIT_S):
                while True:
                    found = (await client.get(f"/api/v2/tasks/{native}")).json()
                    if found["state"] == "running" and found["attempt"] == 2:
                        break
                    await asyncio.sleep(0.02)
            assert found["worker"] == "heir"
            lost = await ended(client, door)
            assert (lost["state"], lost["error"]["kind"]) == ("failed", "worker_lost")
            status = (await client.get(f"/api/task/{door}")).json()
            assert (status["status"], status["error"]) == ("failed", "Worker disconnected")
            assert await took_ms(native, "task.reclaimed") > LEASE_MS / 3, (
                "when the lease has ended"
            )
            await client.post(f"/api/v2/tasks/{native}/cancel")
            assert (await ended(client, native))["state"] == "canceled"
    check_redis_invariants(pair.redis.client, [native, door])


async def test_what_a_server_that_dies_or_loses_its_bell_claims_is_done_once(pair: Pair) -> None:
    accepted: list[str] = []
    redis: Any = pair.redis.client

    async def submit(client: httpx2.AsyncClient) -> None:
        for n in range(200):
            body = {"type": "chore", "payload": {"n": n}, "max_retries": 20}
            accepted.append((await client.post("/api/v2/tasks", json=body)).json()["id"])
            await asyncio.sleep(0.05)

    async with http(pair.a) as client, working(pair.b.url, id="far", concurrency=4) as far:
        submitting = asyncio.create_task(submit(client))
        while not submitting.done():
            for _ in range(2):
                await asyncio.sleep(1.3)
                redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "no")
            await asyncio.to_thread(pair.kill_b)
            await wait_until(lambda: far.connected, WAIT_S)
        await submitting
        over = [await ended(client, task) for task in accepted]
    assert {task["state"] for task in over} == {"succeeded"}
    check_redis_invariants(pair.redis.client, accepted)


async def test_what_a_server_that_stops_has_claimed_goes_back_at_once(pair: Pair) -> None:
    accepted: list[str] = []
    stopped = asyncio.Event()

    async def submit(client: httpx2.AsyncClient) -> None:
        while not stopped.is_set():
            body = {"type": "chore", "payload": {"n": len(accepted)}}
            accepted.append((await client.post("/api/v2/tasks", json=body)).json()["id"])

    async with http(pair.a) as client, working(pair.b.url, id="far", concurrency=4):
        submitting = [asyncio.create_task(submit(client)) for _ in range(4)]
        await asyncio.sleep(0.5)
        assert await asyncio.to_thread(pair.b.stop) == 0
        stopped.set()
        await asyncio.gather(*submitting)
        async with working(pair.a.url, id="near", concurrency=50):
            over = [await ended(client, task) for task in accepted]
    assert {(task["state"], task["attempt"]) for task in over} == {("succeeded", 1)}
    check_redis_invariants(pair.redis.client, accepted)


@pytest.mark.contract("N-3")
async def test_an_idempotency_key_holds_on_every_server(pair: Pair) -> None:
    body = {"type": "chore", "payload": {"n": 7}, "idempotency_key": "once"}
    async with http(pair.a) as a, http(pair.b) as b:
        answers = await asyncio.gather(
            *[client.post("/api/v2/tasks", json=body) for client in (a, b) * 10]
        )
        assert {answer.status_code for answer in answers} <= {200, 202}
        assert len({answer.json()["id"] for answer in answers}) == 1
        other = await b.post("/api/v2/tasks", json={**body, "payload": {"n": 8}})
        assert other.status_code == 422
        async with working(pair.b.url):
            await ended(a, answers[0].json()["id"])
            again = await b.post("/api/v2/tasks", json=body, params={"wait_ms": 5000})
            assert again.json()["result"]["attempt"] == 1
    check_redis_invariants(pair.redis.client)


@pytest.mark.contract("N-4")
async def test_a_follower_sees_what_happens_on_the_other_server(pair: Pair) -> None:
    followed = asyncio.Event()  # if it came only at the end, there would be no end
    seen = []
    async with http(pair.a) as client, working(pair.b.url, until=followed):
        body = {"type": "chore", "payload": {}, "delay_ms": 300}
        task = (await client.post("/api/v2/tasks", json=body)).json()["id"]
        headers = {"accept": "text/event-stream"}
        async with client.stream("GET", f"/api/v2/tasks/{task}/events", headers=headers) as stream:
            async for line in stream.aiter_lines():
                if line.startswith("data: "):
                    seen.append(json.loads(line[6:])["type"])
                if "task.progress" in seen:
                    followed.set()
    assert seen == [
        "task.created",
        "task.queued",
        "task.claimed",
        "task.progress",
        "task.succeeded",
    ]


async def test_two_sweepers_fire_a_delay_once(pair: Pair) -> None:
    tasks = 200
    async with (
        http(pair.a) as a,
        http(pair.b) as b,
        working(pair.a.url, concurrency=50),
        working(pair.b.url, concurrency=50),
    ):

        async def submit(n: int) -> str:
            body = {"type": "chore", "payload": {"n": n}, "delay_ms": 1_500}
            client = a if n % 2 else b
            return str((await client.post("/api/v2/tasks", json=body)).json()["id"])

        accepted = await asyncio.gather(*[submit(n) for n in range(tasks)])
        for at in range(0, tasks, 50):
            over = await asyncio.gather(*[ended(b, task) for task in accepted[at : at + 50]])
            assert {task["state"] for task in over} == {"succeeded"}
            assert {task["attempt"] for task in over} == {1}
    told = Counter(type_ for _, type_, _, _ in Snapshot(pair.redis.client).log())
    assert told["task.queued"] == told["task.claimed"] == tasks
    check_redis_invariants(pair.redis.client, accepted)
