"""executor, local, flow_ref: one call, its input and output, and which edge is taken."""

from __future__ import annotations

from typing import Any

import pytest

from onward.faults import Fault
from onward.flow.step import ChildResult, RunCompleted, RunFailed
from tests.flow.simulated_run import Run, call, chain, edge, play


@pytest.mark.contract("S4-6")
def test_input_comes_from_params_and_output_goes_into_shared() -> None:
    node = call("double", prep={"input_key": "$params.n"}, post={"output_key": "twice"})
    run = play(chain(("a", node)), params={"n": 21})
    assert run.end == RunCompleted({"twice": 42})
    assert run.trail() == [("a", "ok", "default")]


@pytest.mark.contract("S4-6")
@pytest.mark.parametrize("path", ["x", "$shared.x", "deep.er.0", "$shared.deep.er.0", "dotted.key"])
def test_a_bare_name_and_a_shared_path_lead_to_the_same(path: str) -> None:
    node = call("echo", prep={"input_key": path}, post={"output_key": "got"})
    shared = {"x": 7, "deep": {"er": [7]}, "dotted.key": 7}
    assert play(chain(("a", node)), shared=shared).shared["got"] == 7


@pytest.mark.contract("S4-6")
def test_an_input_map_makes_an_object_of_what_is_there() -> None:
    prep = {"input_map": {"n": "$params.n", "x": "$shared.a.b", "gone": "nowhere"}}
    node = call("echo", prep=prep, post={"output_key": "got"})
    run = play(chain(("a", node)), params={"n": 1}, shared={"a": {"b": 2}})
    assert run.shared["got"] == {"n": 1, "x": 2}


@pytest.mark.contract("S4-6")
def test_in_a_map_beside_a_key_input_is_what_the_key_found() -> None:
    prep = {"input_key": "$shared.doc", "input_map": {"size": "$input.size"}}
    node = call("echo", prep=prep, post={"output_key": "got"})
    run = play(chain(("a", node)), shared={"doc": {"size": 3, "text": "…"}})
    assert run.shared["got"] == {"size": 3}


@pytest.mark.contract("S4-6")
def test_an_output_map_copies_fields_of_the_result() -> None:
    post = {"output_key": "all", "output_map": {"id": "order.id", "first": "lines.0", "no": "gone"}}
    result = {"order": {"id": 9}, "lines": ["a", "b"]}
    run = play(chain(("a", call("get", post=post))), services={"get": lambda _, __: result})
    assert run.shared == {"all": result, "id": 9, "first": "a"}


@pytest.mark.contract("S4-6")
def test_a_nodes_params_go_over_the_tasks() -> None:
    node = call("params", params={"mode": "node", "b": 2}, post={"output_key": "got"})
    run = play(chain(("a", node)), params={"mode": "task", "a": 1})
    assert run.shared["got"] == {"mode": "node", "a": 1, "b": 2}


@pytest.mark.contract("S4-6")
def test_the_settings_of_a_node_are_those_of_its_call() -> None:
    node = call(
        max_retries=2,
        wait_ms=50,
        max_attempts=3,
        attempt_delay_ms=70,
        weighted_by_load=True,
        timeout_ms=900,
    )
    run = Run(chain(("a", node)))
    (made,) = run.go().calls
    assert (made.id, made.kind, made.node, made.index, made.seq) == ("run-0", "service", "a", 0, 1)
    assert (made.tries, made.workers, made.timeout_ms) == (3, 3, 900)
    assert (made.wait_ms, made.attempt_delay_ms, made.weighted_by_load) == (50, 70, True)


BRANCHING = {
    "start": "A",
    "nodes": {
        "A": call("route", post={"output_key": "routed", "action_key": "action"}),
        "B": call("double", prep={"input_key": "$params.n"}, post={"output_key": "out"}),
        "C": call("echo", prep={"input_key": "$params.n"}, post={"output_key": "out"}),
    },
    "edges": [edge("A", "goB", "B"), edge("A", "goC", "C")],
}


@pytest.mark.contract("S4-6", "S4-13")
@pytest.mark.parametrize(("action", "node", "out"), [("goB", "B", 10), ("goC", "C", 5)])
def test_a_result_names_the_branch(action: str, node: str, out: int) -> None:
    run = play(BRANCHING, params={"action": action, "n": 5})
    assert run.trail() == [("A", "ok", action), (node, "ok", "default")]
    assert run.shared["out"] == out


POSTS: list[tuple[dict[str, Any], str]] = [
    ({"post": {"action_static": "fixed", "action_key": "action"}}, "fixed"),
    ({"post": {"action_key": "action"}}, "said"),
    ({"post": {"action_key": "word"}}, "from shared"),
    ({"post": {"action_key": "$shared.word"}}, "from shared"),
    ({"post": {"action_key": "yes"}}, "true"),
    ({"post": {"action_key": "number"}}, "7"),
    ({"post": {"action_key": "many"}, "default_action": "fallback"}, "fallback"),
    ({"post": {"action_key": "empty"}, "default_action": "fallback"}, "fallback"),
    ({"default_action": "fallback"}, "fallback"),
    ({}, "default"),
]


@pytest.mark.contract("S4-6")
@pytest.mark.parametrize(("fields", "action"), POSTS)
def test_where_the_action_comes_from(fields: dict[str, Any], action: str) -> None:
    result = {"action": "said", "yes": True, "many": [1], "empty": "", "number": 7}
    services = {"get": lambda _, __: result}
    run = play(
        chain(("a", call("get", **fields))), services=services, shared={"word": "from shared"}
    )
    assert run.trail("action") == [(action,)]
    assert run.state.last_action == action


@pytest.mark.contract("S4-6")
def test_an_action_without_an_edge_takes_the_default_one_and_none_ends_the_flow() -> None:
    flow = chain(("a", call(post={"action_static": "odd"})), ("b", call()))
    assert play(flow).trail() == [("a", "ok", "odd"), ("b", "ok", "default")]
    flow["edges"] = [edge("a", "even", "b")]
    assert play(flow).trail() == [("a", "ok", "odd")]


@pytest.mark.contract("S4-6")
def test_an_empty_action_on_an_edge_is_the_default_one() -> None:
    flow = {"start": "a", "nodes": {"a": call(), "b": call()}, "edges": [edge("a", "", "b")]}
    assert [node for (node,) in play(flow).trail("node")] == ["a", "b"]


def failing(service: str, *edges: dict[str, str], **more: Any) -> dict[str, Any]:
    nodes = {"a": call(service, **more), "well": call(), "error": call(), "timeout": call()}
    return {"start": "a", "nodes": nodes, "edges": list(edges)}


TO_WELL, TO_ERROR, TO_TIMEOUT = (
    edge("a", "default", "well"),
    edge("a", "error", "error"),
    edge("a", "timeout", "timeout"),
)


@pytest.mark.contract("S4-6", "S4-14")
@pytest.mark.parametrize(
    ("service", "edges", "follows"),
    [
        ("boom", (TO_WELL, TO_ERROR, TO_TIMEOUT), "error"),
        ("boom", (TO_WELL, TO_TIMEOUT), None),
        ("boom", (TO_WELL,), None),
        ("boom", (), None),
        ("slow", (TO_WELL, TO_ERROR, TO_TIMEOUT), "timeout"),
        ("slow", (TO_WELL, TO_ERROR), "error"),
        ("slow", (TO_WELL,), None),
    ],
)
def test_a_failure_takes_its_own_edge_and_never_the_default_one(
    service: str, edges: tuple[dict[str, str], ...], follows: str | None
) -> None:
    run = play(failing(service, *edges))
    if follows is None:
        assert isinstance(run.end, RunFailed)
        assert run.end.node == "a"
        assert run.trail() == [("a", "error", None)]
    else:
        assert isinstance(run.end, RunCompleted)
        assert run.trail() == [("a", "error", follows), (follows, "ok", "default")]


@pytest.mark.contract("S4-6")
def test_a_fixed_action_does_not_hide_a_failure() -> None:
    flow = failing("boom", edge("a", "on", "well"), post={"action_static": "on"})
    assert play(flow).end == RunFailed("Boom", "it broke", "a")


@pytest.mark.contract("S4-14")
def test_the_error_is_written_where_the_node_says() -> None:
    run = play(failing("boom", TO_ERROR, post={"error_key": "why", "output_key": "out"}))
    assert run.shared == {"why": {"kind": "Boom", "message": "it broke", "node": "a"}}


def test_only_what_is_needed_is_asked_for_and_in_one_go() -> None:
    run = play(chain(("a", call()), ("b", call())))
    assert run.needed == [("run-0",), ("run-1",)]


def test_a_stale_letter_changes_nothing() -> None:
    run = Run(chain(("a", call()), ("b", call())))
    run.go()
    first = run.work("run-0")
    waiting = run.go(first)
    assert [made.id for made in waiting.calls] == ["run-1"]
    again = run.go(first)
    assert (again.calls, again.notes, again.need) == ((), (), ())
    assert again.state == waiting.state
    stranger = run.answer("another-7", ChildResult("forged"))
    assert (stranger.calls, stranger.notes, stranger.state) == ((), (), waiting.state)


def test_a_child_that_was_replayed_meanwhile_counts_by_what_it_says_now() -> None:
    run = Run(chain(("a", call(post={"output_key": "out"}))))
    run.go()
    letter = run.work("run-0")
    run.answers["run-0"] = ChildResult("mended")
    run.go(type(letter)(letter.child, ok=False))
    assert run.end == RunCompleted({"out": "mended"})


@pytest.mark.contract("S4-7")
def test_local_is_a_call_as_well() -> None:
    node = call("double", kind="local", prep={"input_key": "n"}, post={"output_key": "n"})
    run = play(chain(("a", node)), shared={"n": 4})
    assert run.end == RunCompleted({"n": 8})
    assert run.trail("kind", "child") == [("local", "run-0")]


@pytest.mark.contract("S4-7")
def test_a_flow_ref_is_a_run_of_that_flow_and_its_shared_state_is_the_result() -> None:
    node = {
        "kind": "flow_ref",
        "params": {"flow": "billing", "version": 3, "x": 1},
        "prep": {"input_key": "$params.order"},
        "post": {"output_key": "bill"},
    }
    run = Run(chain(("a", node)), params={"order": {"id": 1}, "tenant": "t"})
    (made,) = run.go().calls
    assert (made.kind, made.flow, made.version, made.service) == ("flow", "billing", 3, None)
    assert made.input == {"id": 1}
    assert made.params == {"order": {"id": 1}, "tenant": "t", "x": 1}
    run.answer(made.id, ChildResult({"total": 12}))
    assert run.end == RunCompleted({"bill": {"total": 12}})


def test_a_flow_ref_that_fails_fails_its_node() -> None:
    run = Run(chain(("a", {"kind": "flow_ref", "params": {"flow": "f"}})))
    (made,) = run.go().calls
    run.answer(made.id, ChildResult(fault=Fault(kind="StepLimit", message="more than 10 steps")))
    assert run.end == RunFailed("StepLimit", "more than 10 steps", "a")


def test_calls_are_told_with_their_child_and_without_their_values() -> None:
    run = play(
        chain(("a", call(prep={"input_key": "n"}, post={"output_key": "m"}))), shared={"n": 1}
    )
    about = {"seq": 1, "node": "a", "kind": "executor", "child": "run-0"}
    assert [(note.type, note.data) for note in run.notes] == [
        ("node.started", about),
        ("node.finished", {**about, "status": "ok", "action": "default"}),
    ]
