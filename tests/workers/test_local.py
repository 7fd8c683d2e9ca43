"""Handlers in the process that has the ledger: what they tell, and what they get back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from onward import Context, TryAgain
from onward.core.task import State, Task
from onward.engine import Onward
from onward.service import Service
from onward.settings import Settings
from tests.support import a_task

WAIT_MS = 20_000


class Receipt(BaseModel):
    number: int


@asynccontextmanager
async def serving(*handlers: Callable[..., Any]) -> AsyncIterator[Onward]:
    services = {handler.__name__: Service(handler) for handler in handlers}
    settings = Settings(
        ledger="sqlite:///:memory:", drain_ms=0, retry_schedules={"Default": [0.01]}
    )
    async with Onward(settings, services=services) as onward:
        yield onward


async def done(onward: Onward, type_: str) -> Task:
    task = a_task(type=type_, queue=type_, created_at=onward.clock.now())
    await onward.dispatcher.submit_and_wait(task, timeout_ms=WAIT_MS)
    (found,) = await onward.backend.tasks.get([task.id])
    assert found is not None
    assert found.state is State.SUCCEEDED, found.error
    return found


@pytest.mark.contract("N-7")
async def test_progress_is_told_ten_times_a_second_and_the_last_word_always() -> None:
    async def steps(ctx: Context) -> None:
        for n in range(500):
            await ctx.progress(n / 499, f"step {n}")

    async with serving(steps) as onward:
        task = await done(onward, "steps")
        events = (await onward.backend.tasks.events(after="", limit=1_000, task=task.id)).items
    told = [
        msgspec.json.decode(event.data or "") for event in events if event.type == "task.progress"
    ]
    assert told[0] == {"progress": 0.0, "message": "step 0"}
    assert told[-1] == {"progress": 1.0, "message": "step 499"}
    assert len(told) < 50
    assert task.progress is not None
    assert msgspec.json.decode(task.progress) == told[-1]


@pytest.mark.contract("N-7", "S1-8")
async def test_what_was_done_once_comes_back_the_same_at_every_attempt() -> None:
    got: list[Any] = []

    async def pay(ctx: Context) -> None:
        got.append(await ctx.once("charge", lambda: Receipt(number=7)))
        if ctx.attempt == 1:
            raise TryAgain("once more")

    async with serving(pay) as onward:
        await done(onward, "pay")
    assert got == [{"number": 7}] * 2
