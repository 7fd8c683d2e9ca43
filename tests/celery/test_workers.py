"""Celery workers on a Redis ledger, with no server: beat is the clockwork and the net."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onward.core.task import State
from onward.services.catalog import WORKERS_KIND
from onward.workers.celery.wiring import wake_queue
from tests.celery.ledger_client import LEASE_MS, LedgerClient, environment, go, lines, pid_in
from tests.faults.redis_invariants import check_redis_invariants
from tests.support import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.contract("S3-13")]


async def test_work_without_a_wake_up_is_found(alone: LedgerClient, path: Path) -> None:
    for _ in range(3):
        id = await alone.submit("mark", {"path": str(path)})
        task = await alone.until(id, State.SUCCEEDED)
        assert task.result == json.dumps(str(path))
        assert task.worker in await alone.workers()
    assert lines(path) == ["ran"] * 3


async def test_a_wake_up_makes_it_faster_and_ten_of_them_run_it_once(
    alone: LedgerClient, path: Path
) -> None:
    ids = [await alone.submit("mark", {"path": str(path)}) for _ in range(3)]
    await alone.wake("mark", times=10)
    for id in ids:
        await alone.until(id, State.SUCCEEDED)
    await wait_until(lambda: not alone.redis.client.llen(f"onward:celery:{wake_queue('mark')}"))
    assert lines(path) == ["ran"] * 3
    for id in ids:
        assert (await alone.get(id)).fence == 1
    check_redis_invariants(alone.redis.client, ids)


async def test_many_tasks_are_spread_over_both_processes(alone: LedgerClient, path: Path) -> None:
    ids = [await alone.submit("hold", {"path": str(path)}) for _ in range(60)]
    await alone.wake("hold")
    await wait_until(lambda: lines(path) == ["began", "began"])
    go(path)
    done = [await alone.until(id, State.SUCCEEDED) for id in ids]
    assert len({task.result for task in done}) == 2
    check_redis_invariants(alone.redis.client, ids)


@pytest.mark.contract("S3-10")
async def test_beat_moves_a_retry_that_is_due(alone: LedgerClient, path: Path) -> None:
    id = await alone.submit("second_time", {"path": str(path)})
    task = await alone.until(id, State.SUCCEEDED)
    assert (task.result, task.retries) == ("2", 1)
    assert lines(path) == ["tried", "tried"]
    assert "task.retrying" in await alone.events(id)


async def test_a_task_of_a_celery_project_runs_as_it_is(alone: LedgerClient) -> None:
    good = await alone.submit("shop.add", {"x": 2, "y": 3})
    bad = await alone.submit("shop.add", {"x": "two"})
    await alone.wake("shop.add")
    assert (await alone.until(good, State.SUCCEEDED)).result == "5"
    assert "SchemaInvalid" in ((await alone.until(bad, State.DEAD)).error or "")


async def test_work_longer_than_its_lease_is_kept(alone: LedgerClient, path: Path) -> None:
    id = await alone.submit("hold", {"path": str(path)})
    await alone.wake("hold")
    await alone.until(id, State.RUNNING)
    held = (await alone.get(id)).lease_until or 0

    async def outlived() -> bool:
        return ((await alone.get(id)).lease_until or 0) >= held + LEASE_MS

    await wait_until(outlived)
    go(path)
    task = await alone.until(id, State.SUCCEEDED)
    assert (task.fence, lines(path)) == (1, ["began", "ended"])


async def test_a_canceled_task_is_let_go(alone: LedgerClient, path: Path) -> None:
    id = await alone.submit("countdown", {"seconds": 600})
    await alone.wake("countdown")
    await alone.until(id, State.RUNNING)
    await alone.dispatcher.cancel(id)
    await alone.until(id, State.CANCELED)


@pytest.mark.contract("N-3")
async def test_a_process_killed_in_mid_task_is_replaced_and_another_ends_it_once(
    alone: LedgerClient, path: Path
) -> None:
    id = await alone.submit("hold", {"path": str(path)})
    await alone.wake("hold")
    await wait_until(lambda: lines(path) == ["began"])
    killed = pid_in(path)
    os.kill(killed, signal.SIGKILL)
    await wait_until(lambda: len(lines(path)) == 2)
    go(path)
    task = await alone.until(id, State.SUCCEEDED)
    assert task.result is not None
    assert int(task.result) != killed
    assert lines(path) == ["began", "began", "ended"]
    assert (task.fence, task.lost, task.failures) == (2, 0, 0)
    assert (await alone.events(id)).count("task.reclaimed") == 1

    async def complete() -> bool:
        return len(await alone.workers()) == 2

    await wait_until(complete)
    check_redis_invariants(alone.redis.client, [id])


async def test_inspect_finds_the_worker(alone: LedgerClient) -> None:
    celery = (sys.executable, "-m", "celery", "-A", "onward.workers.celery")
    command = (*celery, "inspect", "ping", "--timeout", "10")
    said = await asyncio.to_thread(
        subprocess.run,
        command,
        env={**os.environ, **environment(alone.redis)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert said.returncode == 0, said.stderr
    assert "pong" in said.stdout


async def test_services_of_celery_workers_are_declared_with_their_schemas(
    alone: LedgerClient,
) -> None:
    now = alone.dispatcher.clock.now()
    found = {doc.key: doc.body for doc in await alone.backend.documents.list(WORKERS_KIND, now=now)}
    assert {"echo", "summarize", "mark", "shop.add"} <= found.keys()
    assert '"x"' in found["shop.add"]
