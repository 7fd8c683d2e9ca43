"""A run's memory in two parts: values that are large are written only when they change."""

from __future__ import annotations

import msgspec
import pytest

from onward.flow import state as states
from onward.flow.state import Frame, RunState, Stashed, Undo

VALUE = ["x" * states.LARGE]


def large() -> RunState:
    frames = [Frame("a", shared={"list": VALUE, "n": 1}), Frame("b", shared={"m": 2})]
    undo, signals = [Undo("a", VALUE)], [Stashed("go", 1)]
    return RunState(frames=frames, undo=undo, signals=signals)


def test_a_small_memory_is_one_text_as_it_always_was() -> None:
    state = RunState(frames=[Frame("a", shared={"n": 1})])
    assert states.divide(state, None) == (states.encode(state), None)
    assert states.decode(states.encode(state)) == state


def test_a_large_memory_is_the_same_in_two_parts() -> None:
    journal, bulk = states.divide(large(), None)
    assert bulk is not None
    assert len(journal) < 200
    assert states.decode(journal, states.read_bulk(bulk.text)) == large()


def test_what_an_earlier_version_wrote_is_read_however_large_it_is() -> None:
    assert states.decode(states.encode(large())) == large()


def test_a_journal_without_its_other_part_is_not_taken_for_a_whole_one() -> None:
    journal, _ = states.divide(large(), None)
    with pytest.raises(msgspec.ValidationError):
        states.decode(journal)


def test_unchanged_values_are_not_written_again() -> None:
    journal, bulk = states.divide(large(), None)
    state = states.copy(states.decode(journal, bulk))
    state.step_count = 7
    again, same = states.divide(state, bulk)
    assert same is bulk
    assert again != journal


@pytest.mark.parametrize("change", ["write", "remove", "ascend", "undo", "signal"])
def test_any_change_of_a_value_is_written(change: str) -> None:
    journal, bulk = states.divide(large(), None)
    state = states.copy(states.decode(journal, bulk))
    match change:
        case "write":
            state.frames[1].shared["m"] = 3
        case "remove":
            del state.frames[0].shared["n"]
        case "ascend":
            state.frames.pop()
        case "undo":
            state.undo.append(Undo("b", 1))
        case _:
            state.signals.clear()
    journal, changed = states.divide(state, bulk)
    assert changed is not None
    assert changed is not bulk
    assert states.decode(journal, changed) == state


def test_a_memory_that_was_large_becomes_one_text_again() -> None:
    _, bulk = states.divide(large(), None)
    small = RunState(frames=[Frame("a")])
    assert states.divide(small, bulk) == (states.encode(small), None)
