"""subflow: a graph in a node, with a shared state and failures of its own."""

from __future__ import annotations

from typing import Any

import pytest

from onward.flow.step import RunCompleted, RunFailed, Signal
from tests.flow.simulated_run import Run, call, chain, edge, play


def sub(graph: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"kind": "subflow", "subflow": graph, **more}


DOUBLING = chain(
    ("one", call("double", prep={"input_key": "n"}, post={"output_key": "n"})),
    ("two", call("double", prep={"input_key": "n"}, post={"output_key": "n"})),
)


@pytest.mark.contract("S4-7")
def test_a_subflow_has_a_shared_state_of_its_own_and_gives_it_back() -> None:
    node = sub(DOUBLING, prep={"input_map": {"n": "$shared.x"}}, post={"output_key": "got"})
    run = play(chain(("s", node), ("after", call())), shared={"x": 3, "n": 100})
    assert run.shared == {"x": 3, "n": 100, "got": {"n": 12}}
    assert run.trail("node", "action") == [
        ("s/one", "default"),
        ("s/two", "default"),
        ("s", "default"),
        ("after", "default"),
    ]
    assert [made.node for made in run.made] == ["s/one", "s/two", "after"]


@pytest.mark.contract("S4-7")
@pytest.mark.parametrize(("given", "begins"), [({"a": 1}, {"a": 1}), ([1], {}), (None, {})])
def test_it_begins_with_its_input_if_that_is_an_object(given: Any, begins: Any) -> None:
    inner = chain(("i", call("echo", prep={"input_key": "$input"}, post={"output_key": "seen"})))
    node = sub(inner, prep={"input_key": "$params.given"}, post={"output_key": "got"})
    run = play(chain(("s", node)), params={"given": given})
    assert run.shared["got"] == begins | {"seen": given}


@pytest.mark.contract("S4-7")
def test_its_params_are_those_around_it_with_its_own_over_them() -> None:
    inner = chain(("i", call("params", params={"c": 3}, post={"output_key": "seen"})))
    run = play(
        chain(("s", sub(inner, params={"b": 2}, post={"output_map": {"seen": "seen"}}))),
        params={"a": 1, "b": 1, "c": 1},
    )
    assert run.shared["seen"] == {"a": 1, "b": 2, "c": 3}


@pytest.mark.contract("S4-7")
def test_the_parents_post_chooses_the_way_on() -> None:
    inner = chain(("i", call("echo", prep={"input_key": "w"}, post={"output_key": "way"})))
    node = sub(inner, prep={"input_key": "$params"}, post={"action_key": "way"})
    flow: dict[str, Any] = {"start": "s", "nodes": {"s": node, "l": call(), "r": call()}}
    flow["edges"] = [edge("s", "left", "l"), edge("s", "right", "r")]
    assert play(flow, params={"w": "right"}).trail("node")[-1] == ("r",)


@pytest.mark.contract("S4-7")
def test_where_a_subflow_stands_can_be_read() -> None:
    node = sub(DOUBLING, prep={"input_key": "$params"}, post={"output_key": "got"})
    run = Run(chain(("s", node), ("last", call())), params={"n": 1})
    run.go()
    run.go(run.work("run-0"))
    assert run.visible == {"_rt": {"sf:s": {"curr": "two", "shared": {"n": 2}, "last": "default"}}}
    run.go(run.work("run-1"))
    assert run.rt["sf:s"] == {"curr": "two", "shared": {"n": 4}, "last": "default"}


def nested(levels: int, node: dict[str, Any]) -> dict[str, Any]:
    return chain(("n", node if levels == 0 else sub(nested(levels - 1, node))))


def test_records_of_inner_graphs_stay_inside() -> None:
    run = Run(nested(2, {"kind": "wait_event"}))
    run.go()
    inner = run.rt["sf:n"]["shared"]["_rt"]["sf:n"]["shared"]
    assert list(inner["_rt"]) == ["we:n"]


@pytest.mark.contract("S4-10")
@pytest.mark.parametrize("name", ["n", "n/n/n"])
def test_a_signal_reaches_a_node_inside_by_key_or_path(name: str) -> None:
    run = Run(nested(2, {"kind": "wait_event"}))
    run.go(Signal(name))
    assert run.end == RunCompleted({})


@pytest.mark.contract("S4-6")
def test_a_failure_inside_looks_for_an_edge_inside_and_then_around() -> None:
    caught = chain(("i", call("boom")), ("mend", call()))
    caught["edges"] = [edge("i", "error", "mend")]
    run = play(chain(("s", sub(caught))))
    assert run.trail("node", "status") == [("s/i", "error"), ("s/mend", "ok"), ("s", "ok")]

    flow = chain(("s", sub(nested(1, call("boom")), post={"error_key": "why"})), ("mend", call()))
    flow["edges"] = [edge("s", "default", "s"), edge("s", "error", "mend")]
    run = play(flow)
    assert isinstance(run.end, RunCompleted)
    assert run.trail() == [
        ("s/n/n", "error", None),
        ("s/n", "error", None),
        ("s", "error", "error"),
        ("mend", "ok", "default"),
    ]
    assert run.shared["why"]["node"] == "s/n/n"


@pytest.mark.contract("S4-6")
def test_a_timeout_inside_is_a_timeout_around() -> None:
    flow = chain(("s", sub(chain(("i", call("slow"))))), ("late", call()))
    flow["edges"] = [edge("s", "timeout", "late"), edge("s", "error", "s")]
    assert play(flow).trail()[-1] == ("late", "ok", "default")


@pytest.mark.contract("S4-6")
def test_an_uncaught_failure_fails_the_run_and_names_the_inner_node() -> None:
    run = play(chain(("s", sub(nested(1, call("boom")))), ("never", call())))
    assert run.end == RunFailed("Boom", "it broke", "s/n/n")
    assert run.shared == {}


def test_a_subflow_in_a_loop_begins_anew_each_time() -> None:
    count = chain(("i", call("seen", prep={"input_key": "$shared"}, post={"output_key": "x"})))
    seen: list[Any] = []
    flow = chain(("s", sub(count)), ("n", call()))
    flow["edges"].append(edge("n", "default", "s"))
    play(flow | {"max_steps": 8}, services={"seen": lambda value, _: seen.append(value)})
    assert seen == [{}, {}, {}]


def test_nodes_inside_count_as_steps() -> None:
    run = play(nested(3, call()))
    assert run.state.step_count == 4
    assert run.trail("seq") == [(4,), (3,), (2,), (1,)]
