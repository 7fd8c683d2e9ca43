"""What a worker's functions have around them: a lifespan, a state, their own retries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from onward import CallFailed, Client, Context, Retry, TaskFailed, TryAgain, Worker
from onward.client.failures import fault_from
from tests.client.conftest import Start


class Pool:
    open = True


@pytest.mark.contract("Y-2")
async def test_what_the_lifespan_yields_is_the_state_of_every_context(
    url: str, client: Client
) -> None:
    seen: list[object] = []

    @asynccontextmanager
    async def lifespan(worker: Worker) -> AsyncIterator[Pool]:
        pool = Pool()
        seen.append(worker)
        yield pool
        pool.open = False
        seen.append("left")

    worker = Worker(url, lifespan=lifespan)
    began, gate = asyncio.Event(), asyncio.Event()

    @worker.service
    async def awaited(ctx: Context[Pool]) -> bool:
        began.set()
        await gate.wait()
        return ctx.state.open

    @worker.service
    def plain(ctx: Context[Pool]) -> bool:
        return ctx.state.open

    serving = asyncio.create_task(worker.serve())
    assert await client.run(plain)
    running = await client.submit(awaited)
    await began.wait()
    worker.drain()
    gate.set()
    await serving

    assert (await client.get(running.id)).result is True, "it is left after the drain"
    assert seen == [worker, "left"]


@pytest.mark.contract("Y-2")
async def test_a_lifespan_that_fails_ends_the_worker(url: str) -> None:
    @asynccontextmanager
    async def lifespan(_: Worker) -> AsyncIterator[None]:
        if url:
            raise OSError("no database")
        yield

    worker = Worker(url, lifespan=lifespan)
    worker.service(name="any")(lambda: None)

    with pytest.raises(OSError, match="no database"):
        await worker.serve()


class GatewayBusy(Exception):
    pass


class CardDeclined(GatewayBusy):
    pass


@pytest.mark.contract("Y-2")
async def test_a_service_retries_by_its_own_rule(url: str, client: Client, start: Start) -> None:
    worker = Worker(url)
    rule = Retry(max=2, first=timedelta(milliseconds=1), on=(GatewayBusy,), never=(CardDeclined,))

    @worker.service(retry=rule)
    async def charge(amount: int) -> int:
        raise (ZeroDivisionError, CardDeclined, GatewayBusy)[amount]

    await start(worker)
    attempts = []
    for amount in range(3):
        with pytest.raises(TaskFailed) as caught:
            await client.run(charge, amount=amount)
        attempts.append(caught.value.task.attempt)

    assert attempts == [1, 1, 3]


@pytest.mark.contract("Y-2")
def test_delays_grow_up_to_their_limit() -> None:
    rule = Retry(first=timedelta(seconds=1), factor=3, limit=timedelta(seconds=10))
    steady = Retry(backoff="constant", first=timedelta(seconds=2))
    linear = Retry(backoff="linear", first=timedelta(seconds=2), limit=timedelta(seconds=5))

    assert [rule.delay_ms(n) for n in (1, 2, 3, 4, 5_000)] == [1000, 3000, 9000, 10_000, 10_000]
    assert [steady.delay_ms(n) for n in (1, 9)] == [2000, 2000]
    assert [linear.delay_ms(n) for n in (1, 2, 3)] == [2000, 4000, 5000]


@pytest.mark.contract("Y-2")
def test_what_a_handler_decides_itself_is_left_to_it() -> None:
    rule = Retry(first=timedelta(seconds=7), on=(OSError,))

    asked = fault_from(TryAgain("busy", after=timedelta(seconds=3)), rule)
    known = fault_from(CallFailed("quota", status=429, after=timedelta(minutes=1)), rule)

    assert (asked.retryable, asked.retry_after_ms) == (True, 3_000)
    assert (known.kind, known.status, known.retry_after_ms) == ("CallFailed", 429, 60_000)


@pytest.mark.parametrize(
    "wrong", [{"max": -1}, {"backoff": "cubic"}, {"first": 1}, {"limit": 10.0}]
)
def test_a_rule_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        Retry(**wrong)  # type: ignore[arg-type]
