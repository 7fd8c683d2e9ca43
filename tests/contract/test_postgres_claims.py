"""What a claim asks of Postgres, without one."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from onward.core.limits import Bound, Rate
from onward.ledgers.postgres.batch import Known, PostgresBatch
from onward.ledgers.postgres.store import PostgresStore
from onward.ledgers.sql.dialect import Row, Step
from onward.ledgers.sql.plans import Plans
from tests.support import NOW, an_ask

RATE = Bound("rate", False, None, Rate(1, 60_000), ("q",))
PAID: Row = ("rate", 0, "", (NOW + 120_000) * 1_000)


class OnlyRead:
    """A database in which this is paid, and nothing can be written or locked."""

    async def read(self, step: Step) -> list[Row]:
        assert step.name == "paid"
        return [PAID]


def asked(workers: int) -> list[str]:
    """The statements of a claim for so many workers, while a rate lets nothing start."""
    asks = [an_ask(worker=f"w{at}", limit=5, bounds=(RATE,)) for at in range(workers)]
    plan = Plans(partial(PostgresBatch, Known())).claim(asks, NOW)
    names: list[str] = []
    with suppress(StopIteration):
        step = next(plan)
        while True:
            names.append(step.name)
            step = plan.send([PAID] if step.name == "paid" else [])
    return names


@pytest.mark.contract("L-4", "L-6")
def test_a_rate_that_lets_nothing_start_is_read_once_for_all_workers() -> None:
    assert asked(workers=20) == asked(workers=1)


@pytest.mark.contract("L-6")
async def test_when_a_rate_lets_the_next_start_is_read_without_a_lock() -> None:
    database: Any = OnlyRead()
    bell: Any = None
    store = PostgresStore(database, bell)
    wants = an_ask(bounds=(RATE,)).wants
    assert await store.start_at(wants, now=NOW) == {"q": NOW + 60_000}
