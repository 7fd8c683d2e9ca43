"""How a run ends early: cancel, failure, compensation, limits."""

from __future__ import annotations

from typing import Any

import pytest

from onward.faults import Fault
from onward.flow import engine
from onward.flow import state as states
from onward.flow.definition import parse
from onward.flow.step import Cancel, ChildEnded, ChildResult, RunCanceled, RunCompleted, RunFailed
from tests.flow.simulated_run import Run, call, chain, edge, play
from tests.support import NOW

GRACE = engine.STOP_GRACE_MS


def undone(service: str = "echo", by: str = "echo", **more: Any) -> dict[str, Any]:
    return call(service, compensate={"service": by, **more.pop("how", {})}, **more)


@pytest.mark.contract("S4-12", "S4-14")
def test_a_cancel_stops_what_is_out_waits_for_it_and_leaves_one_record() -> None:
    run = Run(chain(("a", call()), ("b", call())))
    run.go()
    step = run.cancel()
    assert (step.stop, step.waiting_for, step.until) == (("run-0",), "children", NOW + GRACE)
    assert run.trail() == [("a", "canceled", None)]
    run.go(ChildEnded("run-0", ok=False))
    assert run.end == RunCanceled()
    assert run.trail() == [("a", "canceled", None)]


@pytest.mark.contract("S4-12")
def test_a_cancel_does_not_wait_for_ever() -> None:
    run = Run(chain(("a", call())))
    run.go()
    run.cancel()
    assert run.later(GRACE - 1).waiting_for == "children"
    run.later(1)
    assert run.end == RunCanceled()


@pytest.mark.contract("S4-12")
@pytest.mark.parametrize(
    "node",
    [
        {"kind": "timer", "params": {"delay_ms": 1000}},
        {"kind": "wait_event"},
        {"kind": "subflow", "subflow": chain(("w", {"kind": "wait_event"}))},
    ],
    ids=lambda node: str(node["kind"]),
)
def test_a_run_that_has_nothing_out_is_canceled_at_once(node: dict[str, Any]) -> None:
    run = Run(chain(("n", node)))
    run.go()
    run.cancel()
    assert run.end == RunCanceled()
    assert [status for (status,) in run.trail("status")] == ["canceled"]


@pytest.mark.contract("S4-12")
def test_a_run_that_has_not_begun_is_canceled_without_a_call() -> None:
    run = Run(chain(("a", call())))
    run.cancel()
    assert (run.end, run.made) == (RunCanceled(), [])
    assert run.trail("seq", "node", "status") == [(1, "a", "canceled")]


@pytest.mark.contract("S4-12")
def test_all_of_a_fan_is_stopped_and_a_question_withdrawn() -> None:
    fan = {"kind": "parallel", "parallel_services": ["echo"] * 3, "parallel_mode": "concurrent"}
    run = Run(chain(("p", fan)))
    run.go()
    run.go(run.work("run-1"))
    assert sorted(run.cancel().stop) == ["run-0", "run-2"]
    question = Run(chain(("ask", {"kind": "approval"})))
    question.go()
    assert question.cancel().stop == ("run-0",)
    question.go(ChildEnded("run-0", ok=True))
    assert question.end == RunCanceled()


@pytest.mark.contract("S4-12")
def test_a_cancel_wins_over_a_result_that_comes_with_it() -> None:
    run = Run(chain(("a", call()), ("b", call())))
    run.go()
    run.go(run.work("run-0"), Cancel())
    assert run.end == RunCanceled()
    assert len(run.made) == 1


def test_a_second_cancel_changes_nothing() -> None:
    run = Run(chain(("a", call())))
    run.go()
    run.cancel()
    run.now += 10
    again = run.cancel()
    assert (again.stop, again.notes, again.until) == ((), (), NOW + GRACE)


STEPS = chain(
    ("book", undone("book", "unbook")),
    ("pay", undone("pay", "refund", how={"params": {"why": "undo"}}, params={"currency": "EUR"})),
    ("skip", call()),
    ("ship", call("boom")),
)
SHOP = {
    "book": lambda _, __: {"booking": 1},
    "pay": lambda _, __: {"payment": 2},
    "unbook": lambda value, _: value,
    "refund": lambda value, _: value,
}


def undoings(run: Run) -> list[tuple[Any, ...]]:
    return [(made.service, made.node, made.input) for made in run.made if made.purpose != "node"]


@pytest.mark.contract("S2-11", "S4-14")
def test_a_failure_undoes_what_was_done_last_things_first() -> None:
    run = play(STEPS, services=SHOP, params={"user": 7})
    assert run.end == RunFailed("Boom", "it broke", "ship")
    assert undoings(run) == [("refund", "pay", {"payment": 2}), ("unbook", "book", {"booking": 1})]
    refund = run.made[-2]
    assert refund.params == {"user": 7, "currency": "EUR", "why": "undo"}
    assert run.trail("node", "kind", "status")[-2:] == [
        ("pay", "compensation", "ok"),
        ("book", "compensation", "ok"),
    ]
    # One at a time: the next begins when the one before is over.
    assert run.most_open == 1


@pytest.mark.contract("S2-11", "S4-12")
def test_a_cancel_undoes_too() -> None:
    run = Run(STEPS, services=SHOP)
    run.go()
    run.go(run.work("run-0"))
    run.go(run.work("run-1"))
    run.cancel()
    assert undoings(run) == []
    run.go(ChildEnded("run-2", ok=False))
    assert undoings(run) == [("refund", "pay", {"payment": 2})]
    run.play()
    assert run.end == RunCanceled()
    assert [made.service for made in run.made[-2:]] == ["refund", "unbook"]
    assert [row for row in run.trail() if row[1] == "canceled"] == [("skip", "canceled", None)]


@pytest.mark.contract("S4-12")
@pytest.mark.parametrize("together", [True, False])
def test_work_that_was_done_before_it_could_be_stopped_is_undone(together: bool) -> None:
    run = Run(STEPS, services=SHOP)
    run.go()
    if together:
        run.go(run.work("run-0"), Cancel())
    else:
        run.cancel()
        run.answer("run-0", ChildResult({"booking": 1}))
    assert undoings(run) == [("unbook", "book", {"booking": 1})]


def test_what_an_approval_said_before_it_could_be_withdrawn_needs_no_undoing() -> None:
    node = {"kind": "approval", "compensate": {"service": "echo"}}
    run = Run(chain(("ask", node)))
    run.go()
    run.cancel()
    run.answer("run-0", ChildResult({"by": "ann"}))
    assert (run.end, undoings(run)) == (RunCanceled(), [])


def test_a_cancel_asks_for_no_answers_where_nothing_is_to_be_undone() -> None:
    run = Run(chain(("a", call())))
    run.go()
    run.cancel()
    run.answer("run-0", ChildResult("done after all"))
    assert (run.end, run.needed) == (RunCanceled(), [])


def test_what_turns_out_to_have_failed_is_not_undone() -> None:
    run = Run(STEPS, services=SHOP)
    run.go()
    run.cancel()
    run.answers["run-0"] = ChildResult(fault=Fault(kind="Boom", message="it broke"))
    run.go(ChildEnded("run-0", ok=True))
    assert (run.end, undoings(run)) == (RunCanceled(), [])


def test_a_cancel_leaves_an_earlier_visit_of_the_node_alone() -> None:
    node = {"kind": "parallel", "parallel_services": ["boom", "echo"]}
    definition = parse(chain(("p", node)))
    earlier = states.NodeRecord(start=NOW, total=2, next=2, open=[1], failed=[0])
    again = states.RunState([states.Frame(node="p", records={"pl:p": earlier})], children=2)
    step = engine.advance(definition, again, run_id="r", params={}, now=NOW, news=[Cancel()])
    assert (step.stop, step.end) == ((), RunCanceled())


def test_what_the_definition_cannot_undo_any_more_is_left() -> None:
    definition = parse(chain(("plain", call()), ("kept", undone())))
    failed = states.begin(definition)
    failed.winding_up, failed.failure = True, states.NodeFailure("Boom", "it broke", "plain")
    failed.undo = [states.Undo(node) for node in ("plain", "kept", "plain", "gone", "gone/too")]
    step = engine.advance(definition, failed, run_id="r", params={}, now=NOW)
    assert [made.node for made in step.calls] == ["kept"]
    last = engine.advance(
        definition, step.state, run_id="r", params={}, now=NOW, news=[ChildEnded("r-0", ok=True)]
    )
    assert last.end == RunFailed("Boom", "it broke", "plain")


def test_of_a_fan_that_is_canceled_what_went_well_is_undone() -> None:
    node = {
        "kind": "foreach",
        "service": "double",
        "prep": {"input_key": "$params.items"},
        "compensate": {"service": "echo"},
    }
    run = Run(chain(("f", node)), params={"items": [1, 2, 3]})
    run.go()
    run.go(run.work("run-0"))
    run.cancel()
    run.later(GRACE)
    assert undoings(run) == [("echo", "f", [2])]


def test_of_a_fan_that_failed_what_went_well_is_undone_too() -> None:
    node = {
        "kind": "foreach",
        "service": "odd_fails",
        "prep": {"input_key": "$params.items"},
        "compensate": {"service": "echo"},
    }
    flow = chain(("f", node), ("end", call("boom")))
    flow["edges"] = [edge("f", "error", "end")]
    assert undoings(play(flow, params={"items": [2, 1]})) == [("echo", "f", [20])]
    assert undoings(play(flow, params={"items": [1, 2]})) == []


def test_what_failed_and_what_completed_is_not_undone() -> None:
    failed = play(chain(("a", undone("boom"))))
    assert (failed.end, undoings(failed)) == (RunFailed("Boom", "it broke", "a"), [])
    completed = play(chain(("a", undone())))
    assert (completed.end, undoings(completed)) == (RunCompleted({}), [])


def test_a_compensation_may_prepare_its_input() -> None:
    how = {"prep": {"input_map": {"id": "$input.booking", "for": "$params.user", "n": "note"}}}
    flow = chain(("book", undone("book", how=how, post={"output_key": "b"})), ("x", call("boom")))
    run = play(flow, services=SHOP, params={"user": "ann"}, shared={"note": "!"})
    assert undoings(run) == [("echo", "book", {"id": 1, "for": "ann", "n": "!"})]


def test_a_compensation_that_fails_is_told_and_the_next_goes_on() -> None:
    flow = chain(("a", undone()), ("b", undone(by="boom")), ("c", call("boom")))
    run = play(flow)
    assert run.end == RunFailed("Boom", "it broke", "c")
    last = [note.data for note in run.notes if note.type == "node.finished"][-2:]
    assert [(data["node"], data["status"]) for data in last] == [("b", "error"), ("a", "ok")]
    assert last[0]["error"] == {"kind": "Boom", "message": "it broke"}


def test_each_round_of_a_loop_is_undone() -> None:
    flow = chain(("a", undone()), ("b", call()), max_steps=5)
    flow["edges"].append(edge("b", "default", "a"))
    run = play(flow)
    assert isinstance(run.end, RunFailed)
    assert [node for _, node, _ in undoings(run)] == ["a"] * 3


def test_what_a_subflow_did_is_undone_with_the_params_it_had() -> None:
    inner = chain(("i", undone(params={"deep": 1})))
    sub = {"kind": "subflow", "subflow": inner, "params": {"mid": 2}}
    run = play(chain(("s", sub), ("x", call("boom"))), params={"top": 3})
    assert run.made[-1].node == "s/i"
    assert run.made[-1].params == {"top": 3, "mid": 2, "deep": 1}


@pytest.mark.contract("S4-12")
def test_a_cancel_during_compensation_changes_only_the_ending() -> None:
    run = Run(STEPS, services=SHOP)
    step = run.go()
    while run.state.undoing is None:
        step = run.go(run.work(step.calls[0].id))
    canceled = run.cancel()
    assert (canceled.stop, canceled.calls, canceled.notes) == ((), (), ())
    run.play()
    assert run.end == RunCanceled()
    assert [made.service for made in run.made[-2:]] == ["refund", "unbook"]


def test_a_stale_letter_during_compensation_changes_nothing() -> None:
    run = Run(STEPS, services=SHOP)
    step = run.go()
    while run.state.undoing is None:
        step = run.go(run.work(step.calls[0].id))
    for child in ("run-0", "run-3", "run-9"):
        assert run.go(ChildEnded(child, ok=True)).calls == ()


LOOP = chain(("a", {"kind": "choice", "default_action": "again"}))
LOOP["edges"] = [edge("a", "again", "a")]


def test_a_loop_ends_at_the_limit_of_steps() -> None:
    run = play(LOOP | {"max_steps": 7})
    assert run.end == RunFailed("StepLimit", "more than 7 steps", "a")
    assert run.state.step_count == 7
    assert len(run.notes) == 7


def test_the_limit_is_ten_thousand_unless_said_otherwise() -> None:
    assert play(LOOP, forgetful=False).state.step_count == 10_000


def test_one_advance_takes_a_bounded_number_of_steps() -> None:
    run = Run(LOOP)
    step = run.go()
    assert (step.waiting_for, step.until) == ("timer", NOW)
    assert run.state.step_count == engine.INLINE_STEPS
    run.go()
    assert run.state.step_count == 2 * engine.INLINE_STEPS
    run.cancel()
    assert run.end == RunCanceled()


def test_a_run_whose_node_is_gone_fails_and_does_not_raise() -> None:
    other = parse(chain(("b", call())))
    gone = states.begin(other, at="a")
    step = engine.advance(other, gone, run_id="r", params={}, now=NOW)
    assert step.end == RunFailed("NoSuchNode", "the definition has no such node", "a")
    canceled = engine.advance(other, gone, run_id="r", params={}, now=NOW, news=[Cancel()])
    assert canceled.end == RunCanceled()


@pytest.mark.parametrize("outer", ["gone", "b"])
def test_a_run_whose_subflow_is_gone_fails_and_names_it(outer: str) -> None:
    definition = parse(chain(("b", call())))
    inside = states.RunState([states.Frame(node=outer, seq=1), states.Frame(node="i")])
    step = engine.advance(definition, inside, run_id="r", params={}, now=NOW)
    assert step.end == RunFailed("NoSuchNode", "the definition has no such node", f"{outer}/i")


def test_a_run_may_begin_at_another_node() -> None:
    definition = parse(chain(("a", call()), ("b", call())))
    begun = states.begin(definition, {"x": 1, "_rt": 1}, at="b")
    step = engine.advance(definition, begun, run_id="r", params={}, now=NOW)
    assert [made.node for made in step.calls] == ["b"]
    assert begun.frames[0].shared == {"x": 1}


def test_a_child_that_was_canceled_from_outside_fails_its_node() -> None:
    run = Run(chain(("a", call())))
    run.go()
    run.answer("run-0", ChildResult(fault=Fault(kind="canceled", message="by an operator")))
    assert run.end == RunFailed("canceled", "by an operator", "a")
