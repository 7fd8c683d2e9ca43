"""timer and wait_event: what they wait for, until when, and what releases them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from onward.flow import engine
from onward.flow.scope import shared_key
from onward.flow.step import RunCompleted, RunFailed, Signal
from tests.flow.simulated_run import Run, call, chain, edge, play
from tests.support import NOW


def timer(delay_ms: Any, **more: Any) -> dict[str, Any]:
    return {"kind": "timer", "params": {"delay_ms": delay_ms}, **more}


def event(**params: Any) -> dict[str, Any]:
    return {"kind": "wait_event", "params": params, "post": {"action_static": "next"}}


@pytest.mark.contract("S4-7")
def test_a_timer_goes_on_when_its_time_is_over_and_not_before() -> None:
    node = timer(3000, prep={"input_key": "x"}, post={"action_static": "next", "output_key": "y"})
    run = Run(chain(("t", node)), shared={"x": 1})
    step = run.go()
    assert (step.waiting_for, step.until, step.calls) == ("timer", NOW + 3000, ())
    assert run.rt == {"tm:t": {"start": NOW}}
    assert run.later(2999).until == NOW + 3000
    run.later(1)
    assert run.end == RunCompleted({"x": 1, "y": 1})
    about = {"seq": 1, "node": "t", "kind": "timer"}
    assert [(note.type, note.data) for note in run.notes] == [
        ("node.started", {**about, "input": 1}),
        ("node.finished", {**about, "status": "ok", "action": "next"}),
    ]
    assert run.trail() == [("t", "ok", "next")]
    assert run.rt == {"tm:t": {"start": NOW}}


def test_a_timer_that_is_due_at_once_takes_no_time() -> None:
    for delay_ms in (0, "$params.none"):
        run = Run(chain(("t", timer(delay_ms))), params={"none": 0})
        run.go()
        assert (run.end, len(run.notes)) == (RunCompleted({}), 1)


@pytest.mark.contract("S4-7")
def test_a_delay_may_be_given_by_a_path() -> None:
    run = Run(chain(("t", timer("$params.pause"))), params={"pause": 40.0})
    assert run.go().until == NOW + 40


@pytest.mark.parametrize("pause", [-1, 1.5, True, "5", [1], 10**18])
def test_a_path_to_no_duration_fails_the_timer(pause: Any) -> None:
    run = play(chain(("t", timer("$params.pause"))), params={"pause": pause})
    assert run.end == RunFailed("InvalidInput", "params.delay_ms is no duration in ms", "t")


def test_a_path_to_nothing_fails_the_timer() -> None:
    end = play(chain(("t", timer("$params.pause")))).end
    assert end == RunFailed("InvalidInput", "params.delay_ms leads to nothing", "t")


def test_large_values_are_left_out_of_the_log() -> None:
    node = timer(0, prep={"input_key": "$params.x"})
    for large in ("x" * 5_000, [["x"] * 50] * 50, {"k" * 5_000: 1}):
        (note,) = play(chain(("t", node)), params={"x": large}).notes
        assert "input" not in note.data
        assert note.data["cut"] is True


def test_each_visit_of_a_timer_waits_anew() -> None:
    flow = chain(("t", timer(100)), ("n", call()))
    flow["edges"].append(edge("n", "default", "t"))
    run = play(flow | {"max_steps": 5})
    assert run.now == NOW + 300


@pytest.mark.contract("S4-7", "S4-10")
def test_an_event_is_waited_for_until_its_signal_comes() -> None:
    run = Run(chain(("w", event(signal_key="$shared.flag", timeout_ms=60_000))))
    step = run.go()
    assert (step.waiting_for, step.until) == ("event", NOW + 60_000)
    assert run.rt == {"we:w": {"start": NOW}}
    run.signal("flag", {"by": "ann"})
    assert run.end == RunCompleted({"flag": {"by": "ann"}})
    assert run.notes[-1].data["output"] == {"by": "ann"}


@pytest.mark.contract("S4-10")
@pytest.mark.parametrize("name", ["w", "flag", "$shared.flag"])
@pytest.mark.parametrize("value", [None, False, 0, "", []])
def test_a_signal_whose_value_is_not_true_changes_nothing(name: str, value: Any) -> None:
    run = Run(chain(("w", event(signal_key="$shared.flag"))))
    run.go()
    assert run.signal(name, value).waiting_for == "event"
    assert run.shared == {}
    run.signal(name, "go")
    assert run.end == RunCompleted({"flag": "go"})


@pytest.mark.contract("S4-10")
@pytest.mark.parametrize("value", [None, False, "go"])
def test_without_a_key_any_signal_to_the_node_releases_it(value: Any) -> None:
    run = Run(chain(("w", event())))
    run.go()
    run.signal("w", value)
    assert run.end == RunCompleted({})


@pytest.mark.contract("S4-10")
def test_a_signal_of_another_name_releases_nothing() -> None:
    run = Run(chain(("w", event(signal_key="$shared.flag"))))
    run.go()
    assert run.signal("flags").waiting_for == "event"
    assert run.signal("_rt").waiting_for == "event"
    assert run.shared == {}


@pytest.mark.contract("S4-10")
@pytest.mark.parametrize("signal_key", ["$params.go", "$input.go", "$shared", None])
def test_a_key_that_is_not_shared_is_no_name_for_a_signal(signal_key: str | None) -> None:
    run = Run(chain(("w", event(signal_key=signal_key))))
    run.go(Signal("go", 1), Signal("", 1))
    assert run.end is None
    run.signal("w", 1)
    assert run.end == RunCompleted({})


def test_what_belongs_to_the_engine_is_no_shared_key() -> None:
    assert [shared_key(path) for path in ("a.b", "$shared.a", "_rt", "$shared._rt.x", None)] == [
        "a.b",
        "a",
        None,
        None,
        None,
    ]


@pytest.mark.contract("S4-10")
def test_a_signal_that_came_too_early_is_kept_and_used_once() -> None:
    nodes = [("a", call()), ("w1", event(signal_key="flag")), ("w2", event(signal_key="other"))]
    flow = chain(*nodes, ("w3", event()))
    run = Run(flow)
    run.go(Signal("w3", 3), Signal("flag", 1))
    run.go(run.work("run-0"))
    assert run.state.frames[0].node == "w2"
    run.signal("other", 2)
    assert run.end == RunCompleted({"flag": 1, "other": 2})
    assert run.state.signals == []


@pytest.mark.contract("S4-10")
@pytest.mark.parametrize(
    ("signal_key", "released"),
    [
        ("$shared.flag", True),
        ("flag", True),
        ("$params.go", True),
        ("$input.ready", True),
        ("$shared.no", False),
        ("$shared.gone", False),
    ],
)
def test_a_path_that_holds_something_true_is_enough(signal_key: str, released: bool) -> None:
    node = event(signal_key=signal_key) | {"prep": {"input_key": "$params.given"}}
    run = Run(
        chain(("w", node)),
        shared={"flag": "up", "no": 0},
        params={"go": 1, "given": {"ready": True}},
    )
    run.go()
    assert (run.end is not None) is released


@pytest.mark.contract("S4-10")
def test_an_earlier_node_can_raise_the_flag() -> None:
    flow = chain(
        ("a", call("echo", prep={"input_key": "$params.on"}, post={"output_key": "flag"})),
        ("w", event(signal_key="$shared.flag")),
    )
    assert play(flow, params={"on": True}).end == RunCompleted({"flag": True})


@pytest.mark.contract("S4-6", "S4-7")
def test_an_event_that_does_not_come_takes_the_timeout_edge() -> None:
    node = event(signal_key="flag", timeout_ms=500) | {"post": {"error_key": "why"}}
    flow = chain(("w", node), ("well", call()), ("late", call()))
    flow["edges"] = [edge("w", "default", "well"), edge("w", "timeout", "late")]
    run = play(flow)
    assert run.trail() == [("w", "error", "timeout"), ("late", "ok", "default")]
    assert run.shared["why"]["kind"] == "timeout"
    flow["edges"] = [edge("w", "default", "well")]
    assert play(flow).end == RunFailed("timeout", "no event within 500 ms", "w")


def test_a_signal_in_the_last_moment_is_not_too_late() -> None:
    run = Run(chain(("w", event(signal_key="flag", timeout_ms=500))))
    run.go()
    run.now += 500
    run.signal("flag", 1)
    assert run.end == RunCompleted({"flag": 1})


def dropped(run: Run) -> list[Mapping[str, Any]]:
    return [note.data for note in run.notes if note.type == "signal.dropped"]


def test_a_flood_of_signals_is_one_note() -> None:
    run = Run(chain(("w", event(signal_key="flag"))))
    step = run.go(*(Signal(f"noise{n}", n) for n in range(5_000)))
    assert len(step.notes) == 2, "that it was entered, and this"
    (data,) = dropped(run)
    assert data["count"] == 5_000 - engine.MAX_SIGNALS
    assert data["names"] == [f"noise{engine.MAX_SIGNALS + n}" for n in range(engine.MOST_NAMED)]


def test_signals_that_are_kept_are_bounded_in_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MAX_SIGNAL_BYTES", 100)
    run = Run(chain(("a", call()), ("w", event(signal_key="flag"))))
    run.go(Signal("flag", "first"), Signal("big", "x" * 99), Signal("late", 1))
    assert dropped(run) == [{"count": 2, "names": ["big", "late"]}]
    run.go(run.work("run-0"))
    assert run.end == RunCompleted({"flag": "first"})


def test_unread_signals_are_bounded_and_the_oldest_stay() -> None:
    run = Run(chain(("a", call()), ("w", event(signal_key="flag"))))
    run.go(Signal("flag", "first"))
    run.go(*(Signal("noise", n) for n in range(engine.MAX_SIGNALS)))
    assert dropped(run) == [{"count": 1, "names": ["noise"]}]
    run.go(run.work("run-0"))
    assert run.end == RunCompleted({"flag": "first"})


def test_a_full_stash_does_not_keep_a_signal_from_the_node_that_waits() -> None:
    run = Run(chain(("w", event(signal_key="flag"))))
    run.go(*(Signal("noise", n) for n in range(engine.MAX_SIGNALS)))
    run.signal("flag", 1)
    assert run.end == RunCompleted({"flag": 1})
