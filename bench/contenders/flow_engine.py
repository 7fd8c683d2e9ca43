"""Flows in one process: the engine, its runs, and the built-in worker that does the steps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from statistics import median
from typing import Any

import uvloop

from bench.contenders.payload import ledger
from onward.client.service import Service
from onward.core.task import TaskId, new_id
from onward.engine import Onward
from onward.flow.runs import Start, new_run
from onward.server import collect_seldom
from onward.settings import Settings

TIMEOUT_MS = 300_000
CHUNK = 256


async def noop(input: Any, params: Any) -> None:
    pass


def linear(path: str, synchronous: str, runs: int, steps: int) -> dict[str, Any]:
    """So many runs at once, each of so many steps one after the other."""

    async def measure() -> dict[str, Any]:
        async with _engine(path, synchronous) as onward:
            await onward.flow_catalog.publish(
                (await onward.flow_catalog.create("line")).id, _line(steps)
            )
            began, cpu = time.perf_counter(), time.process_time()
            await _drain(onward, await _start(onward, "line", runs))
            done = runs * steps
            spent = time.process_time() - cpu
            return {"rate": done / (time.perf_counter() - began), "cpu_us": spent / done * 1e6}

    return uvloop.run(measure())


def foreach(path: str, synchronous: str, items: int) -> dict[str, Any]:
    """One run over a list of so many items."""
    nodes = {
        "all": {
            "kind": "foreach",
            "service": "noop",
            "prep": {"input_key": "$shared.items"},
            "parallel_mode": "concurrent",
            "max_parallel": 256,
            "post": {"output_key": "out"},
        }
    }

    async def measure() -> dict[str, Any]:
        async with _engine(path, synchronous) as onward:
            flow = (await onward.flow_catalog.create("each")).id
            await onward.flow_catalog.publish(flow, {"start": "all", "nodes": nodes, "edges": []})
            began = time.perf_counter()
            await _drain(
                onward, await _start(onward, "each", 1, shared={"items": list(range(items))})
            )
            return {"rate": items / (time.perf_counter() - began)}

    return uvloop.run(measure())


def among(path: str, open_runs: list[int], steps: int) -> dict[str, Any]:
    """Processor time of a step, with ever more runs open that wait for an event."""
    waits = {"wait": {"kind": "wait_event", "params": {"signal_key": "$shared.go"}}}

    async def measure() -> dict[str, Any]:
        async with _engine(path, "normal") as onward:
            for name, definition in (
                ("line", _line(steps)),
                ("open", {"start": "wait", "nodes": waits, "edges": []}),
            ):
                await onward.flow_catalog.publish(
                    (await onward.flow_catalog.create(name)).id, definition
                )
            opened, cost = 0, {}
            for goal in open_runs:
                await _start(onward, "open", goal - opened)
                opened = goal
                while onward.dispatcher.tally["task.parked"] < opened:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                blocks = []
                for _ in range(9):
                    cpu = time.process_time()
                    await _drain(onward, await _start(onward, "line", 50))
                    blocks.append((time.process_time() - cpu) / (50 * steps) * 1e6)
                onward.dispatcher.tally["task.parked"] = opened
                cost[str(goal)] = median(blocks)
            return {"cpu_us": cost}

    return uvloop.run(measure())


def _line(steps: int) -> dict[str, Any]:
    names = [f"s{at}" for at in range(steps)]
    return {
        "start": names[0],
        "nodes": {
            name: {"kind": "executor", "service": "noop", "post": {"output_key": name}}
            for name in names
        },
        "edges": [{"from": one, "action": "default", "to": two} for one, two in pairwise(names)],
    }


async def _start(
    onward: Onward, flow: str, runs: int, shared: dict[str, Any] | None = None
) -> list[TaskId]:
    published = await onward.flow_catalog.pick(flow)
    start = Start(shared=shared or {})
    ids = []
    for at in range(0, runs, CHUNK):
        now = onward.clock.now()
        tasks = [new_run(new_id(), published, now, start) for _ in range(min(CHUNK, runs - at))]
        await onward.dispatcher.submit_all(tasks)
        ids += [task.id for task in tasks]
    return ids


async def _drain(onward: Onward, ids: list[TaskId]) -> None:
    for id in ids:
        ending = await onward.dispatcher.wait(id, timeout_ms=TIMEOUT_MS)
        assert ending is not None
        assert ending.state == "succeeded", ending


@asynccontextmanager
async def _engine(path: str, synchronous: str) -> AsyncIterator[Onward]:
    collect_seldom()  # as the server does
    settings = Settings(ledger=ledger(path), synchronous=synchronous)
    async with Onward(settings, services={"noop": Service(noop)}) as onward:
        yield onward
