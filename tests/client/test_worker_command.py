"""`onward worker` as a process: several of them, started anew, and what they log."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from onward import Client
from tests.support import wait_until

Child = asyncio.subprocess.Process
pytestmark = pytest.mark.slow

JOBS = """
import logging, os
from onward import Worker
worker = Worker()

@worker.service
def answer() -> int:
    logging.getLogger("jobs").info("asked")
    return {answer}
"""


@asynccontextmanager
async def command(
    folder: Path, url: str, *options: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "onward.cli", "worker", "jobs.py:worker", *options),
        cwd=folder,
        env={**os.environ, "ONWARD_URL": url},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "jobs.py").write_text(JOBS.format(answer=1))
    return tmp_path


async def test_several_processes_serve_and_end_together(
    folder: Path, url: str, client: Client
) -> None:
    async def both() -> bool:
        return len(await client.workers()) == 2

    async with command(folder, url, "--processes", "2") as running:
        await wait_until(both)
        assert await client.run("answer", {}) == 1
        running.send_signal(signal.SIGTERM)
        assert await running.wait() == 0
    assert await client.workers() == ()


async def test_a_parent_that_is_killed_leaves_no_workers(
    folder: Path, url: str, client: Client
) -> None:
    async def there() -> bool:
        return len(await client.workers()) == 2

    async def gone() -> bool:
        return not await client.workers()

    async with command(folder, url, "--processes", "2") as running:
        await wait_until(there)
        running.kill()
        await wait_until(gone)


async def test_a_change_of_a_file_starts_it_anew(folder: Path, url: str, client: Client) -> None:
    async def new_answer() -> bool:
        return bool(await client.run("answer", {}) == 22)

    async with command(folder, url, "--reload"):
        assert await client.run("answer", {}) == 1
        (folder / "jobs.py").write_text(JOBS.format(answer=22))
        await wait_until(new_answer)


@pytest.mark.contract("Y-5")
async def test_its_log_can_be_json_with_the_task(folder: Path, url: str, client: Client) -> None:
    async with command(folder, url, "--log-json") as running:
        task = await client.submit("answer", {}, wait_ms=30_000)
        running.terminate()
        _, said = await running.communicate()
    lines = [json.loads(line) for line in said.splitlines()]
    (asked,) = [line for line in lines if line["logger"] == "jobs"]
    assert (asked["message"], asked["task_id"], asked["attempt"]) == ("asked", task.id, 1)


@pytest.mark.contract("Y-5")
async def test_the_command_shows_and_follows_what_a_task_logged(
    folder: Path, url: str, client: Client
) -> None:
    async with command(folder, url):
        task = await client.submit("answer", {}, wait_ms=30_000)
        for options in ((), ("--follow",), ("--json",)):
            shown = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "onward.cli", "task", "logs", task.id, *options),
                env={**os.environ, "ONWARD_URL": url},
                stdout=asyncio.subprocess.PIPE,
            )
            said, _ = await shown.communicate()
            assert shown.returncode == 0
            assert b"jobs" in said
            assert b"asked" in said
