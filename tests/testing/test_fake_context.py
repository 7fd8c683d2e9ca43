"""The `ctx` that a test hands to a handler it calls itself."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from onward import Context, Worker
from onward.testing import FakeContext


@dataclass
class Till:
    charged: int = 0

    def charge(self, amount: int) -> dict[str, int]:
        self.charged += amount
        return {"paid": amount}


worker = Worker()


@worker.service
async def buy(ctx: Context[Till], amount: int) -> int:
    await ctx.progress(0.5, "at the till")
    await ctx.emit({"amount": amount})
    receipt = await ctx.once("charge", lambda: ctx.state.charge(amount))
    return int(receipt["paid"]) * ctx.attempt


@worker.service
def sell(ctx: Context[Till], amount: int) -> int:
    ctx.progress(0.5)  # type: ignore[unused-awaitable]  # a rule that users need not have
    receipt = ctx.once("charge", lambda: ctx.state.charge(amount))
    return 0 if ctx.cancelled else int(receipt["paid"])


@pytest.mark.contract("Y-4")
async def test_a_coroutine_is_called_with_a_context_of_the_tests_own() -> None:
    ctx = FakeContext(Till(), attempt=2)

    assert await buy(ctx, 7) == 14
    assert await buy(ctx, 7) == 14

    assert ctx.state.charged == 7
    assert ctx.effects == {"charge": {"paid": 7}}
    assert ctx.progressed == [(0.5, "at the till")] * 2
    assert ctx.emitted == [{"amount": 7}] * 2


@pytest.mark.contract("Y-4")
def test_a_plain_function_awaits_nothing() -> None:
    ctx = FakeContext(Till())

    assert sell(ctx, 7) == 7
    ctx.cancelled = True
    assert sell(ctx, 7) == 0

    assert (ctx.state.charged, ctx.progressed) == (7, [(0.5, None)] * 2)


@pytest.mark.contract("Y-4")
async def test_an_effect_that_fails_is_not_noted() -> None:
    ctx = FakeContext()

    def fail() -> None:
        raise ConnectionError("the bank does not answer")

    with pytest.raises(ConnectionError):
        await ctx.once("charge", fail)
    assert ctx.effects == {}
    assert await ctx.once("charge", lambda: (1, 2)) == [1, 2]
