"""Redis killed, emptied, full or away: nothing answered for is lost, and nobody hears "500"."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from onward import Worker
from onward.client.address import http_options
from onward.core import machine
from onward.core.clock import ManualClock
from onward.core.contract import Key
from onward.core.outcome import Failed, Parked, Succeeded
from onward.faults import Fault
from onward.ledgers import open_backend
from onward.ledgers.archive import ArchivedBackend, Archiver
from tests.contract.driver import Driver, submission
from tests.faults.redis_invariants import check_only_permanent_keys, check_redis_invariants
from tests.faults.test_kills import drained
from tests.processes import Server
from tests.servers import RedisServer
from tests.support import NOW, PROFILES, a_task, replay, wait_until

pytestmark = pytest.mark.slow

DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
DAY = 24 * 3_600_000


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    server = RedisServer("valkey", *DURABLE)
    yield server
    server.close()


@asynccontextmanager
async def serving(
    folder: Path, redis: RedisServer, *, up: bool = False, **env: Any
) -> AsyncIterator[Server]:
    env.setdefault("ONWARD_ARCHIVE", f"sqlite:///{folder}/archive.db")
    env.setdefault("ONWARD_LEASE_MS", 1000)
    env.setdefault("ONWARD_RETRY_SCHEDULES", '{"Default":[0.1]}')
    server = Server(folder, ledger=redis.url, up=up, **env)
    try:
        yield await asyncio.to_thread(server.wait_ready)
    finally:
        server.kill()


class Load:
    """Callers who submit one after another, and remember what they were told."""

    def __init__(self, server: Server) -> None:
        self.accepted: list[str] = []
        self.statuses: Counter[int] = Counter()
        self.refusals: list[str] = []
        self._server = server
        self._stop = asyncio.Event()
        self._callers: list[asyncio.Task[None]] = []

    def start(self, *requests: tuple[str, dict[str, Any]], times: int = 4) -> None:
        for path, body in requests * times:
            self._callers.append(asyncio.create_task(self._submit(path, body)))

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._callers)

    async def more(self, count: int) -> None:
        enough = len(self.accepted) + count
        await wait_until(lambda: len(self.accepted) >= enough)

    async def _submit(self, path: str, body: dict[str, Any]) -> None:
        async with httpx2.AsyncClient(**http_options(self._server.url), timeout=30) as http:
            while not self._stop.is_set():
                response = await http.post(path, json=body)
                self.statuses[response.status_code] += 1
                if response.status_code < 300:
                    said = response.json()
                    self.accepted.append(said.get("taskId") or said["id"])
                else:
                    self.refusals.append(response.text)
                    await asyncio.sleep(0.02)


@pytest.mark.contract("N-3")
async def test_redis_killed_twice_under_load_loses_nothing_it_answered_for(
    tmp_path: Path, redis: RedisServer
) -> None:
    async with serving(tmp_path, redis, up=True) as server:
        load = Load(server)
        load.start(
            ("/api/openai", {"data": {"n": 1}, "async": True}),
            ("/api/v2/tasks", {"type": "echo", "payload": {"n": 1}}),
            ("/api/v2/tasks", {"type": "countdown", "payload": {"seconds": 0.3}}),
        )
        try:
            for _ in range(2):
                await load.more(300)
                redis.kill()
                await until_refused(load)
                await asyncio.to_thread(redis.start)
            await load.more(300)
        finally:
            await load.stop()
        await drained(server.url)
    assert set(load.statuses) <= {200, 202, 503}, load.statuses
    assert all("the ledger" in body for body in load.refusals), set(load.refusals)
    check_redis_invariants(redis.client, load.accepted)


async def until_refused(load: Load) -> None:
    seen = len(load.refusals)
    await wait_until(lambda: len(load.refusals) >= seen + 20)


@pytest.mark.contract("N-2")
async def test_while_redis_is_away_every_door_says_so_and_it_comes_back_by_itself(
    tmp_path: Path, redis: RedisServer
) -> None:
    async with (
        serving(tmp_path, redis, up=True) as server,
        httpx2.AsyncClient(**http_options(server.url), timeout=30) as http,
    ):
        chat = {"model": "default", "messages": [{"role": "user", "content": "hello"}]}
        task = {"type": "echo", "payload": {}}
        calls: list[tuple[str, str, dict[str, Any] | None]] = [
            ("POST", "/api/openai", {"data": {}}),
            ("POST", "/api/openai", {"data": {}, "async": True}),
            ("GET", "/api/task/x", None),
            ("POST", "/v1/chat/completions", chat),
            ("POST", "/v1/chat/completions", {**chat, "stream": True}),
            ("POST", "/api/v2/tasks", task),
            ("POST", "/api/v2/tasks?wait_ms=1000", task),
            ("GET", "/api/v2/tasks", None),
            ("GET", "/api/v2/tasks/x", None),
            ("GET", "/api/v2/tasks/x/events", None),
            ("GET", "/api/v2/tasks/x/explain", None),
            ("POST", "/api/v2/tasks/x/cancel", {}),
            ("GET", "/api/v2/queues", None),
            ("GET", "/health", None),
        ]
        redis.kill()
        answers: list[httpx2.Response] = []
        for _ in range(2):
            answers = [
                await http.request(method, path, json=body)
                if body is not None
                else await http.get(path)
                for method, path, body in calls
            ]
            said = {f"{m} {p}": r.status_code for (m, p, _), r in zip(calls, answers, strict=True)}
            assert set(said.values()) == {503}, said
            for (_, path, _), answer in zip(calls[:-1], answers[:-1], strict=True):
                assert "the ledger" in answer.text, (path, answer.text)
        figures = await http.get("/metrics")  # the one that reports it does not fail with it
        assert figures.status_code == 200
        assert "\nonward_ledger_up 0.0\n" in figures.text
        problem = answers[5].json()
        assert problem["code"] == "ledger_unavailable"
        assert problem["hint"]
        assert answers[5].headers["retry-after"] == "1"

        await asyncio.to_thread(redis.start)
        await wait_until(lambda: works(http, wait_ms=500))
        assert (await http.get("/health")).status_code == 200

        redis.client.function_flush("SYNC")
        assert await works(http), "the library is loaded again, in the same call"
        redis.client.flushall()
        await wait_until(lambda: replaced(http))
        assert redis.client.keys("onward:*") == [], "nothing is written as if nothing had happened"


async def replaced(http: httpx2.AsyncClient) -> bool:
    health = await http.get("/health")
    return health.status_code == 503 and "the ledger is gone" in health.text


async def works(http: httpx2.AsyncClient, wait_ms: int = 2000) -> bool:
    body = {"type": "echo", "payload": {"n": 1}}
    response = await http.post(f"/api/v2/tasks?wait_ms={wait_ms}", json=body)
    assert response.status_code in (200, 202, 503), response.text
    return response.status_code == 200 and response.json()["result"] == {"n": 1}


async def test_a_worker_that_leaves_while_redis_is_away_is_not_counted_on_for_ever(
    tmp_path: Path, redis: RedisServer
) -> None:
    async with (
        serving(tmp_path, redis) as server,
        httpx2.AsyncClient(**http_options(server.url), timeout=30) as http,
    ):
        async with working(server):
            assert (await http.post("/api/openai", json={"data": 1})).status_code == 200
            redis.kill()
        await asyncio.to_thread(redis.start)

        async def refused() -> bool:
            said = await http.post("/api/openai", json={"data": 1, "async": False, "timeout": 1})
            return bool(said.json() == {"error": "No worker available"})

        await wait_until(refused)


@asynccontextmanager
async def working(server: Server, *, gate: asyncio.Event | None = None) -> AsyncIterator[Worker]:
    worker = Worker(server.url, concurrency=50, grace_ms=200)

    @worker.group()
    async def chat(payload: Any) -> Any:
        return payload

    @worker.service
    async def chore(text: str = "") -> str:
        if gate is not None:
            await gate.wait()
        return text

    serving = asyncio.create_task(worker.serve())
    try:
        await wait_until(lambda: worker.connected)
        yield worker
    finally:
        worker.drain()
        await asyncio.wait([serving], timeout=60)


async def test_a_full_redis_refuses_new_work_and_finishes_the_old(
    tmp_path: Path, redis: RedisServer
) -> None:
    redis.client.config_set("maxmemory-policy", "noeviction")
    gate = asyncio.Event()
    async with (
        serving(tmp_path, redis, ONWARD_LEASE_MS=5000) as server,
        httpx2.AsyncClient(**http_options(server.url), timeout=30) as http,
        working(server, gate=gate),
    ):
        accepted: list[str] = []

        async def submit(size: int) -> int:
            body = {"type": "chore", "payload": {"text": "x" * size}}
            response = await http.post("/api/v2/tasks", json=body)
            if response.status_code == 202:
                accepted.append(response.json()["id"])
            elif response.status_code == 503:
                assert response.json()["detail"] == "the ledger takes no writes now"
            return response.status_code

        for _ in range(20):
            assert await submit(10) == 202
        used = int(redis.client.info("memory")["used_memory"])
        redis.client.config_set("maxmemory", used + 300_000)
        # How many fit is not known: what Redis used for itself when we asked may be free again.
        statuses = [await submit(50_000)]
        while statuses[-1] == 202 and len(statuses) < 400:
            statuses.append(await submit(50_000))
        assert (statuses[0], statuses[-1]) == (202, 503)
        redis.client.config_set("maxmemory", 1_000_000)  # far below what is there
        assert await submit(1) == 503
        gate.set()
        await drained(server.url)
        assert (await http.get(f"/api/v2/tasks/{accepted[0]}")).json()["state"] == "succeeded"
        assert await submit(1) == 503, "still full, and said so"
        redis.client.config_set("maxmemory", 0)
        assert await submit(1) == 202
        await drained(server.url)
    check_redis_invariants(redis.client, accepted)


@pytest.mark.contract("S2-5", "S1-9")
async def test_finished_tasks_leave_redis_and_are_read_as_before(
    tmp_path: Path, redis: RedisServer
) -> None:
    async with (
        serving(tmp_path, redis, up=True, ONWARD_REDIS_KEEP_MS=1500) as server,
        httpx2.AsyncClient(**http_options(server.url), timeout=30) as http,
    ):
        path = "/api/v2/tasks?wait_ms=5000"
        before = [
            (await http.post(path, json={"type": "echo", "payload": {"n": n}})).json()
            for n in range(20)
        ]
        assert {task["state"] for task in before} == {"succeeded"}

        async def forgotten() -> bool:
            return bool(redis.client.zcard("onward:index") == 0)

        await wait_until(forgotten)
        check_only_permanent_keys(redis.client)
        for task in before:
            assert (await http.get(f"/api/v2/tasks/{task['id']}")).json() == task
        events = (await http.get(f"/api/v2/tasks/{before[0]['id']}/events")).json()["items"]
        assert [event["type"] for event in events] == [
            "task.created",
            "task.claimed",
            "task.succeeded",
        ]
        listed = (await http.get("/api/v2/tasks?state=succeeded&limit=50")).json()["items"]
        assert [task["id"] for task in listed] == [task["id"] for task in before[::-1]]
        again = await http.post(f"/api/v2/tasks/{before[0]['id']}/retry", json={})
        assert again.status_code == 409


async def test_no_key_outlives_its_task(tmp_path: Path, redis: RedisServer) -> None:
    clock = ManualClock()
    backend = open_backend(redis.url, archive=f"sqlite:///{tmp_path}/archive.db")
    assert isinstance(backend, ArchivedBackend)
    archiver = Archiver(backend, clock, {})
    await archiver.prepare()
    driver = Driver(backend)
    bad = Failed(Fault(kind="InvalidInput", message="no" * 100))
    long = '"' + "x" * 500 + '"'
    good = await driver.running(payload=long, queue="long")
    await driver.settle(good, Succeeded(long))
    for fate in ("kept", "abandoned", "replayed"):
        dead = await driver.running(queue=fate, session="s", payload=long)
        await driver.settle(dead, bad)
        if fate == "abandoned":
            await driver.intervene(await driver.task(dead.id), machine.abandon)
        elif fate == "replayed":
            await driver.apply(replay(await driver.task(dead.id), NOW))
            (again,) = await driver.claim(fate)
            await driver.settle(again, Succeeded("1"))
    for fields in ({"run_at": NOW + 5}, {"waiting_for": "event"}, {"priority": 0}, {"priority": 2}):
        task = await driver.submit(**fields)
        await driver.post(task.id, long)
        await driver.intervene(await driver.task(task.id), machine.cancel)
    parent = await driver.running(queue="parent")
    child = a_task(queue="child", parent=parent.id)
    await driver.settle(parent, Parked(seen=0, journal="{}", waiting_for="children"), child)
    (born,) = await driver.claim("child")
    await driver.settle(born, Succeeded("1"))
    (parent,) = await driver.claim("parent")
    await driver.settle(parent, Succeeded("1"))
    await driver.insert(submission(a_task(id="keyed", key="k"), key=Key("s", "k", "b")))
    (keyed,) = await driver.claim()
    for name, acts in (("charge", keyed), ("mail", good)):
        await backend.effects.begin(acts, name, now=NOW)
        await backend.effects.finish(acts, name, "1", fence=acts.fence)
    await driver.settle(keyed, Succeeded("1"))
    check_redis_invariants(redis.client)

    assert await archiver.step()
    over = [task.id for task in await driver.all()]
    assert await driver.store.purge(over, now=NOW) == len(over)
    await driver.store.purge([], now=NOW + DAY + 1)  # keys are remembered for a day
    check_only_permanent_keys(redis.client)
    assert {task.id for task in await driver.all()} == set(over), "the archive has them all"
    assert PROFILES["console"].retention_ms > DAY
    await backend.close()
