"""`ctx.once` over lost answers, lost attempts and a ledger that is away for a moment."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
from contextvars import ContextVar
from typing import Any

import pytest

from onward import Context, Worker
from onward.client import task_context as client_context
from onward.client.context import PlainContext
from onward.client.failures import EffectUnknown
from onward.client.http import Client
from tests.client.conftest import Line, Start
from tests.support import wait_until


@pytest.mark.contract("S1-8")
async def test_a_lost_answer_to_begin_does_not_free_an_earlier_attempts_effect(
    line: Line, client: Client, start: Start
) -> None:
    worker = Worker(line.url)
    charged: list[int] = []

    @worker.service
    async def pay(ctx: Context) -> str:
        async def charge() -> str:
            charged.append(ctx.attempt)
            if ctx.attempt == 1:
                await asyncio.sleep(600)  # charged, and dead before it could note it
            return "paid"

        if ctx.attempt == 2:
            line.swallow_answers = 1
        result: str = await ctx.once("charge", charge)
        return result

    await start(worker)
    task = await client.submit("pay", {}, backoff_ms=[0], max_retries=5)
    await wait_until(lambda: charged)
    line.cut()
    ended = await client.wait(task.id, timeout_ms=30_000)

    assert charged == [1]
    assert ended.error["kind"] == "EffectUnknown"


@pytest.mark.contract("S1-8")
async def test_a_lost_answer_to_begin_costs_no_attempt(
    line: Line, client: Client, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_context, "AGAIN_S", 0.01)
    worker = Worker(line.url)
    charged: list[int] = []

    @worker.service
    async def pay(ctx: Context) -> None:
        line.swallow_answers = 1
        await ctx.once("charge", lambda: charged.append(ctx.attempt))

    await start(worker)
    task = await client.submit("pay", {}, backoff_ms=[0])
    ended = await client.wait(task.id, timeout_ms=30_000)

    assert (charged, ended.attempt, ended.state) == ([1], 1, "succeeded")


@pytest.mark.contract("S1-8")
async def test_what_has_happened_is_noted_again_and_again(
    line: Line, client: Client, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_context, "AGAIN_S", 0.01)
    worker = Worker(line.url)
    charged: list[int] = []

    @worker.service
    async def pay(ctx: Context) -> str:
        def charge() -> str:
            charged.append(ctx.attempt)
            line.swallow_answers = 5
            line.cut()  # the socket too: the task is lost, and comes back
            return "paid"

        while True:
            try:
                result: str = await ctx.once("charge", charge)
            except EffectUnknown:  # the lost attempt is still about to note it
                await asyncio.sleep(0.01)
            else:
                return result

    await start(worker)
    task = await client.submit("pay", {}, backoff_ms=[0])
    ended = await client.wait(task.id, timeout_ms=30_000)

    assert (charged, ended.result) == ([1], "paid")


@pytest.mark.contract("S1-8")
async def test_a_note_that_does_not_arrive_is_sent_again(
    line: Line, client: Client, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it reaches the server at first: without another try nobody would know of it."""
    monkeypatch.setattr(client_context, "AGAIN_S", 0.01)
    worker = Worker(line.url)
    charged: list[int] = []

    @worker.service
    async def pay(ctx: Context) -> str:
        def charge() -> str:
            charged.append(ctx.attempt)
            line.refused = 4
            line.cut()
            return "paid"

        while True:
            try:
                result: str = await ctx.once("charge", charge)
            except EffectUnknown:  # the lost attempt is still about to note it
                await asyncio.sleep(0.01)
            else:
                return result

    await start(worker)
    task = await client.submit("pay", {}, backoff_ms=[0])
    ended = await client.wait(task.id, timeout_ms=30_000)

    assert (charged, ended.state, ended.result) == ([1], "succeeded", "paid")


@pytest.mark.contract("N-7")
async def test_an_effect_of_a_plain_function_stays_in_its_thread(
    url: str, client: Client, start: Start
) -> None:
    worker = Worker(url)
    set_by_handler: ContextVar[str] = ContextVar("set_by_handler", default="")

    @worker.service
    def pay(ctx: PlainContext) -> list[Any]:
        set_by_handler.set("seen")
        connection = sqlite3.connect(":memory:")  # refuses every other thread
        here = threading.get_ident()

        def charge() -> list[Any]:
            (one,) = connection.execute("SELECT 1").fetchone()
            return [one, set_by_handler.get(), threading.get_ident() == here]

        found: list[Any] = ctx.once("charge", charge)
        connection.close()
        return found

    @worker.service
    def leaves(ctx: PlainContext) -> None:
        ctx.once("leave", sys.exit)

    await start(worker)
    assert await client.run("pay", {}) == [1, "seen", True]
    task = await client.submit("leaves", {}, backoff_ms=[0], max_retries=1)
    ended = await client.wait(task.id, timeout_ms=30_000)
    assert ended.error["kind"] == "EffectUnknown", "left half way, nobody knows how far it got"
    assert await client.run("pay", {}) == [1, "seen", True], "and the worker is still there"
