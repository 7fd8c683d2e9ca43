"""What one move may write, and one handler may return, is bounded."""

from __future__ import annotations

import msgspec
import pytest

from onward.core import machine, moves
from onward.core.outcome import Failed, Parked, Succeeded, size_of, storable
from onward.faults import Fault
from tests.core.test_machine import CONSOLE, running
from tests.support import NOW


def test_a_move_has_a_bounded_number_of_notes_and_keeps_its_last_ones() -> None:
    notes = tuple([("signal.dropped", '{"name":"go"}')] * 5_000)
    move = machine.settle(running(), Succeeded("1", notes=notes), NOW, CONSOLE)
    assert len(move.events) == moves.MOST_NOTES + 1
    assert move.events[-1] == ("task.succeeded", None)
    told = [data for type_, data in move.events if type_ == "task.notes_dropped"]
    assert [msgspec.json.decode(data or "") for data in told] == [
        {"count": 4_001, "types": {"signal.dropped": 4_001}}
    ]


def test_the_notes_of_a_move_are_bounded_in_bytes() -> None:
    large = f'"{"x" * 300_000}"'
    notes = tuple([("node.finished", large)] * 10)
    move = machine.settle(running(), Succeeded("1", notes=notes), NOW, CONSOLE)
    size = sum(len(data or "") for _, data in move.events)
    assert size <= moves.MOST_NOTE_BYTES + moves.LAST_NOTES * len(large) + 100
    assert move.events[-1] == ("task.succeeded", None)


@pytest.mark.parametrize("count", [0, 1, 4, 5, 999])
def test_few_notes_are_written_as_they_are(count: int) -> None:
    notes = tuple([("node.finished", "1")] * count)
    move = machine.settle(running(), Succeeded("1", notes=notes), NOW, CONSOLE)
    assert move.events == (*notes, ("task.succeeded", None))


def test_an_outcome_that_is_too_large_is_a_failure_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("onward.core.outcome.MOST_BYTES", 1 << 20)
    fine, large = Succeeded('"' + "x" * 1000 + '"'), Succeeded('"' + "x" * (2 << 20) + '"')
    assert storable(fine) is fine
    found = storable(large)
    assert isinstance(found, Failed)
    assert (found.fault.kind, found.fault.retryable) == ("OutcomeInvalid", False)
    assert "it takes 2 MiB of at most 1" in found.fault.message


def test_a_fault_is_cut_to_what_the_log_can_bear() -> None:
    found = storable(Failed(Fault(kind="Error", message="x" * 10**6, details=["y"] * 10**6)))
    assert isinstance(found, Failed)
    assert len(found.fault.encode()) < 20_000


def test_the_large_part_of_a_parked_tasks_memory_is_bounded_and_checked_too() -> None:
    parked = Parked(seen=0, journal="{}", waiting_for="event")
    assert storable(parked) is parked
    large = msgspec.structs.replace(parked, bulk='"' + "x" * 1_000 + '"')
    assert size_of(large) > 1_000
    assert storable(large) is large
    found = storable(msgspec.structs.replace(parked, bulk='"\ud800"'))
    assert isinstance(found, Failed)
    assert "its bulk holds half of a surrogate pair" in found.fault.message
