"""A long time without a sweep: every server was down, or stood still. That costs no worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onward.core.clock import SharedClock, wall_ahead_ms
from tests.streams.stream_app import GROUP, TASKS, StreamApp, open_stream_app
from tests.support import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.contract("S1-6", "S1-13")]

HOUR_MS = 3_600_000  # longer than every lease
LEDGERS = pytest.mark.parametrize("ledger", ["sqlite", "redis"])


class LaterClock(SharedClock):
    """The system's, and later by what the test adds."""

    def __init__(self, later_ms: int = 0) -> None:
        super().__init__(lambda: wall_ahead_ms() + self.later_ms)
        self.later_ms = later_ms

    def step(self, ms: int) -> None:
        self.later_ms += ms
        self.steps += 1
        self.adopt()


def file_of(ledger: str, folder: Path) -> str:
    return ledger if ledger == "redis" else f"sqlite:///{folder}/ledger.db"


async def running(streams: StreamApp) -> tuple[str, str, dict[str, str]]:
    task = await streams.submit(queue="streams")
    entry, fields = await streams.take("alive")
    await streams.phase(task, "running")
    return task, entry, fields


async def reclaims(streams: StreamApp, task: str) -> list[Any]:
    return await streams.events(task, "task.reclaimed")


@LEDGERS
async def test_a_worker_silent_while_every_server_was_down_is_reclaimed_from_by_the_stream(
    ledger: str, tmp_path: Path
) -> None:
    async with open_stream_app(file_of(ledger, tmp_path)) as streams:
        task, entry, _ = await running(streams)
        await streams.shut()
        await streams.silent("alive", entry)
        await streams.open(clock=LaterClock(HOUR_MS))
        (reclaimed,) = await wait_until(lambda: reclaims(streams, task))
        assert reclaimed == {"from": "alive", "to": "onward", "message_id": entry}
        entry, fields = await streams.take("heir")
        await streams.succeed(entry, fields)
        assert (await streams.over(task))["state"] == "succeeded"
        await streams.empty()


@LEDGERS
@pytest.mark.parametrize("answered", ["meanwhile", "afterwards"])
async def test_a_worker_alive_while_every_server_was_down_keeps_its_task(
    ledger: str, answered: str, tmp_path: Path
) -> None:
    async with open_stream_app(file_of(ledger, tmp_path)) as streams:
        task, entry, fields = await running(streams)
        await streams.shut()
        if answered == "meanwhile":
            await streams.succeed(entry, fields, "in time")
        else:  # it sends a heartbeat
            await streams.redis.xclaim(TASKS, GROUP, "alive", 0, [entry], justid=True)
        await streams.open(clock=LaterClock(HOUR_MS))
        if answered == "afterwards":
            await streams.succeed(entry, fields, "in time")
        assert (await streams.over(task))["result"] == "in time"
        assert not {"task.reclaimed", "task.late_result"} & set(await streams.types(task))
        await streams.empty()


async def test_time_that_steps_past_every_lease_takes_no_task_from_a_worker_on_the_stream() -> None:
    clock = LaterClock()
    async with open_stream_app(on_duty=False) as streams:
        await streams.shut()
        await streams.open(clock=clock)
        task, entry, fields = await running(streams)
        clock.step(HOUR_MS)
        await streams.app.onward.alarm.sweep()
        assert (await streams.read(task))["phase"] == "running"
        await streams.succeed(entry, fields, "in time")
        assert (await streams.over(task))["result"] == "in time"
        assert "task.reclaimed" not in await streams.types(task)
