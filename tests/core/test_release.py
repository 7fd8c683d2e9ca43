"""Work that is handed back because its worker cannot do it."""

from __future__ import annotations

import pytest

from onward.core import machine
from onward.core.outcome import Released
from onward.core.task import State
from onward.faults import unknown_service
from tests.support import NOW, PROFILES, a_task


@pytest.mark.contract("R-1")
@pytest.mark.parametrize(
    ("age_ms", "delay_ms"), [(0, 1_000), (40_000, 10_000), (10_000_000, 60_000)]
)
def test_what_its_worker_cannot_do_is_put_off_the_longer_the_older_it_is(
    age_ms: int, delay_ms: int
) -> None:
    held = a_task(
        state=State.RUNNING,
        fence=2,
        rev=2,
        attempt=2,
        worker="w",
        created_at=NOW - age_ms,
        retries=1,
        failures=1,
    )
    move = machine.settle(held, Released(unknown_service("embed")), NOW, PROFILES["console"])
    assert (move.to, move.due_at) == (State.SCHEDULED, NOW + delay_ms)
    assert move.changes["attempt"] == held.attempt - 1
    assert not {"retries", "failures", "lost"} & set(move.changes)
    assert [type_ for type_, _ in move.events] == ["task.released"]
