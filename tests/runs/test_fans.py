"""Nodes that make many calls: parallel and foreach, their windows, orders and failures."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runs.centre import HELD, Centre, call, chain, counted, edge
from tests.support import wait_until


def fan(kind: str = "foreach", **more: Any) -> dict[str, Any]:
    node = {"kind": kind, "post": {"output_key": "out"}, **more}
    if kind == "foreach":
        node["prep"] = {"input_key": "$params.items"}
    return node


@pytest.mark.contract("S4-7", "S4-9")
async def test_parallel_calls_one_after_the_other_by_default(centre: Centre) -> None:
    await centre.serve()
    node = fan("parallel", parallel_services=["held", "echo"], prep={"input_key": "$params.x"})
    run = await centre.start(chain(("p", node)), params={"x": 7})
    await wait_until(lambda: centre.held)
    assert [service for service, _, _ in centre.seen] == ["held"]
    assert (await centre.rt(run))["pl:p"] == {
        "done": [], "errs": [], "mode": "sequential", "max": 1, "strategy": "fail_fast",
    }  # fmt: skip
    await centre.release(centre.held[0], "first")
    assert (await centre.ended(run))["result"] == {"out": ["first", 7]}
    assert (await centre.rt(run))["pl:p"]["done"] == [0, 1]


@pytest.mark.contract("S4-7", "S4-9")
async def test_concurrent_results_stand_in_the_order_of_the_list(centre: Centre) -> None:
    await centre.serve()
    services = ["held", "echo", "held", "echo"]
    node = fan(
        "parallel",
        params={"services": services},
        parallel_mode="concurrent",
        max_parallel=3,
        prep={"input_key": "$params.x"},
    )
    run = await centre.start(chain(("p", node)), params={"x": 7})
    await wait_until(lambda: len(centre.seen) == 4 and len(centre.held) == 2)
    first, second = sorted(centre.held)
    await centre.release(second, "c")
    await centre.release(first, "a")
    assert (await centre.ended(run))["result"] == {"out": ["a", 7, "c", 7]}
    assert [row[0] for row in await centre.trail(run, "exec_output_json")] == [
        '"a"', "7", '"c"', "7",
    ]  # fmt: skip


STRATEGIES = [
    ("fail_fast", [0], ["ok", "error"]),
    ("ignore_errors", [0, 20, 40], ["ok", "error", "ok", "error", "ok"]),
    (
        "collect_errors",
        {
            "results": [0, 20, 40],
            "errors": [
                {"index": 1, "kind": "Error", "message": "1 is odd"},
                {"index": 3, "kind": "Error", "message": "3 is odd"},
            ],
        },
        ["ok", "error", "ok", "error", "ok"],
    ),
]


@pytest.mark.contract("S4-9")
@pytest.mark.parametrize(("strategy", "out", "statuses"), STRATEGIES)
async def test_the_three_ways_to_take_failures(
    centre: Centre, strategy: str, out: Any, statuses: list[str]
) -> None:
    await centre.serve()
    node = fan(service="odd", failure_strategy=strategy)
    run = await centre.run(
        chain(("f", node), ("after", call("echo"))), params={"items": [0, 1, 2, 3, 4]}
    )
    assert run["result"] == {"out": out}
    assert (await centre.rt(run["id"]))["fe:f"]["errs"] == [1] + [3] * (len(statuses) > 2)
    rows = await centre.trail(run["id"], "status", "action")
    assert [status for status, _ in rows] == [*statuses, "ok"]
    assert rows[len(statuses) - 1][1] == "default", "the action stands with the node's last row"


@pytest.mark.contract("S4-9")
async def test_fail_fast_stops_what_is_out(centre: Centre) -> None:
    await centre.serve()
    node = fan("parallel", parallel_services=["held", "broken"], parallel_mode="concurrent")
    definition = chain(("p", node), ("after", call("echo")))
    definition["edges"].append(edge("p", "error", "after"))
    run = await centre.run(definition)
    assert run["state"] == "succeeded"
    await wait_until(lambda: centre.told == centre.held)
    await centre.release(centre.told[0], "too late")
    await centre.house.settled()
    assert (await centre.shared(run["id"])) == {"out": []}
    assert sorted(row[1] for row in await centre.trail(run["id"])) == ["canceled", "error", "ok"]


@pytest.mark.contract("S4-7", "S4-9")
async def test_foreach_never_has_more_out_than_its_window(centre: Centre) -> None:
    await centre.serve({"held": lambda value, params: HELD}, concurrency=10)
    node = fan(service="held", parallel_mode="concurrent", max_parallel=3)
    run = await centre.start(chain(("f", node)), params={"items": list(range(10))})
    out: dict[str, int] = {}
    for answered in range(10):
        await wait_until(counted(centre.seen, min(10, answered + 3)))
        assert len(centre.held) <= 3
        await centre.house.settled()
        assert len(centre.seen) == min(10, answered + 3), "one comes for one that went"
        done = (await centre.rt(run))["fe:f"]
        assert done["idx"] == min(10, answered + 3)
        assert (done["mode"], done["max"]) == ("concurrent", 3)
        last = sorted(centre.held, key=lambda id: int(id.rpartition("-")[2]))[-1]
        out[last] = int(last.rpartition("-")[2])
        await centre.release(last, f"r{out[last]}")
    assert (await centre.ended(run))["result"] == {"out": [f"r{n}" for n in range(10)]}
    inputs = await centre.trail(run, "prep_json")
    assert inputs == [(str(n),) for n in range(10)]


@pytest.mark.contract("S4-9")
async def test_an_empty_list_is_an_empty_result_and_one_record(centre: Centre) -> None:
    for node in (fan(service="nobody"), fan(service="nobody", parallel_mode="concurrent")):
        run = await centre.run(chain(("f", node)), params={"items": []})
        assert (run["state"], run["result"]) == ("succeeded", {"out": []})
        assert await centre.trail(run["id"]) == [("f", "ok", "default")]


@pytest.mark.contract("S4-9")
@pytest.mark.parametrize("items", [None, "text", {"a": 1}])
async def test_foreach_over_no_list_fails_and_says_so(centre: Centre, items: Any) -> None:
    run = await centre.run(chain(("f", fan(service="echo"))), params={"items": items})
    assert run["state"] == "failed"
    assert "not to a list" in run["error"]["message"]
    ((_, status, _),) = await centre.trail(run["id"])
    assert status == "error"
