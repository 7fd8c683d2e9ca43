"""Stream workers killed and stopped all the while: nothing lost, twice, or left over."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest

from onward.client.address import http_options
from tests.faults.chores import states_in, submit_chores
from tests.faults.invariants import check_invariants
from tests.faults.redis_invariants import check_redis_invariants
from tests.processes import Process, serving
from tests.servers import RedisServer
from tests.streams.stream_app import GROUP, RESULTS, TASKS
from tests.support import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

WORKER = f"{Path(__file__).with_name('stream_worker.py')}:worker"
TASKS_IN_ALL = 5_000
VISIBILITY_S = 2.0  # a machine that stalls for longer looks like five dead workers in a row


class Crew:
    """Two worker processes; once a second one of them is killed, or stopped for too long."""

    def __init__(self, redis_url: str, log: Path) -> None:
        self._redis_url = redis_url
        self._log = log
        self.members = [self._start(), self._start()]
        self.strikes: Counter[str] = Counter()

    def _start(self) -> Process:
        return Process(
            *(sys.executable, "-m", "onward.cli", "worker", WORKER),
            *("--via", "streams", "--redis", self._redis_url),
            env={"VISIBILITY_TIMEOUT_S": str(VISIBILITY_S)},
            log=self._log,
        )

    async def strike(self, turn: int) -> None:
        if turn % 3 == 1:
            # Paused past the visibility timeout with its hands full: a zombie when it wakes.
            self.strikes["stop"] += 1
            self.members[0].signal(signal.SIGSTOP)
            await asyncio.sleep(VISIBILITY_S + 0.8)
            self.members[0].signal(signal.SIGCONT)
            return
        self.strikes["kill"] += 1
        self.members[1].kill()
        self.members[1] = self._start()

    def dismiss(self) -> None:
        for member in self.members:
            member.signal(signal.SIGCONT)
            member.kill()


async def cleared(client: Any) -> None:
    def left() -> tuple[int, int, int]:
        """Pending, entries, results."""
        pending = client.xpending(TASKS, GROUP)["pending"]
        return pending, client.xlen(TASKS), client.xlen(RESULTS)

    await wait_until(left, holds=(0, 0, 0).__eq__)


@pytest.mark.contract("S1-13", "S1-3", "S1-4", "S1-6")
@pytest.mark.parametrize("ledger", ["sqlite", "redis"])
async def test_workers_killed_and_stopped_all_the_while_lose_nothing_and_end_nothing_twice(
    ledger: str, tmp_path: Path
) -> None:
    redis = RedisServer("valkey")
    accepted: list[str] = []
    options: dict[str, Any] = {
        "ONWARD_REDIS": redis.url,
        "VISIBILITY_TIMEOUT_S": VISIBILITY_S,
        "ONWARD_ARCHIVE": "",
        "ONWARD_STREAM_CREDITS": 200,
    }
    if ledger == "redis":
        options["ledger"] = redis.url
    try:
        with serving(tmp_path, **options) as server:
            crew = Crew(redis.url, tmp_path / "worker.log")
            try:
                async with httpx2.AsyncClient(**http_options(server.url), timeout=60) as http:
                    found: Counter[str] = Counter()
                    submitting = asyncio.create_task(
                        submit_chores(http, TASKS_IN_ALL, accepted, queue="streams")
                    )
                    for turn in range(120):
                        await asyncio.sleep(1)
                        found = await states_in(http, "streams")
                        over = found["succeeded"] + found["dead"] == TASKS_IN_ALL
                        if over and submitting.done():
                            break
                        await crew.strike(turn)
                    await submitting
                    died = (await http.get("/api/v2/dead-letters")).json()["items"]
                    assert found["succeeded"] == TASKS_IN_ALL, (died, found, crew.strikes)
                    assert min(crew.strikes["kill"], crew.strikes["stop"]) >= 3
                await cleared(redis.client)
            finally:
                crew.dismiss()
            assert await asyncio.to_thread(server.stop) == 0
        assert len(set(accepted)) == TASKS_IN_ALL
        if ledger == "redis":
            check_redis_invariants(redis.client, accepted)
        else:
            check_invariants(tmp_path / "ledger.db", accepted)
    finally:
        redis.close()
