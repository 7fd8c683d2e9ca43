"""parallel and foreach: order, windows, failure strategies, and a journal that stays small."""

from __future__ import annotations

import random
from typing import Any

import pytest

from onward.faults import Fault
from onward.flow import state as states
from onward.flow.definition import parse
from onward.flow.nodes import fan
from onward.flow.step import ChildResult, RunCompleted, RunFailed
from tests.flow.simulated_run import Run, call, chain, edge, play


def foreach(service: str = "double", **more: Any) -> dict[str, Any]:
    return {
        "kind": "foreach",
        "service": service,
        "prep": {"input_key": "$shared.items"},
        "post": {"output_key": "out"},
        **more,
    }


def parallel(*services: str, **more: Any) -> dict[str, Any]:
    return {
        "kind": "parallel",
        "parallel_services": list(services),
        "prep": {"input_key": "$shared.n"},
        "post": {"output_key": "out"},
        **more,
    }


@pytest.mark.contract("S4-7", "S4-9")
def test_parallel_gives_the_same_input_to_each_and_keeps_their_order() -> None:
    run = play(chain(("p", parallel("double", "echo", "double"))), shared={"n": 4})
    assert run.shared["out"] == [8, 4, 8]
    assert [made.service for made in run.made] == ["double", "echo", "double"]
    assert [made.index for made in run.made] == [0, 1, 2]


@pytest.mark.contract("S4-9")
def test_sequential_is_one_after_the_other_and_the_default() -> None:
    run = play(chain(("p", parallel("echo", "echo", "echo"))), shared={"n": 4})
    assert run.most_open == 1
    assert [len(step.calls) for step in run.steps] == [1, 1, 1, 0]


@pytest.mark.contract("S4-9")
@pytest.mark.parametrize(("limit", "most"), [(None, 5), (2, 2), (9, 5)])
def test_concurrent_has_so_many_out_at_a_time(limit: int | None, most: int) -> None:
    node = foreach(parallel_mode="concurrent", max_parallel=limit)
    run = play(chain(("f", node)), shared={"items": [1, 2, 3, 4, 5]})
    assert run.most_open == most
    assert run.shared["out"] == [2, 4, 6, 8, 10]


@pytest.mark.contract("S4-9")
def test_results_are_in_order_however_they_come_in() -> None:
    node = foreach(parallel_mode="concurrent", max_parallel=7)
    run = Run(chain(("f", node)), shared={"items": list(range(40))})
    run.go()
    pick = random.Random(7)
    while run.end is None:
        some = pick.sample(sorted(run.open), pick.randint(1, len(run.open)))
        run.go(*(run.work(child) for child in some))
    assert run.shared["out"] == [2 * item for item in range(40)]
    assert run.most_open == 7


@pytest.mark.contract("S4-9")
@pytest.mark.parametrize("strategy", ["fail_fast", "ignore_errors"])
def test_nothing_to_do_is_an_empty_list(strategy: str) -> None:
    run = play(chain(("f", foreach(failure_strategy=strategy))), shared={"items": []})
    assert run.end == RunCompleted({"items": [], "out": []})
    assert run.made == []
    node = parallel(params={"services": []}, failure_strategy=strategy)
    assert play(chain(("p", node))).shared["out"] == []


@pytest.mark.contract("S4-9")
def test_fail_fast_begins_no_more_and_goes_on_with_what_there_is() -> None:
    node = foreach("odd_fails", failure_strategy="fail_fast")
    run = play(chain(("f", node), ("after", call())), shared={"items": [0, 2, 3, 4]})
    assert run.shared["out"] == [0, 20]
    assert len(run.made) == 4  # three items, and the node after
    assert run.trail("node", "status", "calls", "failed") == [
        ("f", "ok", 3, 1),
        ("after", "ok", None, None),
    ]


@pytest.mark.contract("S4-9")
def test_fail_fast_stops_what_is_out() -> None:
    node = foreach("odd_fails", parallel_mode="concurrent", max_parallel=3)
    run = Run(chain(("f", node)), shared={"items": [0, 1, 2, 4]})
    run.go()
    run.go(run.work("run-0"))
    step = run.go(run.work("run-1"))
    assert sorted(step.stop) == ["run-2", "run-3"]
    assert run.end == RunCompleted({"items": [0, 1, 2, 4], "out": [0]})
    assert run.rt["fe:f"]["done"] == [0]


@pytest.mark.contract("S4-6", "S4-9")
@pytest.mark.parametrize(
    ("service", "edges", "taken"),
    [
        ("odd_fails", ["error", "timeout"], "error"),
        ("slow", ["error", "timeout"], "timeout"),
        ("slow", ["error"], "error"),
        ("odd_fails", ["timeout"], None),
    ],
)
def test_fail_fast_takes_an_edge_for_failures_if_there_is_one(
    service: str, edges: list[str], taken: str | None
) -> None:
    node = foreach(service, post={"output_key": "out", "error_key": "why"})
    flow = chain(("f", node), ("well", call()), ("ill", call()))
    flow["edges"] = [edge("f", "default", "well"), *(edge("f", action, "ill") for action in edges)]
    run = play(flow, shared={"items": [1]})
    assert run.shared["out"] == []
    if taken is None:
        assert run.trail("node")[1] == ("well",)
        assert "why" not in run.shared
    else:
        assert run.trail() == [("f", "error", taken), ("ill", "ok", "default")]
        assert run.shared["why"]["node"] == "f"


@pytest.mark.contract("S4-9")
def test_collect_errors_has_results_and_errors_at_their_places() -> None:
    node = foreach("odd_fails", failure_strategy="collect_errors", parallel_mode="concurrent")
    run = play(chain(("f", node)), shared={"items": [0, 1, 2, 3]})
    broke = {"error": {"kind": "Boom", "message": "it broke"}}
    assert run.shared["out"] == [0, broke, 20, broke]
    assert run.trail() == [("f", "ok", "default")]


@pytest.mark.contract("S4-9")
@pytest.mark.parametrize("mode", ["sequential", "concurrent"])
def test_ignore_errors_has_only_what_went_well_in_order(mode: str) -> None:
    node = foreach("odd_fails", failure_strategy="ignore_errors", parallel_mode=mode)
    run = play(chain(("f", node)), shared={"items": [4, 1, 2, 3, 0]})
    assert run.shared["out"] == [40, 20, 0]
    everything = chain(("p", parallel("boom", "boom", failure_strategy="ignore_errors")))
    assert play(everything).shared["out"] == []


def test_results_are_asked_for_once_at_the_end() -> None:
    run = play(chain(("f", foreach())), shared={"items": [1, 2, 3]})
    assert run.needed == [("run-0", "run-1", "run-2")]


def test_the_journal_holds_no_items_and_no_results() -> None:
    items = [f"a rather long item, number {n}" for n in range(500)]
    node = foreach("echo", parallel_mode="concurrent", max_parallel=8)
    node["prep"] = {"input_key": "$params.items"}
    run = Run(chain(("f", node)), params={"items": items})
    run.go()
    for _ in range(400):
        run.go(run.work(next(iter(run.open))))
    assert len(states.encode(run.state)) < 400


@pytest.mark.contract("S4-7")
def test_the_records_of_a_fan_can_be_read() -> None:
    node = foreach(
        "odd_fails", parallel_mode="concurrent", max_parallel=2, failure_strategy="ignore_errors"
    )
    run = Run(chain(("f", node), ("p", parallel("echo", "boom"))), shared={"items": [0, 1, 2, 4]})
    run.go()
    run.go(run.work("run-0"), run.work("run-1"))
    assert run.rt["fe:f"] == {
        "done": [0],
        "errs": [1],
        "idx": 4,
        "mode": "concurrent",
        "max": 2,
        "strategy": "ignore_errors",
    }
    run.play()
    assert run.rt["fe:f"]["done"] == [0, 2, 3]
    assert run.rt["pl:p"] == {
        "done": [0],
        "errs": [1],
        "mode": "sequential",
        "max": 1,
        "strategy": "fail_fast",
    }


@pytest.mark.contract("S4-7")
@pytest.mark.parametrize("services", [["echo", "double"], "$shared.chosen", "$params.chosen"])
def test_services_may_stand_in_params_or_where_they_point(services: Any) -> None:
    node = parallel(params={"services": services})
    chosen = ["echo", "double"]
    run = play(chain(("p", node)), shared={"n": 1, "chosen": chosen}, params={"chosen": chosen})
    assert run.shared["out"] == [1, 2]


@pytest.mark.parametrize("found", [None, "echo", [1], {"a": "echo"}])
def test_services_that_are_no_list_of_texts_fail_the_node(found: Any) -> None:
    node = parallel(params={"services": "$shared.chosen"})
    run = play(chain(("p", node)), shared={"chosen": found})
    assert run.end == RunFailed("InvalidInput", "params.services leads to no list of texts", "p")


@pytest.mark.parametrize(("shared", "what"), [({}, "nothing"), ({"items": {"a": 1}}, "an object")])
def test_foreach_over_no_list_fails_the_node(shared: dict[str, Any], what: str) -> None:
    run = play(chain(("f", foreach())), shared=shared)
    assert run.end == RunFailed(
        "InvalidInput", f"$shared.items leads to {what}, not to a list", "f"
    )


def test_too_many_items_fail_the_node() -> None:
    run = play(chain(("f", foreach())), shared={"items": [0] * (fan.MAX_CALLS + 1)})
    assert isinstance(run.end, RunFailed)
    assert run.end.kind == "LimitExceeded"


@pytest.mark.parametrize("strategy", ["fail_fast", "ignore_errors", "collect_errors"])
def test_results_that_are_too_large_together_fail_the_node(
    monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    monkeypatch.setattr(fan, "MAX_RESULTS", 100)
    node = foreach("echo", parallel_mode="concurrent", max_parallel=2, failure_strategy=strategy)
    run = play(chain(("f", node)), shared={"items": ["x" * 40] * 9})
    assert isinstance(run.end, RunFailed)
    assert (run.end.kind, run.end.node) == ("LimitExceeded", "f")
    assert run.end.message.startswith("the results of 3 calls have 126 characters, more than 100")
    assert (len(run.made), run.stopped) == (4, ["run-3"])
    assert run.needed == [], "nothing of them was even read"
    assert "out" not in run.shared


def test_results_that_are_too_large_may_take_an_edge_and_are_undone_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fan, "MAX_RESULTS", 100)
    node = foreach("echo", compensate={"service": "echo"})
    flow = chain(("f", node), ("well", call()))
    flow["nodes"]["bad"] = call("boom")
    flow["edges"].append(edge("f", "error", "bad"))
    run = play(flow, shared={"items": ["x" * 40] * 9})
    assert isinstance(run.end, RunFailed)
    assert run.end.kind == "Boom"
    assert run.made[-1].purpose == "compensation"
    assert run.made[-1].input == ["x" * 40] * 3
    assert "out" not in run.shared


def test_errors_count_as_results_where_they_are_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fan, "MAX_RESULTS", 100)
    node = foreach("boom", failure_strategy="collect_errors")
    run = play(chain(("f", node)), shared={"items": [0] * 9})
    assert isinstance(run.end, RunFailed)
    assert run.end.kind == "LimitExceeded"
    assert len(run.made) < 9


def test_a_fan_in_a_loop_has_fresh_children_each_time() -> None:
    flow = chain(("f", foreach("echo", post={"output_key": "items"})), ("n", call("echo")))
    flow["edges"].append(edge("n", "default", "f"))
    run = play(flow | {"max_steps": 6}, shared={"items": [1, 2]})
    assert isinstance(run.end, RunFailed)
    assert len(run.made) == len({made.id for made in run.made}) == 9


def test_letters_of_a_fan_that_is_over_change_nothing() -> None:
    node = foreach("odd_fails", parallel_mode="concurrent", max_parallel=2)
    run = Run(chain(("f", node), ("n", call())), shared={"items": [1, 2]})
    run.go()
    run.go(run.work("run-0"))
    standing = run.state
    late = run.answer("run-1", ChildResult(fault=Fault(kind="canceled", message="stopped")))
    assert (late.calls, late.notes) == ((), ())
    assert late.state == standing


@pytest.mark.parametrize("node", [foreach("echo"), parallel("echo", "echo", "echo")])
@pytest.mark.parametrize(
    ("said", "at_once"),
    [
        ({"max_parallel": 2}, 2),
        ({"max_parallel": 2, "parallel_mode": "concurrent"}, 2),
        ({"parallel_mode": "concurrent"}, 3),
        ({"max_parallel": 2, "parallel_mode": "sequential"}, 1),
        ({"max_parallel": 0}, 1),
        ({}, 1),
    ],
)
def test_how_many_at_a_time_means_at_a_time(
    node: dict[str, Any], said: dict[str, Any], at_once: int
) -> None:
    run = play(chain(("f", {**node, **said})), shared={"items": [1, 2, 3], "n": 1})
    assert run.most_open == at_once


def test_a_number_at_a_time_that_is_overruled_is_doubted() -> None:
    said = {"max_parallel": 8, "parallel_mode": "sequential"}
    (doubt,) = parse(chain(("f", foreach("echo", **said)))).warnings
    assert (doubt.node, doubt.field) == ("f", "max_parallel")
    assert "did you mean 'concurrent'?" in doubt.message
    assert parse(chain(("f", foreach("echo", max_parallel=8)))).warnings == ()
