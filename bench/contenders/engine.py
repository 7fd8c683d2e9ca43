"""Onward in the caller's own process: ledger, dispatcher and the built-in worker, no door."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from statistics import median
from typing import Any

import apsw
import uvloop

from bench.contenders.payload import PAYLOAD, ledger
from bench.contenders.raw_sqlite import ended
from bench.report import percentile
from onward.client.service import Service
from onward.core.dispatch import Dispatcher
from onward.core.task import Task, new_id
from onward.engine import Onward
from onward.server import collect_seldom
from onward.settings import Settings

TIMEOUT_MS = 20_000
FEW_SLOTS = 64  # as it comes: fewer than the shortest backlog, so that there is one
CHUNK = 256
BLOCKS = 21
AHEAD = 8 * CHUNK  # how far a bulk submitter runs ahead of the worker


async def noop(payload: Any) -> None:
    pass


def submitters(
    path: str, synchronous: str, seconds: float, callers: int, slots: int
) -> dict[str, Any]:
    """Many callers, each waiting for the result of one task after the other."""

    async def measure() -> dict[str, Any]:
        async with _engine(path, synchronous, slots=slots) as onward:
            dispatcher = onward.dispatcher
            until = time.perf_counter() + seconds * 1.2

            async def caller() -> None:
                while time.perf_counter() < until:
                    _, ending = await dispatcher.submit_and_wait(new_task(), timeout_ms=TIMEOUT_MS)
                    assert ending is not None
                    assert ending.state == "succeeded"

            calling = [asyncio.create_task(caller()) for _ in range(callers)]
            rate = await _rate(dispatcher, seconds)
            await asyncio.gather(*calling)
            return {**rate, "tasks": dispatcher.tally["task.succeeded"]}

    return _checked(path, measure())


def bulk(path: str, synchronous: str, seconds: float, slots: int) -> dict[str, Any]:
    """One caller who hands in lists and lets the worker fall behind only so far."""

    async def measure() -> dict[str, Any]:
        async with _engine(path, synchronous, slots=slots) as onward:
            dispatcher = onward.dispatcher
            until = time.perf_counter() + seconds * 1.2
            submitted = 0

            def behind() -> int:
                return submitted - dispatcher.tally["task.succeeded"]

            async def caller() -> None:
                nonlocal submitted
                while time.perf_counter() < until:
                    if behind() >= AHEAD:
                        await asyncio.sleep(0)
                        continue
                    await dispatcher.submit_all([new_task() for _ in range(CHUNK)])
                    submitted += CHUNK

            calling = asyncio.create_task(caller())
            rate = await _rate(dispatcher, seconds)
            await calling
            async with asyncio.timeout(TIMEOUT_MS / 1000):
                while behind():  # noqa: ASYNC110 the tally rings no bell
                    await asyncio.sleep(0.001)
            return {**rate, "tasks": dispatcher.tally["task.succeeded"]}

    return _checked(path, measure())


def idle(path: str, synchronous: str, samples: int, pause_ms: float) -> dict[str, Any]:
    """One task at a time, with nothing else going on."""

    async def measure() -> dict[str, Any]:
        took: list[float] = []
        async with _engine(path, synchronous) as onward:
            for _ in range(samples + 20):
                await asyncio.sleep(pause_ms / 1000)
                task = new_task()
                began = time.perf_counter()
                _, ending = await onward.dispatcher.submit_and_wait(task, timeout_ms=TIMEOUT_MS)
                took.append((time.perf_counter() - began) * 1000)
                assert ending is not None
        timed = took[20:]  # the first few warm caches and prepared statements
        return {
            "p50": percentile(timed, 0.5),
            "p99": percentile(timed, 0.99),
            "tasks": len(took),
        }

    return _checked(path, measure())


def preload(path: str, synchronous: str, backlog: int) -> dict[str, Any]:
    """A queue with so many tasks in it, and nobody to do them."""

    async def measure() -> dict[str, Any]:
        began = time.perf_counter()
        await _fill(path, synchronous, backlog)
        return {"rate": backlog / (time.perf_counter() - began), "tasks": backlog}

    return uvloop.run(measure())


def steady(path: str, synchronous: str, seconds: float, backlog: int) -> dict[str, Any]:
    """Work at the head of a queue while as much is added at its end."""

    async def measure() -> dict[str, Any]:
        await _fill(path, synchronous, backlog)
        async with _engine(path, synchronous) as onward:
            dispatcher = onward.dispatcher

            async def caller() -> None:
                added = 0
                while True:
                    missing = dispatcher.tally["task.succeeded"] - added
                    if missing < CHUNK // 4:
                        await asyncio.sleep(0)
                        continue
                    added += (count := min(missing, CHUNK))
                    await dispatcher.submit_all([new_task() for _ in range(count)])

            calling = asyncio.create_task(caller())
            rate = await _rate(dispatcher, seconds)
            left = await _queued(dispatcher)
            calling.cancel()
            return {"cost_us": 1e6 / rate["rate"], "cpu_us": rate["cpu_us"], "left": left}

    said = uvloop.run(measure())
    assert 0.5 * backlog <= said["left"] <= 1.5 * backlog, said
    return said


def churn(path: str, tasks: int) -> dict[str, Any]:
    """So many tasks come and are done; what they leave behind stays."""

    async def measure() -> dict[str, Any]:
        async with _engine(path, "normal", slots=CHUNK) as onward:
            dispatcher = onward.dispatcher
            began = time.perf_counter()
            for submitted in range(0, tasks, CHUNK):
                while submitted - dispatcher.tally["task.succeeded"] >= AHEAD:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                await dispatcher.submit_all([new_task() for _ in range(CHUNK)])
            return {"rate": tasks / (time.perf_counter() - began)}

    return uvloop.run(measure())


async def _fill(path: str, synchronous: str, backlog: int) -> None:
    async with _engine(path, synchronous, serving=False) as onward:
        while (missing := backlog - await _queued(onward.dispatcher)) > 0:
            await onward.dispatcher.submit_all([new_task() for _ in range(min(missing, CHUNK))])


async def _queued(dispatcher: Dispatcher) -> int:
    counts = await dispatcher.backend.tasks.counts()
    return sum(
        count
        for (queue, _, state), count in counts.items()
        if queue == "noop" and state == "queued"
    )


def looks(path: str, synchronous: str, times: int) -> dict[str, Any]:
    """What it costs to ask where a task stands, and how many there are."""

    async def measure() -> dict[str, Any]:
        async with _engine(path, synchronous, serving=False) as onward:
            tasks = onward.dispatcher.backend.tasks
            near, far = _standing_at(path, 100), _standing_at(path, -1)

            async def cost_us(ask: Any) -> float:
                # Blocks of a few milliseconds, and their median: one preemption spoils one block.
                blocks: list[float] = []
                for _ in range(BLOCKS):
                    began = time.perf_counter()
                    for _ in range(times):
                        await ask()
                    blocks.append((time.perf_counter() - began) / times * 1e6)
                return median(blocks)

            await cost_us(lambda: tasks.position(near))
            return {
                "position_near": await cost_us(lambda: tasks.position(near)),
                "position_last": await cost_us(lambda: tasks.position(far)),
                "counts": await cost_us(tasks.counts),
            }

    return uvloop.run(measure())


def _standing_at(path: str, place: int) -> str:
    order = "place" if place >= 0 else "place DESC"
    with apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY) as connection:
        (id_,) = connection.execute(
            "SELECT id FROM task WHERE state = 'queued' AND queue = 'noop' AND priority = 1"  # noqa: S608
            f" AND lane = 'primary' ORDER BY {order} LIMIT 1 OFFSET ?",
            (max(place - 1, 0),),
        ).fetchone()
    return str(id_)


async def _rate(dispatcher: Dispatcher, seconds: float) -> dict[str, float]:
    """Final events a second, once it has warmed up. The tally counts what is committed."""
    await asyncio.sleep(seconds / 5)
    before, began, cpu = (
        dispatcher.tally["task.succeeded"],
        time.perf_counter(),
        time.process_time(),
    )
    await asyncio.sleep(seconds)
    done = dispatcher.tally["task.succeeded"] - before
    return {
        "rate": done / (time.perf_counter() - began),
        "cpu_us": (time.process_time() - cpu) / max(done, 1) * 1e6,
    }


def _checked(path: str, measure: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    said = uvloop.run(measure)
    assert ended(path) == said["tasks"], (ended(path), said)
    return said


@asynccontextmanager
async def _engine(
    path: str, synchronous: str, *, slots: int = FEW_SLOTS, serving: bool = True
) -> AsyncIterator[Onward]:
    collect_seldom()  # as the server does
    settings = Settings(ledger=ledger(path), synchronous=synchronous, builtin_slots=slots)
    services = {"noop": Service(noop)} if serving else None
    async with Onward(settings, services=services) as onward:
        yield onward


def new_task() -> Task:
    return Task(
        id=new_id(),
        type="noop",
        queue="noop",
        profile="console",
        payload=PAYLOAD,
        created_at=time.time_ns() // 1_000_000,
    )
