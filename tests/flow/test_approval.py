"""approval: a person decides. Every other way in is tried here, and none leads anywhere."""

from __future__ import annotations

from typing import Any

import pytest

from onward.faults import Fault
from onward.flow.definition import DefinitionFaults, parse
from onward.flow.step import ChildEnded, ChildResult, RunCompleted, RunFailed, Signal
from tests.flow.simulated_run import Run, call, chain, edge, play
from tests.support import NOW

# As the seed has it.
APPROVAL = {
    "kind": "approval",
    "params": {"approval_key": "$shared.approval"},
    "post": {"action_key": "approval"},
}


def asking(node: dict[str, Any] | None = None, *actions: str) -> dict[str, Any]:
    nodes = {"ask": node or APPROVAL, **{action: call() for action in actions}}
    edges = [edge("ask", action, action) for action in actions]
    return {"start": "ask", "nodes": nodes, "edges": edges}


BOTH = ("approved", "rejected")


@pytest.mark.contract("S4-7", "S4-10")
def test_a_person_is_asked_by_a_child_of_its_own() -> None:
    node = APPROVAL | {
        "params": {"approval_key": "approval", "reason": "too dear", "timeout_ms": 900},
        "prep": {"input_key": "$params.order"},
    }
    run = Run(asking(node, *BOTH), params={"order": {"sum": 900}, "secret": 1})
    step = run.go()
    (question,) = step.calls
    assert (question.kind, question.input, question.service) == ("approval", {"sum": 900}, None)
    assert (question.reason, question.timeout_ms) == ("too dear", 900)
    assert "secret" not in question.params
    # Not "approval": a task that itself waits for that is woken by no letter.
    assert (step.waiting_for, step.until) == ("children", NOW + 900)
    assert run.rt == {"ap:ask": {"start": NOW}}


@pytest.mark.contract("S4-7", "S4-10")
@pytest.mark.parametrize("word", BOTH)
def test_what_the_person_says_is_written_and_leads_on(word: str) -> None:
    run = Run(asking(None, *BOTH))
    run.go()
    step = run.approve() if word == "approved" else run.reject()
    assert [made.node for made in step.calls] == [word]
    assert run.shared["approval"] == word
    assert run.rt["ap:ask"]["decision"] == word
    assert run.trail() == [("ask", "ok", word)]


def test_who_decided_can_be_kept() -> None:
    node = APPROVAL | {"post": {"output_key": "decision"}}
    run = Run(asking(node))
    run.go()
    run.approve(by="ann")
    assert run.shared["decision"] == {"by": "ann", "decision": "approved"}


FORGED: dict[str, Any] = {
    "approval": True,
    "approved": True,
    "from_data": True,
    "decision": "approved",
    "ask": "approved",
    "_rt": {"ap:ask": {"decision": "approved"}},
    "_rt.ap:ask": {"decision": "approved"},
}


@pytest.mark.contract("S4-10")
@pytest.mark.parametrize("key", ["$shared.approval", "$params.approval", "$input.approval"])
def test_no_data_can_approve(key: str) -> None:
    ask = APPROVAL | {"params": {"approval_key": key}, "prep": {"input_key": "$params"}}
    worker = call(
        "forge", post={"output_key": "approval", "output_map": {"from_data": "from_data"}}
    )
    flow = chain(("worker", worker), ("ask", ask), ("after", call()))
    run = Run(flow, params=FORGED, shared=FORGED, services={"forge": lambda _, __: FORGED})
    run.go()
    step = run.go(run.work("run-0"))
    for name in ("ask", "approval", "approved", "$shared.approval", "_rt"):
        step = run.signal(name, "approved")
    for stranger in ("run-0", "run-2", "run-1x", "approval", ""):
        run.answers[stranger] = ChildResult("approved")
        step = run.go(ChildEnded(stranger, ok=True))
    assert (run.end, step.waiting_for) == (None, "children")
    assert run.state.frames[0].node == "ask"
    run.reject()
    assert isinstance(run.end, RunFailed)


@pytest.mark.contract("S4-10")
def test_a_rejection_is_not_talked_away_by_what_lies_in_shared() -> None:
    node = {"kind": "approval", "post": {"action_key": "way"}}
    run = Run(asking(node, *BOTH), shared={"way": "approved"}, params={"way": "approved"})
    run.go()
    step = run.reject()
    assert [made.node for made in step.calls] == ["rejected"]


@pytest.mark.contract("S4-10")
def test_an_approvers_remark_chooses_no_branch() -> None:
    run = Run(asking(None, *BOTH, "free"))
    (question,) = run.go().calls
    step = run.answer(question.id, ChildResult({"approval": "free", "decision": "free"}))
    assert [made.node for made in step.calls] == ["approved"]


@pytest.mark.contract("S4-10")
@pytest.mark.parametrize("post", [{}, {"action_static": "on"}, {"action_key": "approval"}])
def test_a_rejection_does_not_go_on_along_the_default_edge(post: dict[str, str]) -> None:
    flow = chain(("ask", APPROVAL | {"post": post}), ("publish", call()))
    flow["edges"].append(edge("ask", "on", "publish"))
    run = Run(flow)
    run.go()
    run.reject()
    assert run.end == RunFailed("Rejected", "not like this", "ask")
    assert run.shared["approval"] == "rejected"
    approved = Run(flow)
    approved.go()
    assert [made.node for made in approved.approve().calls] == ["publish"]


@pytest.mark.parametrize(
    ("edges", "taken"),
    [
        (("approved", "default"), "default"),
        (("default", "error"), "error"),
        (("approved", "error"), "error"),
        (("approved", "rejected", "error", "default"), "rejected"),
    ],
)
def test_a_rejection_takes_an_edge_that_tells_it_from_an_approval(
    edges: tuple[str, ...], taken: str
) -> None:
    run = Run(asking(None, *edges))
    run.go()
    assert [made.node for made in run.reject().calls] == [taken]


def test_a_rejection_at_the_very_end_is_an_end_but_not_inside_a_subflow() -> None:
    run = Run(asking())
    run.go()
    run.reject()
    assert run.end == RunCompleted({"approval": "rejected"})
    inside = Run(chain(("sub", {"kind": "subflow", "subflow": asking()}), ("publish", call())))
    inside.go()
    inside.reject()
    assert inside.end == RunFailed("Rejected", "not like this", "sub/ask")


@pytest.mark.contract("S4-6", "S4-10")
def test_an_unanswered_question_takes_the_timeout_edge() -> None:
    node = APPROVAL | {"params": {"approval_key": "approval", "timeout_ms": 500}}
    run = Run(asking(node, "approved", "default", "timeout"))
    run.go()
    step = run.later(500)
    assert step.stop == ("run-0",)
    assert [made.node for made in step.calls] == ["timeout"]
    late = run.go(ChildEnded("run-0", ok=True))
    assert (late.calls, late.notes) == ((), ())


def test_a_word_in_the_last_moment_counts() -> None:
    node = APPROVAL | {"params": {"timeout_ms": 500}}
    run = Run(asking(node, "approved", "timeout"))
    run.go()
    run.now += 500
    assert [made.node for made in run.approve().calls] == ["approved"]


def test_a_question_that_expired_in_the_ledger_is_a_timeout_and_another_end_a_failure() -> None:
    for kind, taken in (("timeout", "timeout"), ("canceled", "error")):
        run = Run(asking(None, *BOTH, "error", "timeout"))
        (question,) = run.go().calls
        step = run.answer(question.id, ChildResult(fault=Fault(kind=kind, message="…")))
        assert [made.node for made in step.calls] == [taken]


@pytest.mark.contract("S4-10")
@pytest.mark.parametrize(
    ("value", "word"),
    [
        (True, "approved"),
        ("Approved", "approved"),
        (" yes ", "approved"),
        (False, "rejected"),
        ("rejected", "rejected"),
        ("no", "rejected"),
    ],
)
def test_a_decision_made_elsewhere_is_taken_where_the_definition_says_so(
    value: Any, word: str
) -> None:
    node = APPROVAL | {"params": {"approval_key": "$shared.approval", "from_data": True}}
    run = play(asking(node, *BOTH), shared={"approval": value})
    assert [made.node for made in run.made] == [word]
    assert run.shared["approval"] == word


@pytest.mark.contract("S4-10")
@pytest.mark.parametrize("value", [None, 1, "", "perhaps", ["approved"], {"approved": True}])
def test_what_is_no_decision_is_still_asked(value: Any) -> None:
    node = APPROVAL | {"params": {"approval_key": "$shared.approval", "from_data": True}}
    run = Run(asking(node, *BOTH), shared={"approval": value})
    assert [made.kind for made in run.go().calls] == ["approval"]


@pytest.mark.contract("S4-10")
@pytest.mark.parametrize("from_data", ["true", 1, "$params.from_data", [True]])
def test_from_data_is_the_definitions_own_word(from_data: Any) -> None:
    node = APPROVAL | {"params": {"approval_key": "a", "from_data": from_data}}
    with pytest.raises(DefinitionFaults, match=r"node 'ask': params.from_data must be true or fal"):
        parse(asking(node))


def test_a_signal_meant_for_an_event_is_not_eaten_by_an_approval() -> None:
    wait = {"kind": "wait_event", "params": {"signal_key": "approval"}}
    run = Run(chain(("ask", APPROVAL), ("approval", wait)))
    run.go(Signal("approval", "sent"))
    run.approve()
    assert run.end == RunCompleted({"approval": "sent"})
