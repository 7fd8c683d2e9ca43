"""The same flows on each ledger: what is told of a run does not depend on where it is kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.runs.flow_app import FlowApp, call, chain, edge
from tests.support import wait_until


@pytest.mark.contract("S4-2", "S4-3", "S4-6")
async def test_a_call_and_its_record(any_flows: FlowApp) -> None:
    flows = any_flows
    await flows.serve()
    definition = chain(
        ("a", call("upper", "$params.text", "out")), ("b", call("broken", post={"error_key": "e"}))
    )
    definition["nodes"]["c"] = call("add", "$params.n", "n")
    definition["edges"].append(edge("b", "error", "c"))
    run = await flows.run(definition, params={"text": "hi", "n": 1}, request_id="r")
    assert run["result"]["out"] == "HI"
    assert run["result"]["n"] == 2
    assert await flows.trail(run["id"], "node_key", "status", "action", "exec_output_json") == [
        ("a", "ok", "default", '"HI"'), ("b", "error", "error", ""), ("c", "ok", "default", "2"),
    ]  # fmt: skip
    flow = run["flow_version_id"].rpartition("-v")[0]
    bodies = [{"flow_id": flow, "request_id": "r"}] * 5
    answers = await asyncio.gather(*[flows.app.post("/tasks", body) for body in bodies])
    assert {answer.json()["id"] for answer in answers} == {run["id"]}
    completed = (await flows.app.get("/tasks?status=completed")).json()
    assert [row["id"] for row in completed] == [run["id"]]
    assert (await flows.app.get(f"/tasks/get?id={run['id']}-0")).status_code == 404


@pytest.mark.contract("S4-9", "S4-7")
async def test_ten_items_three_at_a_time(any_flows: FlowApp) -> None:
    flows = any_flows
    await flows.serve(concurrency=10)
    node: dict[str, Any] = {
        "kind": "foreach",
        "service": "odd",
        "prep": {"input_key": "$params.items"},
        "post": {"output_key": "out"},
        "parallel_mode": "concurrent",
        "max_parallel": 3,
        "failure_strategy": "ignore_errors",
    }
    items = [0, 1, 2, 4, 6, 8, 10, 12, 14, 16]
    run = await flows.run(chain(("f", node)), params={"items": items})
    assert run["result"] == {"out": [item * 10 for item in items if item != 1]}
    rows = await flows.trail(run["id"], "prep_json", "status")
    assert rows == [(str(item), "error" if item == 1 else "ok") for item in items]
    assert (await flows.rt(run["id"]))["fe:f"]["errs"] == [1]


@pytest.mark.contract("S4-12", "S4-14")
async def test_cancel_reaches_the_worker_and_undoes(any_flows: FlowApp) -> None:
    flows = any_flows
    await flows.serve()
    undo = {"service": "upper"}
    definition = chain(("a", call("echo", "$params.x", compensate=undo)), ("b", call("held")))
    run = await flows.start(definition, params={"x": "did"})
    await wait_until(lambda: flows.held)
    assert await flows.cancel(run) == "canceling"
    await wait_until(lambda: flows.told == flows.held)
    await flows.release(flows.told[0])
    assert (await flows.ended(run))["state"] == "canceled"
    assert await flows.trail(run, "node_key", "status", "exec_output_json") == [
        ("a", "ok", '"did"'), ("b", "canceled", ""), ("a", "ok", '"DID"'),
    ]  # fmt: skip


@pytest.mark.contract("S4-10")
async def test_a_signal_and_a_timeout(any_flows: FlowApp) -> None:
    flows = any_flows
    node = {"kind": "wait_event", "params": {"signal_key": "go", "timeout_ms": 1000}}
    definition = chain(("w", node), ("t", {"kind": "timer", "params": {"delay_ms": 500}}))
    signaled, late = [await flows.start(definition) for _ in range(2)]
    for run in (signaled, late):
        await flows.until(run)
    assert (await flows.signal(signaled, key="go", value=[1])).status_code == 200
    await flows.until(signaled, lambda run: run["current_node"] == "t")
    await flows.until(signaled)
    await flows.later(1000)
    assert (await flows.ended(signaled))["result"] == {"go": [1]}
    assert (await flows.ended(late))["error"]["kind"] == "timeout"
    assert (await flows.signal(late, key="go")).status_code == 409


@pytest.mark.contract("S4-10", "N-5")
@pytest.mark.parametrize("verb", ["approve", "reject"])
async def test_a_person_decides(any_flows: FlowApp, verb: str) -> None:
    flows = any_flows
    await flows.serve()
    definition = chain(("ask", {"kind": "approval"}), ("pay", call("echo")))
    run = await flows.start(definition)
    await flows.until(run)
    (item,) = await flows.inbox()
    assert item["task_id"] == run
    assert (await flows.decide(item["id"], verb, by="ada")).status_code == 200
    ended = await flows.ended(run)
    assert ended["state"] == ("succeeded" if verb == "approve" else "failed")
    assert (await flows.decide(item["id"], verb)).status_code == 409
    assert len(flows.seen) == (verb == "approve")


@pytest.mark.contract("S4-7", "N-5")
async def test_a_run_in_a_run_and_a_fork(any_flows: FlowApp) -> None:
    flows = any_flows
    await flows.serve()
    await flows.publish(chain(("a", call("add", "n", "n"))), "inner")
    ref = {
        "kind": "flow_ref",
        "params": {"flow": "inner"},
        "prep": {"input_map": {"n": "n"}},
        "post": {"output_key": "child"},
    }
    run = await flows.run(chain(("r", ref), ("b", call("add", "child.n", "m"))), shared={"n": 1})
    assert run["result"] == {"n": 1, "child": {"n": 2}, "m": 3}
    body = {"from_node": "b", "shared": {"child": {"n": 9}}}
    fork = (await flows.app.post(f"/api/v2/runs/{run['id']}/fork", body)).json()["id"]
    assert (await flows.ended(fork))["result"] == {"child": {"n": 9}, "m": 10}
