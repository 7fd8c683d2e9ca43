"""What a run may hold in shared: so many bytes, and the node that would write more fails."""

from __future__ import annotations

from typing import Any

import pytest

from onward.flow import engine
from onward.flow.step import RunCompleted, RunFailed, Signal
from tests.flow.simulated_run import Run, call, chain, edge, play


def grows(**more: Any) -> dict[str, Any]:
    """Writes twice what it has read."""
    return call("double", prep={"input_key": "word"}, post={"output_key": "word"}, **more)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MAX_SHARED", 200)


def test_a_node_that_would_write_too_much_fails_and_writes_nothing() -> None:
    run = play(chain(*((key, grows()) for key in "abcdef")), shared={"word": "x" * 20})
    assert isinstance(run.end, RunFailed)
    assert (run.end.kind, run.end.node) == ("LimitExceeded", "d")
    assert "more than 200" in run.end.message
    assert run.shared == {"word": "x" * 160}


def test_what_is_written_over_counts_no_more() -> None:
    keys = [f"n{n}" for n in range(30)]
    node = call("echo", prep={"input_key": "word"}, post={"output_key": "copy"})
    run = play(chain(*((key, node) for key in keys)), shared={"word": "x" * 50})
    assert run.end == RunCompleted({"word": "x" * 50, "copy": "x" * 50})


def test_what_a_subflow_begins_with_counts_for_what_is_written_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "MAX_SHARED", 2_000)
    waits = {"kind": "wait_event", "params": {"signal_key": "said"}}
    inner = chain(("w", waits))
    node = {"kind": "subflow", "subflow": inner, "prep": {"input_map": {"word": "word"}}}
    run = Run(chain(("a", call("echo")), ("s", node)), shared={"word": "x" * 950})
    run.play(Signal("said", "y" * 150))
    assert isinstance(run.end, RunFailed)
    assert (run.end.kind, run.end.node) == ("LimitExceeded", "s/w")


def test_it_takes_the_edge_of_any_failure_and_is_undone_later() -> None:
    flow = chain(("a", grows(compensate={"service": "echo"})), ("b", call("boom")))
    flow["edges"] = [edge("a", "error", "b")]
    run = play(flow, shared={"word": "x" * 150})
    assert isinstance(run.end, RunFailed)
    assert run.end.kind == "Boom"
    assert run.trail() == [
        ("a", "error", "error"), ("b", "error", None), ("a", "ok", None)
    ]  # fmt: skip
    assert run.made[-1].input == "x" * 300, "the call went well, so it is undone"


def test_a_subflow_and_what_is_to_be_undone_count_too() -> None:
    inner = chain(("a", grows(compensate={"service": "echo"})))
    node = {"kind": "subflow", "subflow": inner, "prep": {"input_map": {"word": "word"}}}
    run = play(chain(("s", node)), shared={"word": "x" * 40})
    assert isinstance(run.end, RunFailed)
    assert (run.end.kind, run.end.node) == ("LimitExceeded", "s/a")
