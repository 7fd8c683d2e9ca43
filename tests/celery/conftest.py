"""One Redis for these tests, and one worker with beat for those that need no special one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.celery.ledger_client import CeleryWorker, LedgerClient, ledger_client
from tests.servers import RedisServer


@pytest.fixture(scope="package")
def redis() -> Iterator[RedisServer]:
    server = RedisServer("valkey")
    yield server
    server.close()


@pytest.fixture(scope="module")
def prefork(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CeleryWorker]:
    """As the contract has it: two processes, and beat among them; no server anywhere."""
    redis.client.flushall()
    log = tmp_path_factory.mktemp("celery") / "worker.log"
    worker = CeleryWorker(redis, log, "-B", "-c", "2")
    yield worker
    worker.kill()


@pytest.fixture
async def alone(redis: RedisServer, prefork: CeleryWorker) -> AsyncIterator[LedgerClient]:
    async with ledger_client(redis) as here:
        await here.staffed(prefork, 2)
        yield here


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lines"
