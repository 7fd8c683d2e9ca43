"""Starting, stopping and killing whole workers; and a server that wakes them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from onward.client.address import http_options
from onward.core.task import State
from tests.celery.ledger_client import (
    CeleryWorker,
    LedgerClient,
    environment,
    go,
    ledger_client,
    lines,
)
from tests.faults.redis_invariants import check_redis_invariants
from tests.processes import Server
from tests.servers import RedisServer
from tests.support import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.contract("S3-13")]


@pytest.fixture
async def here(redis: RedisServer) -> AsyncIterator[LedgerClient]:
    redis.client.flushall()
    async with ledger_client(redis) as place:
        yield place


@pytest.mark.contract("S3-1", "S3-12")
async def test_a_server_wakes_a_solo_worker_and_no_beat_is_needed(
    here: LedgerClient, tmp_path: Path
) -> None:
    server = Server(tmp_path, ledger=here.redis.url, ONWARD_ARCHIVE="")
    worker = CeleryWorker(here.redis, tmp_path / "celery.log", "-P", "solo")
    try:
        await asyncio.to_thread(server.wait_ready)
        await here.staffed(worker, 1)
        async with httpx2.AsyncClient(**http_options(server.url), timeout=60) as http:

            async def seen() -> bool:
                members = (await http.get("/api/v2/workers")).json()["items"]
                return [member["transport"] for member in members] == ["celery"]

            await wait_until(seen)
            task = {"type": "summarize", "payload": {"content": "It is short. Very short."}}
            took: list[float] = []
            ids: list[str] = []
            for _ in range(10):
                began = time.monotonic()
                done = (await http.post("/api/v2/tasks?wait_ms=15000", json=task)).json()
                took.append(time.monotonic() - began)
                ids.append(done["id"])
                assert (done["state"], done["result"]["offline"]) == ("succeeded", True), done
        # Each follows the last at once: by a look alone, each would wait for the whole second.
        assert min(took[1:]) < 0.5, "found by a look once a second, not by a wake-up"
        assert worker.stop() == 0
        assert await here.workers() == [], "it left without a word"
        now = here.dispatcher.clock.now()
        servers = await here.backend.documents.list("server", now=now)
        assert len(servers) == 1, "besides the server somebody still beats"
    finally:
        worker.kill()
        server.kill()
    check_redis_invariants(here.redis.client, ids)


@pytest.mark.contract("N-3")
async def test_what_a_killed_worker_held_is_ended_by_another_once(
    here: LedgerClient, tmp_path: Path
) -> None:
    path = tmp_path / "lines"
    held = await here.submit("hold", {"path": str(path)})
    crowd = [
        CeleryWorker(here.redis, tmp_path / f"{n}.log", "-B", "-c", "1", "-P", "prefork")
        for n in range(2)
    ]
    try:
        await here.staffed(crowd[0], 2)
        await wait_until(lambda: lines(path) == ["began"])
        holder = (await here.get(held)).worker or ""
        killed, other = sorted(crowd, key=lambda worker: not holder.startswith(worker.name))
        killed.kill()
        marks = [await here.submit("mark", {"path": f"{path}.other"}) for _ in range(3)]
        go(path)
        task = await here.until(held, State.SUCCEEDED)
        assert (task.fence, lines(path)) == (2, ["began", "began", "ended"])
        for id in marks:
            await here.until(id, State.SUCCEEDED)

        # Told to stop at once, a worker hands back what it cannot finish, and nothing is burned.
        stuck = await here.submit("hold", {"path": f"{path}.stuck"})
        await here.until(stuck, State.RUNNING)
        other.popen.send_signal(signal.SIGQUIT)
        task = await here.until(stuck, State.QUEUED)
        assert (task.attempt, task.lost, task.failures) == (0, 0, 0)
        assert "task.released" in await here.events(stuck)
        assert await asyncio.to_thread(other.popen.wait, 20) == 0
    finally:
        for worker in crowd:
            worker.kill()
    check_redis_invariants(here.redis.client, [held, *marks, stuck], all_over=False)


@pytest.mark.contract("R-9")
def test_a_worker_whose_services_are_not_there_says_so_and_does_not_start(
    redis: RedisServer,
) -> None:
    said = subprocess.run(
        (sys.executable, "-m", "celery", "-A", "onward.workers.celery", "worker"),
        env={**os.environ, **environment(redis), "ONWARD_CELERY_SERVICES": "nowhere:job"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert said.returncode == 1
    assert "'nowhere:job', which cannot be loaded" in said.stderr
    assert "Traceback" not in said.stderr
