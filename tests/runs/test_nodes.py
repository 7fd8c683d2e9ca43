"""Nodes that call: executor, subflow, local, flow_ref, and the ways they end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onward.flow.executor import MAX_NESTED
from tests.runs.flow_app import HELD, Broken, FlowApp, call, chain, counted, edge, open_flow_app
from tests.support import wait_until


@pytest.mark.contract("S4-6", "S4-8", "S4-13")
@pytest.mark.parametrize(("way", "out"), [("goB", "HI"), ("goC", 2)])
async def test_the_branching_flow_of_the_demo(flows: FlowApp, way: str, out: Any) -> None:
    await flows.serve()
    definition = {
        "start": "route",
        "nodes": {
            "route": call("route", post={"action_key": "action"}),
            "B": call("upper", "$params.text", "result"),
            "C": call("add", "$params.n", "result"),
        },
        "edges": [edge("route", "goB", "B"), edge("route", "goC", "C")],
    }
    run = await flows.run(definition, params={"action": way, "text": "hi", "n": 1})
    assert (run["state"], run["result"]) == ("succeeded", {"result": out})
    assert await flows.trail(run["id"]) == [("route", "ok", way), (way[-1], "ok", "default")]


@pytest.mark.contract("S4-6")
async def test_params_are_merged_and_inputs_and_outputs_mapped(flows: FlowApp) -> None:
    await flows.serve()
    node = {
        "kind": "executor",
        "service": "params",
        "params": {"b": 2, "c": 3},
        "prep": {"input_map": {"x": "$params.a", "y": "$shared.deep.y", "z": "$shared.no"}},
        "post": {"output_map": {"got": "c", "lost": "nothing"}},
    }
    run = await flows.run(chain(("a", node)), params={"a": 1, "b": 1}, shared={"deep": {"y": [0]}})
    assert run["result"] == {"deep": {"y": [0]}, "got": 3}
    assert flows.seen == [("params", {"x": 1, "y": [0]}, {"a": 1, "b": 2, "c": 3})]


@pytest.mark.contract("S4-6", "S4-11")
async def test_a_call_is_tried_again_on_one_worker_and_then_on_the_next(flows: FlowApp) -> None:
    tries: list[int] = []

    def flaky(_: Any, __: Any) -> Any:
        tries.append(flows.app.clock.now())
        if len(tries) < 6:
            raise Broken(f"try {len(tries)}")
        return "at last"

    await flows.serve({"flaky": flaky})
    began = flows.app.clock.now()
    node = call(
        "flaky", output="out", max_retries=1, wait_ms=100, max_attempts=3, attempt_delay_ms=1000
    )
    run = await flows.start(chain(("a", node)))
    for number, delay in enumerate([100, 1000, 100, 1000, 100], start=1):
        await wait_until(counted(tries, number))
        await flows.until(run)
        await flows.later(delay - 1)
        assert len(tries) == number, "not before its time"
        await flows.later(1)
    await flows.ended(run)
    assert [at - began for at in tries] == [0, 100, 1100, 1200, 2200, 2300]
    assert await flows.shared(run) == {"out": "at last"}
    rows = await flows.trail(run, "attempt_no", "status", "error_text", "action")
    assert rows[0] == (1, "error", "try 1", "")
    assert rows[-1] == (6, "ok", "", "default")
    assert [row[0] for row in rows] == [1, 2, 3, 4, 5, 6]
    times = await flows.trail(run, "started_at")
    assert [at - began for (at,) in times] == [0, 100, 1100, 1200, 2200, 2300]


@pytest.mark.contract("S4-6")
async def test_when_every_try_has_failed_so_has_the_run(flows: FlowApp) -> None:
    def down(_: Any, __: Any) -> Any:
        raise Broken("down")

    await flows.serve({"down": down})
    run = await flows.run(
        chain(("a", call("down", max_retries=2, max_attempts=2)), ("b", call("x")))
    )
    assert run["state"] == "failed"
    assert run["error"]["message"] == "node 'a': down"
    assert [row[1] for row in await flows.trail(run["id"])] == ["error"] * 6
    row = await flows.row(run["id"])
    assert (row["status"], row["error_text"]) == ("failed", "node 'a': down")
    assert row["current_node_key"] == "a"


@pytest.mark.contract("S4-6")
async def test_a_permanent_error_is_not_tried_again(flows: FlowApp) -> None:
    await flows.serve()
    run = await flows.run(chain(("a", call("broken", max_retries=5, max_attempts=5))))
    assert await flows.trail(run["id"]) == [("a", "error", "")]


@pytest.mark.contract("S4-6", "S4-14")
async def test_a_failure_takes_the_edge_error_and_never_the_default_one(flows: FlowApp) -> None:
    await flows.serve()
    failing = call("broken", post={"error_key": "why"})
    definition = {
        "start": "a",
        "nodes": {
            "a": failing,
            "b": call("echo"),
            "saved": call("upper", "$shared.why.kind", "out"),
        },
        "edges": [edge("a", "default", "b"), edge("a", "error", "saved")],
    }
    run = await flows.run(definition)
    assert run["state"] == "succeeded"
    assert run["result"]["why"] == {"kind": "Error", "message": "it broke", "node": "a"}
    assert await flows.trail(run["id"]) == [("a", "error", "error"), ("saved", "ok", "default")]
    definition["edges"] = [edge("a", "default", "b")]
    assert (await flows.run(definition))["state"] == "failed"


@pytest.mark.contract("S4-6", "S4-14")
@pytest.mark.parametrize("way", ["timeout", "error"])
async def test_a_call_that_takes_too_long_takes_the_edge_timeout_else_error(
    flows: FlowApp, way: str
) -> None:
    await flows.serve()
    definition: dict[str, Any] = {
        "start": "a",
        "nodes": {"a": call("held", timeout_ms=500), "late": call("echo")},
        "edges": [edge("a", way, "late")],
    }
    if way == "timeout":
        definition["nodes"]["never"] = call("echo")
        definition["edges"].append(edge("a", "error", "never"))
    run = await flows.start(definition)
    await wait_until(lambda: flows.held)
    await flows.later(499)
    assert (await flows.read(run))["state"] == "waiting"
    await flows.later(1)
    assert (await flows.ended(run))["state"] == "succeeded"
    assert await flows.trail(run) == [("a", "error", way), ("late", "ok", "default")]
    assert flows.told == flows.held, "its worker is told that nobody waits any more"


@pytest.mark.contract("S4-6", "S4-11")
async def test_a_lost_worker_burns_no_try_and_another_takes_over(flows: FlowApp) -> None:
    first = await flows.serve({"slow": lambda value, params: HELD})
    run = await flows.start(chain(("a", call("slow", output="out"))))
    await wait_until(lambda: flows.held)
    second = await flows.serve({"slow": lambda value, params: "done"})
    await first.close()
    await flows.ended(run)
    assert await flows.trail(run, "status", "worker_id", "error_text") == [
        ("error", first.id, "the worker went away while it ran"),
        ("ok", second.id, ""),
    ]


@pytest.mark.contract("S4-7")
async def test_a_subflow_has_a_shared_state_of_its_own(flows: FlowApp) -> None:
    await flows.serve()
    inner = chain(
        ("one", call("add", "n", "n")),
        ("wait", {"kind": "wait_event"}),
        ("two", call("add", "n", "m")),
    )
    outer = chain(
        ("sub", {
            "kind": "subflow", "subflow": inner, "params": {"by": 10},
            "prep": {"input_map": {"n": "$shared.n"}}, "post": {"output_key": "sub"},
        }),
        ("after", call("add", "sub.m", "sum")),
    )  # fmt: skip
    run = await flows.start(outer, shared={"n": 1, "secret": True})
    found = await flows.until(run, lambda run: run["current_node"] == "sub/wait")
    assert found["shared"] == {
        "n": 1,
        "secret": True,
        "_rt": {
            "sf:sub": {
                "curr": "wait",
                "shared": {"n": 11, "_rt": {"we:wait": {"start": flows.app.clock.now()}}},
                "last": "default",
            }
        },
    }
    assert await flows.trail(run, "node_key", "status") == [
        ("sub", "running"), ("sub/one", "ok"), ("sub/wait", "running"),
    ]  # fmt: skip
    assert (await flows.signal(run, name="sub/wait")).status_code == 200
    result = (await flows.ended(run))["result"]
    assert result == {"n": 1, "secret": True, "sub": {"n": 11, "m": 21}, "sum": 22}
    assert await flows.trail(run, "node_key", "status") == [
        ("sub", "ok"), ("sub/one", "ok"), ("sub/wait", "ok"), ("sub/two", "ok"), ("after", "ok"),
    ]  # fmt: skip


@pytest.mark.contract("S4-7")
async def test_a_choice_is_a_record_of_its_own(flows: FlowApp) -> None:
    definition = {
        "start": "c",
        "nodes": {
            "c": {
                "kind": "choice",
                "prep": {"input_key": "$params.n"},
                "post": {"output_key": "kept"},
                "choice_cases": [
                    {"action": "big", "expr": {"gt": ["$input", 10]}},
                    {"action": "odd", "expr": {"in": ["$params.n", [1, 3, 5]]}},
                ],
                "default_action": "other",
            },
            "t": {"kind": "timer", "params": {"delay_ms": 0}},
        },
        "edges": [edge("c", action, "t") for action in ("big", "odd", "other")],
    }
    for number, action in ((11, "big"), (3, "odd"), (4, "other"), ("x", "other")):
        run = await flows.run(definition, params={"n": number})
        assert run["result"] == {"kept": number}
        rows = await flows.trail(run["id"], "node_key", "status", "action", "prep_json")
        assert rows[0][:3] == ("c", "ok", action)
        assert rows[1][0] == "t"


@pytest.mark.contract("S4-7")
async def test_a_local_node_runs_in_the_servers_own_worker() -> None:
    async with open_flow_app(builtin_worker=True) as flows:
        node = {"kind": "local", "service": "echo", "prep": {"input_key": "$params.x"}}
        run = await flows.run(
            chain(("l", {**node, "post": {"output_key": "out"}})), params={"x": {"deep": [1]}}
        )
        assert (run["state"], run["result"]) == ("succeeded", {"out": {"deep": [1]}})
        ((status, worker),) = await flows.trail(run["id"], "status", "worker_id")
        assert status == "ok"
        assert worker.startswith("builtin-")


def ref(flow: str, **more: Any) -> dict[str, Any]:
    return {
        "kind": "flow_ref",
        "params": {"flow": flow, **more},
        "prep": {"input_map": {"n": "$params.n"}},
        "post": {"output_key": "child"},
    }


@pytest.mark.contract("S4-7")
async def test_a_flow_runs_another_as_a_run_of_its_own(flows: FlowApp) -> None:
    await flows.serve()
    await flows.publish(chain(("a", call("add", "n", "n"))), "inner")
    newer = chain(("a", call("add", "n", "n", params={"by": 100})))
    await flows.publish(newer, "inner")
    run = await flows.run(
        chain(("r", ref("inner")), ("s", ref("inner", version=1, by=7))), params={"n": 1}
    )
    assert run["result"] == {"child": {"n": 8}}
    rows = (await flows.app.get("/tasks")).json()
    assert len(rows) == 3, "the children are runs, too"
    for number, version, out in ((0, 2, 101), (1, 1, 8)):
        child = await flows.read(f"{run['id']}-{number}")
        assert child["parent_id"] == run["id"]
        assert child["flow_version_id"].endswith(f"-v{version}")
        assert child["result"] == {"n": out}
    assert await flows.trail(run["id"]) == [("r", "ok", "default"), ("s", "ok", "default")]


@pytest.mark.contract("S4-7")
@pytest.mark.parametrize("more", [{"flow": "nowhere"}, {"flow": "inner", "version": 9}])
async def test_a_flow_that_is_not_there_takes_the_edge_error(
    flows: FlowApp, more: dict[str, Any]
) -> None:
    await flows.serve()
    await flows.publish(chain(("a", call("echo"))), "inner")
    node = ref(**more)
    definition = {
        "start": "r",
        "nodes": {"r": {**node, "post": {"error_key": "why"}}, "saved": call("echo")},
        "edges": [edge("r", "error", "saved")],
    }
    run = await flows.run(definition, params={"n": 1})
    assert run["state"] == "succeeded"
    assert run["result"]["why"]["kind"] == "NotFound"
    assert (await flows.row(f"{run['id']}-0"))["status"] == "failed"
    failed = await flows.run(chain(("r", node)), params={"n": 1})
    assert failed["state"] == "failed"


@pytest.mark.contract("S4-7")
async def test_flows_that_start_each_other_come_to_an_end(flows: FlowApp) -> None:
    await flows.publish(chain(("r", ref("ouroboros"))), "ouroboros")
    flow = (await flows.app.get("/api/v2/flows/ouroboros")).json()["flow_id"]
    run = await flows.ended(await flows.begin(flow, params={"n": 1}))
    assert run["state"] == "failed"
    assert f"more than {MAX_NESTED} deep" in run["error"]["message"]
    rows = (await flows.app.get("/tasks?limit=1000")).json()
    assert len(rows) == MAX_NESTED + 2
    assert {row["status"] for row in rows} == {"failed"}


SAGA = chain(
    ("book", call("echo", "$params.trip", "trip", compensate={"service": "unbook"})),
    ("pay", call("add", "$params.sum", "sum", compensate={
        "service": "refund", "params": {"why": "failed"},
        "prep": {"input_map": {"sum": "$input", "trip": "$shared.trip"}},
    })),
    ("wait", {"kind": "wait_event", "params": {"signal_key": "go"}}),
    ("send", call("broken", compensate={"service": "never"})),
)  # fmt: skip


@pytest.mark.contract("S4-14")
@pytest.mark.parametrize("ending", ["failed", "canceled"])
async def test_what_was_done_is_undone_last_things_first(flows: FlowApp, ending: str) -> None:
    await flows.serve()
    undone: list[tuple[str, Any, Any]] = []

    def undo(name: str) -> Callable[[Any, Any], Any]:
        return lambda value, params: undone.append((name, value, params.get("why")))

    await flows.serve({name: undo(name) for name in ("unbook", "refund", "never")})
    run = await flows.start(SAGA, params={"trip": "T1", "sum": 5})
    await flows.until(run, lambda run: run["current_node"] == "wait")
    if ending == "canceled":
        assert await flows.cancel(run) == "canceling"
    else:
        await flows.signal(run, key="go")
    assert (await flows.ended(run))["state"] == ending
    assert undone == [("refund", {"sum": 6, "trip": "T1"}, "failed"), ("unbook", "T1", None)]
    statuses = await flows.trail(run, "node_key", "status")
    middle = [("wait", "canceled")] if ending == "canceled" else [("wait", "ok"), ("send", "error")]
    assert statuses == [("book", "ok"), ("pay", "ok"), *middle, ("pay", "ok"), ("book", "ok")]


@pytest.mark.contract("S4-14")
async def test_an_undoing_that_fails_is_told_and_the_others_go_on(flows: FlowApp) -> None:
    await flows.serve()
    definition = chain(
        ("one", call("echo", compensate={"service": "echo", "params": {"undo": 1}})),
        ("two", call("echo", compensate={"service": "broken"})),
        ("three", call("broken")),
    )
    run = await flows.run(definition)
    assert run["error"]["message"] == "node 'three': it broke"
    assert await flows.trail(run["id"], "node_key", "status", "error_text") == [
        ("one", "ok", ""), ("two", "ok", ""), ("three", "error", "it broke"),
        ("two", "error", "it broke"), ("one", "ok", ""),
    ]  # fmt: skip
