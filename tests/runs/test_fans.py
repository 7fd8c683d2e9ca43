"""Nodes that make many calls: parallel and foreach, their windows, orders and failures."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runs.flow_app import HELD, FlowApp, call, chain, counted, edge
from tests.support import wait_until


def fan(kind: str = "foreach", **more: Any) -> dict[str, Any]:
    node = {"kind": kind, "post": {"output_key": "out"}, **more}
    if kind == "foreach":
        node["prep"] = {"input_key": "$params.items"}
    return node


@pytest.mark.contract("S4-7", "S4-9")
async def test_parallel_calls_one_after_the_other_by_default(flows: FlowApp) -> None:
    await flows.serve()
    node = fan("parallel", parallel_services=["held", "echo"], prep={"input_key": "$params.x"})
    run = await flows.start(chain(("p", node)), params={"x": 7})
    await wait_until(lambda: flows.held)
    assert [service for service, _, _ in flows.seen] == ["held"]
    assert (await flows.rt(run))["pl:p"] == {
        "done": [], "errs": [], "mode": "sequential", "max": 1, "strategy": "fail_fast",
    }  # fmt: skip
    await flows.release(flows.held[0], "first")
    assert (await flows.ended(run))["result"] == {"out": ["first", 7]}
    assert (await flows.rt(run))["pl:p"]["done"] == [0, 1]


@pytest.mark.contract("S4-7", "S4-9")
async def test_concurrent_results_stand_in_the_order_of_the_list(flows: FlowApp) -> None:
    await flows.serve()
    services = ["held", "echo", "held", "echo"]
    node = fan(
        "parallel",
        params={"services": services},
        parallel_mode="concurrent",
        max_parallel=3,
        prep={"input_key": "$params.x"},
    )
    run = await flows.start(chain(("p", node)), params={"x": 7})
    await wait_until(lambda: len(flows.seen) == 4 and len(flows.held) == 2)
    first, second = sorted(flows.held)
    await flows.release(second, "c")
    await flows.release(first, "a")
    assert (await flows.ended(run))["result"] == {"out": ["a", 7, "c", 7]}
    assert [row[0] for row in await flows.trail(run, "exec_output_json")] == [
        '"a"', "7", '"c"', "7",
    ]  # fmt: skip


STRATEGIES = [
    ("fail_fast", [0], ["ok", "error"]),
    ("ignore_errors", [0, 20, 40], ["ok", "error", "ok", "error", "ok"]),
    (
        "collect_errors",
        [
            0,
            {"error": {"kind": "Error", "message": "1 is odd"}},
            20,
            {"error": {"kind": "Error", "message": "3 is odd"}},
            40,
        ],
        ["ok", "error", "ok", "error", "ok"],
    ),
]


@pytest.mark.contract("S4-9")
@pytest.mark.parametrize(("strategy", "out", "statuses"), STRATEGIES)
async def test_the_three_ways_to_take_failures(
    flows: FlowApp, strategy: str, out: Any, statuses: list[str]
) -> None:
    await flows.serve()
    node = fan(service="odd", failure_strategy=strategy)
    run = await flows.run(
        chain(("f", node), ("after", call("echo"))), params={"items": [0, 1, 2, 3, 4]}
    )
    assert run["result"] == {"out": out}
    assert (await flows.rt(run["id"]))["fe:f"]["errs"] == [1] + [3] * (len(statuses) > 2)
    rows = await flows.trail(run["id"], "status", "action")
    assert [status for status, _ in rows] == [*statuses, "ok"]
    assert rows[len(statuses) - 1][1] == "default", "the action stands with the node's last row"


@pytest.mark.contract("S4-9")
async def test_fail_fast_stops_what_is_out(flows: FlowApp) -> None:
    await flows.serve()
    node = fan("parallel", parallel_services=["held", "broken"], parallel_mode="concurrent")
    definition = chain(("p", node), ("after", call("echo")))
    definition["edges"].append(edge("p", "error", "after"))
    run = await flows.run(definition)
    assert run["state"] == "succeeded"
    await wait_until(lambda: flows.told == flows.held)
    await flows.release(flows.told[0], "too late")
    await flows.app.settled()
    assert (await flows.shared(run["id"])) == {"out": []}
    assert sorted(row[1] for row in await flows.trail(run["id"])) == ["canceled", "error", "ok"]


@pytest.mark.contract("S4-7", "S4-9")
async def test_foreach_never_has_more_out_than_its_window(flows: FlowApp) -> None:
    await flows.serve({"held": lambda value, params: HELD}, concurrency=10)
    node = fan(service="held", parallel_mode="concurrent", max_parallel=3)
    run = await flows.start(chain(("f", node)), params={"items": list(range(10))})
    out: dict[str, int] = {}
    for answered in range(10):
        await wait_until(counted(flows.seen, min(10, answered + 3)))
        assert len(flows.held) <= 3
        await flows.app.settled()
        assert len(flows.seen) == min(10, answered + 3), "one comes for one that went"
        done = (await flows.rt(run))["fe:f"]
        assert done["idx"] == min(10, answered + 3)
        assert (done["mode"], done["max"]) == ("concurrent", 3)
        last = sorted(flows.held, key=lambda id: int(id.rpartition("-")[2]))[-1]
        out[last] = int(last.rpartition("-")[2])
        await flows.release(last, f"r{out[last]}")
    assert (await flows.ended(run))["result"] == {"out": [f"r{n}" for n in range(10)]}
    inputs = await flows.trail(run, "prep_json")
    assert inputs == [(str(n),) for n in range(10)]


@pytest.mark.contract("S4-9")
async def test_an_empty_list_is_an_empty_result_and_one_record(flows: FlowApp) -> None:
    for node in (fan(service="nobody"), fan(service="nobody", parallel_mode="concurrent")):
        run = await flows.run(chain(("f", node)), params={"items": []})
        assert (run["state"], run["result"]) == ("succeeded", {"out": []})
        assert await flows.trail(run["id"]) == [("f", "ok", "default")]


@pytest.mark.contract("S4-9")
@pytest.mark.parametrize("items", [None, "text", {"a": 1}])
async def test_foreach_over_no_list_fails_and_says_so(flows: FlowApp, items: Any) -> None:
    run = await flows.run(chain(("f", fan(service="echo"))), params={"items": items})
    assert run["state"] == "failed"
    assert "not to a list" in run["error"]["message"]
    ((_, status, _),) = await flows.trail(run["id"])
    assert status == "error"
