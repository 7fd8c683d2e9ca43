"""Handlers in the process that has the ledger: what they tell, and what they get back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from onward import Context, TryAgain
from onward.client.service import Service
from onward.core.errors import LedgerUnavailable
from onward.core.outcome import Failed, Succeeded
from onward.core.task import Claimed, State, Task, as_claimed, fault_of
from onward.engine import Onward
from onward.pace import Pace
from onward.settings import Settings
from onward.workers.local import executor as local
from onward.workers.local.executor import LocalExecutor
from tests.support import a_task, wait_until

WAIT_MS = 60_000


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


async def submit(onward: Onward, type_: str) -> Task:
    task = a_task(type=type_, queue=type_, created_at=onward.clock.now())
    await onward.dispatcher.submit(task)
    return task


async def over(onward: Onward, task: Task) -> Task:
    await onward.dispatcher.wait(task.id, timeout_ms=WAIT_MS)
    (found,) = await onward.backend.tasks.get([task.id])
    assert found is not None
    return found


async def done(onward: Onward, type_: str) -> Task:
    found = await over(onward, await submit(onward, type_))
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


async def test_a_lost_attempt_that_is_told_to_stop_does_not_take_the_next_one_along() -> None:
    begun, go = [], asyncio.Event()

    async def nap(ctx: Context) -> str:
        begun.append(ctx)
        await go.wait()
        return "slept"

    async with serving(nap) as onward:
        executor = LocalExecutor(onward.dispatcher, {"nap": Service(nap)}, groups={}, threads=1)
        first = a_claim(fence=1)
        second = a_claim(fence=2)
        running = [asyncio.ensure_future(executor.execute(task)) for task in (first, second)]
        await wait_until(lambda: len(begun) == 2)
        executor.cancel(first)
        assert isinstance(await running[0], Failed)
        assert not running[1].done()
        go.set()
        assert await running[1] == Succeeded('"slept"')
        executor.close()


def a_claim(fence: int) -> Claimed:
    task = a_task(id="t", type="nap", queue="nap", fence=fence, rev=fence, attempt=fence)
    return as_claimed(msgspec.structs.replace(task, worker="w"))


async def test_what_a_handler_does_to_itself_is_its_own_failure_alone() -> None:
    async def leaves() -> None:
        raise SystemExit(3)

    async def waits_in_vain() -> None:
        never = asyncio.get_running_loop().create_future()
        never.cancel()
        await never

    async with serving(leaves, waits_in_vain) as onward:
        for name, kind in (("leaves", "SystemExit"), ("waits_in_vain", "CancelledError")):
            found = await over(onward, await submit(onward, name))
            fault = fault_of(found.error)
            assert fault is not None
            assert (found.state, fault.kind) == (State.DEAD, kind)


async def test_a_plain_function_is_asked_to_stop_and_keeps_its_place_until_it_does() -> None:
    begun, looked = threading.Event(), threading.Event()

    def long(ctx: Context) -> None:
        begun.set()
        while not ctx.cancelled:
            looked.wait(0.01)
        looked.set()

    async with serving(long) as onward:
        task = await submit(onward, "long")
        await asyncio.to_thread(begun.wait, 10)
        await onward.dispatcher.cancel(task.id)
        assert (await over(onward, task)).state is State.CANCELED
        assert looked.is_set(), "it was not said to be over before it was"


async def test_a_handler_that_will_not_stop_does_not_hold_up_the_end() -> None:
    begun, stop = asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        begun.set()
        while not stop.is_set():
            with suppress(asyncio.CancelledError):
                await stop.wait()

    async with serving(stubborn) as onward:
        await submit(onward, "stubborn")
        await begun.wait()
        async with asyncio.timeout(30):
            await onward.drain()
        stop.set()


async def test_an_effect_whose_note_was_answered_too_late_is_done_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done_: list[int] = []
    monkeypatch.setattr(local, "AGAIN_S", 0.01)

    async def pay(ctx: Context) -> None:
        await ctx.once("charge", lambda: done_.append(ctx.attempt))

    async with serving(pay) as onward:
        begin = onward.backend.effects.begin

        async def answer_lost(*given: Any, **more: Any) -> Any:
            await begin(*given, **more)
            onward.backend.effects.begin = begin  # type: ignore[method-assign]
            raise LedgerUnavailable("no answer in time")

        onward.backend.effects.begin = answer_lost  # type: ignore[method-assign]
        assert (await done(onward, "pay")).attempt == 1
    assert done_ == [1]


async def test_an_effect_that_happened_is_noted_once_the_ledger_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done_: list[int] = []
    monkeypatch.setattr(local, "AGAIN_S", 0.01)

    async def pay(ctx: Context) -> None:
        await ctx.once("charge", lambda: done_.append(ctx.attempt))
        if ctx.attempt == 1:
            raise TryAgain("after the charge", after_ms=1)

    async with serving(pay) as onward:
        finish, refused = onward.backend.effects.finish, 0

        async def away(*given: Any, **more: Any) -> Any:
            nonlocal refused
            refused += 1
            if refused < 4:
                raise LedgerUnavailable("the ledger takes no writes now")
            return await finish(*given, **more)

        onward.backend.effects.finish = away  # type: ignore[method-assign]
        await done(onward, "pay")
    assert done_ == [1]


async def test_the_last_word_comes_after_the_one_that_is_under_way() -> None:
    said: list[int] = []
    began, go = asyncio.Event(), asyncio.Event()

    async def send(n: int) -> None:
        if n == 2:
            began.set()
            await go.wait()
        said.append(n)

    pace = Pace(send, every_s=0.01)
    await pace.tell(1)
    await pace.tell(2)
    await wait_until(began.is_set)  # it goes out by itself, and is slow
    flushing = asyncio.ensure_future(pace.flush())
    await asyncio.sleep(0)
    assert not flushing.done()
    go.set()
    await flushing
    assert said == [1, 2]
