"""Canceled runs: what is told to stop, what is undone, and the one record of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward.core.outcome import Outcome, Succeeded
from onward.core.task import Claimed
from onward.flow.executor import FlowExecutor
from onward.flow.runs import QUEUE
from tests.runs.flow_app import HELD, Broken, FlowApp, call, chain
from tests.support import wait_until


async def canceled(flows: FlowApp, run: str) -> list[dict[str, Any]]:
    """Over, with one record that says so."""
    assert (await flows.ended(run))["state"] == "canceled"
    assert (await flows.row(run))["status"] == "canceled"
    assert await flows.cancel(run) == "canceled", "and it stays so"
    return [row for row in await flows.node_runs(run) if row["status"] == "canceled"]


@pytest.mark.contract("S4-12")
@pytest.mark.parametrize(
    "node",
    [
        {"kind": "timer", "params": {"delay_ms": 60_000}},
        {"kind": "wait_event", "params": {"signal_key": "go"}},
        {"kind": "approval"},
        {"kind": "executor", "service": "nobody"},
        {"kind": "foreach", "service": "nobody", "prep": {"input_key": "$params.items"}},
    ],
)
async def test_a_run_that_waits(flows: FlowApp, node: dict[str, Any]) -> None:
    run = await flows.start(chain(("w", node), ("z", call("echo"))), params={"items": [1, 2]})
    await flows.until(run)
    assert await flows.cancel(run) in ("canceling", "canceled")
    (record,) = await canceled(flows, run)
    assert (record["node_key"], record["action"]) == ("w", "")
    assert record["finished_at"] == flows.app.clock.now()
    assert await flows.inbox() == []
    assert [row for row in await flows.node_runs(run) if row["status"] == "running"] == []


@pytest.mark.contract("S4-12")
async def test_a_run_that_has_news_but_no_reader(flows: FlowApp) -> None:
    node = {"kind": "wait_event", "params": {"signal_key": "go"}}
    run = await flows.start(chain(("w", node), ("t", {"kind": "timer", "params": {"delay_ms": 1}})))
    await flows.until(run)
    runner = flows.app.onward._flow_runner
    runner.serve([])
    await flows.signal(run, key="go")
    assert (await flows.read(run))["state"] == "queued"
    assert (await flows.row(run))["status"] == "running"
    assert await flows.cancel(run) == "canceling"
    why = (await flows.app.get(f"/api/v2/tasks/{run}/explain")).json()
    assert (why["reason"], why["eta"]) == ("canceling", None)
    runner.serve([QUEUE])
    (record,) = await canceled(flows, run)
    assert record["node_key"] == "w", "a cancel goes before what else is new"


@pytest.mark.contract("S4-12", "S4-14")
async def test_a_running_call_is_told_to_stop_and_waited_for(flows: FlowApp) -> None:
    await flows.serve()
    run = await flows.start(chain(("a", call("held", output="out")), ("z", call("echo"))))
    await wait_until(lambda: flows.held)
    assert await flows.cancel(run) == "canceling"
    await wait_until(lambda: flows.told == flows.held)
    assert (await flows.row(run))["status"] == "canceling"
    assert await flows.cancel(run) == "canceling", "asking twice changes nothing"
    listed = (await flows.app.get("/tasks?status=canceling")).json()
    assert [row["id"] for row in listed] == [run]
    await flows.release(flows.told[0], "too late")
    (record,) = await canceled(flows, run)
    assert (record["node_key"], record["exec_output_json"]) == ("a", "")
    assert len(flows.told) == 1
    assert await flows.shared(run) == {}


@pytest.mark.contract("S4-12")
async def test_a_worker_who_does_not_stop_is_not_waited_for_for_ever(flows: FlowApp) -> None:
    await flows.serve()
    run = await flows.start(chain(("a", call("held"))))
    await wait_until(lambda: flows.held)
    await flows.cancel(run)
    await wait_until(lambda: flows.told)
    await flows.later(9_999)
    assert (await flows.row(run))["status"] == "canceling"
    await flows.later(1)
    (record,) = await canceled(flows, run)
    assert record["node_key"] == "a"


@pytest.mark.contract("S4-12")
async def test_all_calls_of_a_node_are_stopped_and_no_more_are_made(flows: FlowApp) -> None:
    await flows.serve()
    node = {
        "kind": "foreach",
        "service": "held",
        "prep": {"input_key": "$params.items"},
        "parallel_mode": "concurrent",
        "max_parallel": 3,
    }
    run = await flows.start(chain(("f", node)), params={"items": list(range(10))})
    await wait_until(lambda: len(flows.held) == 3)
    await flows.cancel(run)
    await wait_until(lambda: len(flows.told) == 3)
    for call_id in list(flows.held):
        await flows.release(call_id, error="stopped")
    records = await canceled(flows, run)
    assert [record["prep_json"] for record in records] == ["0", "1", "2"], "one for each call"
    assert len(flows.seen) == 3


@pytest.mark.contract("S4-12")
async def test_a_call_between_two_tries_is_one_canceled_record_after_the_error(
    flows: FlowApp,
) -> None:
    def down(_: Any, __: Any) -> Any:
        raise Broken("down")

    await flows.serve({"down": down})
    run = await flows.start(chain(("a", call("down", max_retries=3, wait_ms=5000))))
    await wait_until(lambda: flows.seen)
    await flows.until(run)
    await flows.app.settled()
    flows.app.clock.advance(10)
    await flows.cancel(run)
    await canceled(flows, run)
    assert await flows.trail(run, "node_key", "status") == [("a", "error"), ("a", "canceled")]


@pytest.mark.contract("S4-12")
async def test_nothing_of_a_canceled_run_is_still_running(flows: FlowApp) -> None:
    inner = chain(("w", {"kind": "wait_event"}))
    run = await flows.start(chain(("sub", {"kind": "subflow", "subflow": inner})))
    await flows.until(run)
    assert await flows.trail(run, "node_key", "status") == [
        ("sub", "running"), ("sub/w", "running"),
    ]  # fmt: skip
    await flows.cancel(run)
    records = await canceled(flows, run)
    assert [record["node_key"] for record in records] == ["sub", "sub/w"]
    assert {record["finished_at"] for record in records} == {flows.app.clock.now()}


@pytest.mark.contract("S4-12")
async def test_a_child_run_is_canceled_with_its_parent(flows: FlowApp) -> None:
    await flows.serve()
    await flows.publish(chain(("a", call("held"))), "inner")
    run = await flows.start(chain(("r", {"kind": "flow_ref", "params": {"flow": "inner"}})))
    await wait_until(lambda: flows.held)
    await flows.cancel(run)
    await wait_until(lambda: flows.told)
    await flows.release(flows.told[0])
    (record,) = await canceled(flows, run)
    assert record["node_key"] == "r"
    (inner,) = await canceled(flows, f"{run}-0")
    assert inner["node_key"] == "a"


@pytest.mark.contract("S4-12")
async def test_a_run_that_is_failing_may_still_be_canceled(flows: FlowApp) -> None:
    await flows.serve()
    definition = chain(("a", call("echo", compensate={"service": "held"})), ("b", call("broken")))
    run = await flows.start(definition)
    await wait_until(lambda: flows.held)
    assert await flows.cancel(run) == "canceling"
    await flows.release(flows.held[0])
    (record,) = await canceled(flows, run)
    assert record["finished_at"] == flows.app.clock.now()
    assert [row[1] for row in await flows.trail(run)] == ["ok", "error", "ok", "canceled"]


@pytest.mark.contract("S4-12", "N-5")
async def test_the_native_door_cancels_once(flows: FlowApp) -> None:
    await flows.serve({"slow": lambda value, params: HELD})
    run = await flows.start(chain(("a", call("slow"))))
    await wait_until(lambda: flows.held)
    first = await flows.app.post(f"/api/v2/runs/{run}/cancel", None)
    assert (first.status_code, first.json()["phase"]) == (200, "canceling")
    await wait_until(lambda: flows.told)
    await flows.release(flows.told[0])
    assert len(await canceled(flows, run)) == 1
    again = await flows.app.post(f"/api/v2/runs/{run}/cancel", None)
    assert (again.status_code, again.json()["code"]) == (409, "conflict")
    assert (await flows.app.post("/api/v2/runs/none/cancel", None)).status_code == 404


@pytest.mark.contract("S4-12", "S4-14")
async def test_a_cancel_that_meets_the_last_step_undoes_what_was_done(
    flows: FlowApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step has been made and not yet written when the cancel is accepted."""
    await flows.serve()
    flows.app.onward.dispatcher.reader = None  # the step is made by whoever claims the run
    made, go_on = asyncio.Event(), asyncio.Event()
    execute = FlowExecutor.execute

    async def slowly(self: FlowExecutor, task: Claimed) -> Outcome:
        outcome = await execute(self, task)
        if isinstance(outcome, Succeeded):
            made.set()
            await go_on.wait()
        return outcome

    monkeypatch.setattr(FlowExecutor, "execute", slowly)
    undo = {"service": "upper"}
    run = await flows.start(
        chain(("a", call("echo", "$params.x", compensate=undo)), ("b", call("echo"))),
        params={"x": "did"},
    )
    await asyncio.wait_for(made.wait(), 60)
    assert await flows.cancel(run) == "canceling"
    go_on.set()
    assert (await flows.ended(run))["state"] == "canceled"
    assert ("upper", "did", {"x": "did"}) in flows.seen
