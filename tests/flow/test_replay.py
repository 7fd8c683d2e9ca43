"""What was in shared at a step, rebuilt; simulated_run.py checks it after every step."""

from __future__ import annotations

from typing import Any

import pytest

from onward.flow.nodes.fan import RACED
from onward.flow.nodes.kind import FROM_UNKNOWN, GONE, LARGE
from onward.flow.replay import EVERYTHING
from tests.flow.simulated_run import Run, call, chain, edge, play
from tests.flow.test_purity import EVERY_KIND


def to(key: str, input: str = "$shared.n") -> dict[str, Any]:
    return {"prep": {"input_key": input}, "post": {"output_key": key}}


def fan(kind: str = "foreach", service: str = "odd_fails", **more: Any) -> dict[str, Any]:
    return {"kind": kind, "service": service, **to("out", "$shared.items"), **more}


@pytest.mark.contract("S4-14")
def test_a_step_has_the_state_before_and_after() -> None:
    run = play(
        chain(("a", call("double", **to("n"))), ("b", call("double", **to("m")))), shared={"n": 1}
    )
    first, second = run.replay().moments.values()
    assert (first.before, first.after) == ({"n": 1}, {"n": 2})
    assert (second.node, second.before, second.after) == ("b", {"n": 2}, {"n": 2, "m": 4})


def test_a_step_that_is_not_over_has_no_state_after_it() -> None:
    run = Run(chain(("a", call(**to("m")))), shared={"n": 1})
    run.go()
    (moment,) = run.replay().moments.values()
    assert (moment.before, moment.after) == ({"n": 1}, None)


def test_each_visit_of_a_loop_has_its_own_state() -> None:
    again = {
        "kind": "choice",
        "choice_cases": [{"action": "again", "expr": {"lt": ["$shared.n", 8]}}],
        "default_action": "done",
    }
    flow = chain(("a", call("double", **to("n"))), ("which", again))
    flow["edges"].append(edge("which", "again", "a"))
    run = play(flow, shared={"n": 1})
    states = [one.after for one in run.replay().moments.values() if one.node == "a"]
    assert states == [{"n": 2}, {"n": 4}, {"n": 8}]


def test_a_subflows_steps_have_the_subflows_state() -> None:
    inner = chain(("x", call("double", prep={"input_key": "n"}, post={"output_key": "twice"})))
    flow = chain(("pack", {"kind": "subflow", "subflow": inner, **to("packed", "$shared")}))
    run = play(flow, shared={"n": 3})
    pack, inside = run.replay().moments.values()
    assert (inside.node, inside.before) == ("pack/x", {"n": 3})
    assert inside.after == {"n": 3, "twice": 6}
    assert pack.after == {"n": 3, "packed": {"n": 3, "twice": 6}}


def test_of_every_kind_of_node_everything_is_known() -> None:
    run = Run(EVERY_KIND, params={"n": 1, "items": [1, 2, 3]}).play()
    while run.end is None and run.open:
        run.approve()
        run.play()
    assert run.replay().unknown == {}
    assert run.shared


@pytest.mark.parametrize("node", [call(**to("out")), fan()])
def test_the_result_of_a_call_that_is_gone_is_unknown(node: dict[str, Any]) -> None:
    run = play(chain(("a", node), ("b", call(**to("m")))), shared={"n": 1, "items": [2], "out": 0})
    replay = run.replay(without="run-0")
    assert replay.unknown == {"out": GONE.why}
    assert replay.shared == {"n": 1, "items": [2], "m": 1}


def test_what_is_written_again_is_known_again() -> None:
    run = play(chain(("a", call(**to("out"))), ("b", call(**to("out")))), shared={"n": 1})
    first, second = run.replay(without="run-0").moments.values()
    assert (first.after, first.unknown) == ({"n": 1}, {"out": GONE.why})
    assert (second.after, second.unknown) == ({"n": 1, "out": 1}, {})


def test_what_comes_from_the_unknown_is_unknown() -> None:
    inner = chain(("x", call("echo", prep={"input_key": "n"}, post={"output_key": "y"})))
    flow = chain(
        ("a", call(**to("got"))),
        ("pack", {"kind": "subflow", "subflow": inner, **to("packed", "$shared.got.deep")}),
    )
    run = play(flow, shared={"n": {"deep": {"n": 1}}})
    replay = run.replay(without="run-0")
    assert replay.unknown == {"got": GONE.why, "packed": FROM_UNKNOWN.why}
    assert replay.moments[3].unknown.keys() >= {EVERYTHING}


def test_a_choice_passes_on_what_the_log_says_it_was_given() -> None:
    which = {"kind": "choice", "default_action": "default", **to("seen", "$shared.got")}
    run = play(chain(("a", call(**to("got"))), ("which", which)), shared={"n": 5})
    replay = run.replay(without="run-0")
    assert (replay.shared, replay.unknown) == ({"n": 5, "seen": 5}, {"got": GONE.why})


def test_calls_that_raced_with_a_failure_are_unknown() -> None:
    racing = fan(parallel_mode="concurrent", failure_strategy="fail_fast")
    run = play(chain(("a", racing)), shared={"items": [2, 3, 4]})
    assert run.replay().unknown == {"out": RACED.why}
    one_by_one = fan(failure_strategy="fail_fast")
    run = play(chain(("a", one_by_one)), shared={"items": [2, 3, 4]})
    assert run.replay().shared["out"] == run.shared["out"] == [20]


def test_a_signal_too_large_to_be_written_down_is_unknown() -> None:
    wait = {"kind": "wait_event", "params": {"signal_key": "$shared.sign"}}
    run = Run(chain(("wait", wait)), shared={"n": 1})
    run.go()
    run.signal("wait", "x" * 5_000)
    replay = run.replay()
    assert (replay.shared, replay.unknown) == ({"n": 1}, {"sign": LARGE.why})


def test_an_error_is_in_its_key_after_the_step_that_failed() -> None:
    broken = call("boom", post={"error_key": "why"})
    flow = {
        "start": "a",
        "nodes": {"a": broken, "b": call(**to("m"))},
        "edges": [edge("a", "error", "b")],
    }
    run = play(flow, shared={"n": 1})
    why = {"kind": "Boom", "message": "it broke", "node": "a"}
    assert run.replay().moments[1].after == {"n": 1, "why": why}
