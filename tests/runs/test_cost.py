"""What a foreach writes: little, and so much an item, however long its list is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from onward.client.service import Service
from onward.core.task import Task, new_id
from onward.engine import Onward
from onward.flow.runs import Start, new_run
from onward.settings import Settings
from tests.servers import fresh_url, shared

ITEM = "x" * 200
EACH = {
    "kind": "foreach",
    "service": "echo",
    "prep": {"input_key": "items"},
    "post": {"output_key": "out"},
}
CONCURRENT = {"parallel_mode": "concurrent"}


async def echo(input: Any, params: Any) -> Any:
    return input


@asynccontextmanager
async def engine(ledger: str) -> AsyncIterator[Onward]:
    settings = Settings(ledger=ledger, synchronous="normal", archive="")
    async with Onward(settings, services={"echo": Service(echo)}) as onward:
        yield onward


async def foreach(onward: Onward, items: int, node: dict[str, Any]) -> Task:
    flow = await onward.flow_catalog.create(new_id())
    definition = {"start": "each", "nodes": {"each": {**EACH, **node}}, "edges": []}
    await onward.flow_catalog.publish(flow.id, definition)
    published = await onward.flow_catalog.pick(flow.id)
    start = Start(shared={"items": [ITEM] * items})
    run = new_run(new_id(), published, onward.clock.now(), start)
    await onward.dispatcher.submit(run)
    ending = await onward.dispatcher.wait(run.id, timeout_ms=240_000)
    assert ending is not None
    assert ending.state == "succeeded"
    (found,) = await onward.backend.tasks.get([run.id])
    assert found is not None
    return found


def written() -> int:
    """Bytes that this process has written, to files of any kind."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])


def received() -> int:
    return int(shared("valkey").client.info("stats")["total_net_input_bytes"])


async def cost(
    onward: Onward, items: int, node: dict[str, Any], spent: Callable[[], int] = written
) -> tuple[int, Task]:
    before = spent()
    run = await foreach(onward, items, node)
    return spent() - before, run


@pytest.mark.slow
async def test_a_thousand_items_one_by_one_write_less_than_40_mb(tmp_path: Path) -> None:
    async with engine(f"sqlite:///{tmp_path}/onward.db") as onward:
        spent, run = await cost(onward, 1_000, {})
    assert spent < 40_000_000
    assert run.rev < 1_200, "an item is one move of its run"


async def test_a_thousand_items_at_once_write_less_than_20_mb(tmp_path: Path) -> None:
    async with engine(f"sqlite:///{tmp_path}/onward.db") as onward:
        spent, run = await cost(onward, 1_000, CONCURRENT)
    assert spent < 20_000_000
    assert run.rev < 1_200


@pytest.mark.slow
async def test_what_an_item_costs_does_not_grow_with_the_list(tmp_path: Path) -> None:
    async with engine(f"sqlite:///{tmp_path}/onward.db") as onward:
        few, _ = await cost(onward, 500, {"max_parallel": 4, **CONCURRENT})
        many, _ = await cost(onward, 4_000, {"max_parallel": 4, **CONCURRENT})
    assert many < 2 * few * 4_000 / 500


@pytest.mark.slow
async def test_a_redis_is_sent_a_list_once(tmp_path: Path) -> None:
    async with engine(fresh_url("valkey")) as onward:
        spent, run = await cost(onward, 1_000, {}, received)
    assert spent < 8_000_000
    assert run.rev < 1_200
