"""Plain functions of the built-in worker: a slot is a thread, and nothing waits behind one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from onward.client.service import Service
from onward.core.clock import ManualClock
from onward.core.task import State, Task
from onward.engine import Onward
from onward.settings import Settings
from onward.workers import runner
from tests.support import a_task, wait_until

PATIENCE_S = 30


@asynccontextmanager
async def serving(handler: Callable[..., Any], slots: int) -> AsyncIterator[Onward]:
    settings = Settings(ledger="sqlite:///:memory:", drain_ms=0, builtin_slots=slots)
    services = {"work": Service(handler, name="work")}
    async with Onward(settings, clock=ManualClock(), services=services) as onward:
        yield onward


async def submit(onward: Onward, **fields: Any) -> Task:
    now = onward.clock.now()
    task = a_task(type="work", queue="work", created_at=now, **fields)
    await onward.dispatcher.submit(task)
    return task


async def state(onward: Onward, task: Task) -> State:
    (found,) = await onward.backend.tasks.get([task.id])
    assert found is not None
    return found.state


async def test_as_many_plain_functions_run_as_there_are_slots() -> None:
    together = threading.Barrier(12)

    def work() -> str:
        together.wait(PATIENCE_S)
        return "done"

    async with serving(work, 12) as onward:
        tasks = [await submit(onward) for _ in range(12)]
        for task in tasks:
            ending = await onward.dispatcher.wait(task.id, timeout_ms=PATIENCE_S * 1000)
            assert ending is not None
            assert ending.state is State.SUCCEEDED, ending.error


async def test_a_slot_whose_function_still_runs_is_not_given_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "LET_GO_S", 0.01)
    go, begun = threading.Event(), threading.Semaphore(0)

    def work() -> str:
        begun.release()
        go.wait(PATIENCE_S)
        return "done"

    async with serving(work, 1) as onward:
        first = await submit(onward, attempt_ms=1_000, profile="sync")
        await asyncio.to_thread(begun.acquire, timeout=PATIENCE_S)
        second = await submit(onward)
        onward.clock.advance(1_001)  # type: ignore[attr-defined]
        await wait_until(lambda: onward.dispatcher.slots.busy() == 0)  # its time is over: revoked
        assert await state(onward, first) is State.FAILED
        done = asyncio.Event()
        asyncio.get_running_loop().call_later(0.2, done.set)
        await done.wait()  # far longer than a slot is kept for an answer that is late
        assert await state(onward, second) is State.QUEUED, "its clock does not run in a queue here"
        go.set()
        ending = await onward.dispatcher.wait(second.id, timeout_ms=PATIENCE_S * 1000)
        assert ending is not None
        assert ending.state is State.SUCCEEDED
