"""A Redis ledger with Celery workers on it, and nobody else unless a test starts a server."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from onward.core.clock import SystemClock
from onward.core.dispatch import Dispatcher
from onward.core.task import State, Task
from onward.ledgers.redis import RedisBackend
from onward.settings import Settings
from onward.workers.celery.wiring import celery_app, wake
from tests.processes import Process
from tests.servers import RedisServer
from tests.support import PROFILES, a_task, wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
SERVICES = ",".join(
    f"tests.celery.services:{name}" for name in ("mark", "hold", "second_time", "add")
)
LEASE_MS = 1_500


def environment(redis: RedisServer) -> dict[str, str]:
    return {
        "ONWARD_LEDGER": redis.url,
        "ONWARD_ARCHIVE": "",
        "ONWARD_CELERY_SERVICES": SERVICES,
        "ONWARD_LEASE_MS": str(LEASE_MS),
        "ONWARD_DRAIN_MS": "500",
        "ONWARD_RETRY_SCHEDULES": '{"Default":[0.2]}',
        "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
    }


class CeleryWorker(Process):
    def __init__(self, redis: RedisServer, log: Path, *options: str) -> None:
        self.log = log
        self.name = f"w{os.urandom(3).hex()}@here"
        super().__init__(
            *(sys.executable, "-m", "celery", "-A", "onward.workers.celery", "worker"),
            *("--without-mingle", "--without-gossip", "-n", self.name),
            *options,
            env=environment(redis),
            log=log,
        )


class LedgerClient:
    """A program that uses the ledger directly: there is no server."""

    def __init__(self, redis: RedisServer) -> None:
        self.redis = redis
        self.backend = RedisBackend(redis.url)
        self.dispatcher = Dispatcher(self.backend, PROFILES, SystemClock())
        self._celery = celery_app(Settings(ledger=redis.url))

    async def submit(self, type_: str, payload: Any, **fields: Any) -> str:
        now = self.dispatcher.clock.now()
        task = a_task(
            type=type_, queue=type_, payload=json.dumps(payload), created_at=now, **fields
        )
        await self.dispatcher.submit(task)
        return task.id

    async def get(self, id: str) -> Task:
        (task,) = await self.backend.tasks.get([id])
        assert task is not None
        return task

    async def until(self, id: str, state: State, timeout: float = 60) -> Task:
        return await wait_until(
            lambda: self.get(id), timeout, holds=lambda task: task.state is state
        )

    async def events(self, id: str) -> list[str]:
        page = await self.backend.tasks.events(after="", limit=100, task=id)
        return [event.type for event in page.items]

    async def workers(self) -> list[str]:
        now = self.dispatcher.clock.now()
        servers = {doc.key for doc in await self.backend.documents.list("server", now=now)}
        rows = [
            json.loads(doc.body) for doc in await self.backend.documents.list("worker", now=now)
        ]
        return [row["id"] for row in rows if row["server"] in servers]

    async def staffed(self, worker: CeleryWorker, count: int) -> None:
        for _ in range(600):
            if len(await self.workers()) == count:
                return
            if worker.popen.poll() is not None:
                break
            await asyncio.sleep(0.05)
        raise AssertionError(f"no workers:\n{worker.log.read_text()[-3000:]}")

    async def wake(self, queue: str, times: int = 1) -> None:
        for _ in range(times):
            await asyncio.to_thread(wake, self._celery, queue)


@asynccontextmanager
async def ledger_client(redis: RedisServer) -> AsyncIterator[LedgerClient]:
    here = LedgerClient(redis)
    try:
        yield here
    finally:
        here._celery.close()
        await here.backend.close()


def lines(path: Path) -> list[str]:
    """The first word of each line that the jobs have written."""
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


def go(path: Path) -> None:
    """Lets `hold` of that path end."""
    Path(f"{path}.go").touch()


def pid_in(path: Path) -> int:
    return int(path.read_text().split()[1])
