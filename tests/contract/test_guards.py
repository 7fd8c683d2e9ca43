"""The contract's tests see what the guards of turns and bounds are for: without one they fail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from onward.core.limits import Bound
from onward.ledgers import open_backend
from onward.ledgers.sql.turns import Room
from onward.ledgers.sqlite.rings import Occupied, Rates, Ring, Rings
from tests.contract import test_limits, test_partitions
from tests.contract.driver import Driver


def without_the_count(patch: pytest.MonkeyPatch) -> None:
    def nothing(occupied: Occupied, bound: Bound, partition: str) -> int:
        return 0

    patch.setattr(Occupied, "used", nothing)


def without_the_turn(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ring, "served", lambda *_: None)


def without_the_instant(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Rates, "set", lambda *_: None)


def without_coming_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Rings, "back", lambda *_: None)


def without_a_stop(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Room, "wait", lambda *_: None)


async def one_by_one(driver: Driver) -> None:
    await test_partitions.test_a_long_partition_delays_another_by_one_turn_each(driver, 1)


@pytest.fixture
async def plain() -> AsyncIterator[Driver]:
    backend = open_backend("sqlite:///:memory:")
    yield Driver(backend)
    await backend.close()


@pytest.mark.contract("L-2", "L-3", "L-4")
@pytest.mark.parametrize(
    ("guard", "test"),
    [
        (without_the_count, test_limits.test_no_more_than_the_bound_run_at_once),
        (without_the_turn, one_by_one),
        (without_the_instant, test_limits.test_a_rate_spaces_starts),
        (without_coming_back, test_limits.test_each_partition_has_its_own_bound),
        (without_a_stop, test_limits.test_a_start_above_the_burst_waits_until_more_is_paid),
    ],
)
async def test_a_ledger_without_one_guard_is_caught(
    plain: Driver,
    guard: Callable[[pytest.MonkeyPatch], None],
    test: Callable[[Driver], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guard(monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        await test(plain)
