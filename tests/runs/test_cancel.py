"""Canceled runs: what is told to stop, what is undone, and the one record of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward.core.outcome import Outcome, Succeeded
from onward.core.task import Claimed
from onward.flow.executor import FlowExecutor
from onward.flow.runs import QUEUE
from tests.runs.centre import HELD, Broken, Centre, call, chain
from tests.support import wait_until


async def canceled(centre: Centre, run: str) -> list[dict[str, Any]]:
    """Over, with one record that says so."""
    assert (await centre.ended(run))["state"] == "canceled"
    assert (await centre.row(run))["status"] == "canceled"
    assert await centre.cancel(run) == "canceled", "and it stays so"
    return [row for row in await centre.node_runs(run) if row["status"] == "canceled"]


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
async def test_a_run_that_waits(centre: Centre, node: dict[str, Any]) -> None:
    run = await centre.start(chain(("w", node), ("z", call("echo"))), params={"items": [1, 2]})
    await centre.until(run)
    assert await centre.cancel(run) in ("canceling", "canceled")
    (record,) = await canceled(centre, run)
    assert (record["node_key"], record["action"]) == ("w", "")
    assert record["finished_at"] == centre.house.clock.now()
    assert await centre.inbox() == []
    assert [row for row in await centre.node_runs(run) if row["status"] == "running"] == []


@pytest.mark.contract("S4-12")
async def test_a_run_that_has_news_but_nobody_to_read_it(centre: Centre) -> None:
    node = {"kind": "wait_event", "params": {"signal_key": "go"}}
    run = await centre.start(
        chain(("w", node), ("t", {"kind": "timer", "params": {"delay_ms": 1}}))
    )
    await centre.until(run)
    runner = centre.house.onward._flow_runner
    runner.serve([])
    await centre.signal(run, key="go")
    assert (await centre.read(run))["state"] == "queued"
    assert (await centre.row(run))["status"] == "running"
    assert await centre.cancel(run) == "canceling"
    why = (await centre.house.get(f"/api/v2/tasks/{run}/explain")).json()
    assert (why["reason"], why["eta"]) == ("canceling", None)
    runner.serve([QUEUE])
    (record,) = await canceled(centre, run)
    assert record["node_key"] == "w", "a cancel goes before what else is new"


@pytest.mark.contract("S4-12", "S4-14")
async def test_a_running_call_is_told_to_stop_and_waited_for(centre: Centre) -> None:
    await centre.serve()
    run = await centre.start(chain(("a", call("held", output="out")), ("z", call("echo"))))
    await wait_until(lambda: centre.held)
    assert await centre.cancel(run) == "canceling"
    await wait_until(lambda: centre.told == centre.held)
    assert (await centre.row(run))["status"] == "canceling"
    assert await centre.cancel(run) == "canceling", "asking twice changes nothing"
    listed = (await centre.house.get("/tasks?status=canceling")).json()
    assert [row["id"] for row in listed] == [run]
    await centre.release(centre.told[0], "too late")
    (record,) = await canceled(centre, run)
    assert (record["node_key"], record["exec_output_json"]) == ("a", "")
    assert len(centre.told) == 1
    assert await centre.shared(run) == {}


@pytest.mark.contract("S4-12")
async def test_a_worker_who_does_not_stop_is_not_waited_for_for_ever(centre: Centre) -> None:
    await centre.serve()
    run = await centre.start(chain(("a", call("held"))))
    await wait_until(lambda: centre.held)
    await centre.cancel(run)
    await wait_until(lambda: centre.told)
    await centre.later(9_999)
    assert (await centre.row(run))["status"] == "canceling"
    await centre.later(1)
    (record,) = await canceled(centre, run)
    assert record["node_key"] == "a"


@pytest.mark.contract("S4-12")
async def test_all_calls_of_a_node_are_stopped_and_no_more_are_made(centre: Centre) -> None:
    await centre.serve()
    node = {
        "kind": "foreach",
        "service": "held",
        "prep": {"input_key": "$params.items"},
        "parallel_mode": "concurrent",
        "max_parallel": 3,
    }
    run = await centre.start(chain(("f", node)), params={"items": list(range(10))})
    await wait_until(lambda: len(centre.held) == 3)
    await centre.cancel(run)
    await wait_until(lambda: len(centre.told) == 3)
    for call_id in list(centre.held):
        await centre.release(call_id, error="stopped")
    records = await canceled(centre, run)
    assert [record["prep_json"] for record in records] == ["0", "1", "2"], "one for each call"
    assert len(centre.seen) == 3


@pytest.mark.contract("S4-12")
async def test_a_call_between_two_tries_is_one_canceled_record_after_the_error(
    centre: Centre,
) -> None:
    def down(_: Any, __: Any) -> Any:
        raise Broken("down")

    await centre.serve({"down": down})
    run = await centre.start(chain(("a", call("down", max_retries=3, wait_ms=5000))))
    await wait_until(lambda: centre.seen)
    await centre.until(run)
    await centre.house.settled()
    centre.house.clock.advance(10)
    await centre.cancel(run)
    await canceled(centre, run)
    assert await centre.trail(run, "node_key", "status") == [("a", "error"), ("a", "canceled")]


@pytest.mark.contract("S4-12")
async def test_nothing_of_a_canceled_run_is_still_running(centre: Centre) -> None:
    inner = chain(("w", {"kind": "wait_event"}))
    run = await centre.start(chain(("sub", {"kind": "subflow", "subflow": inner})))
    await centre.until(run)
    assert await centre.trail(run, "node_key", "status") == [
        ("sub", "running"), ("sub/w", "running"),
    ]  # fmt: skip
    await centre.cancel(run)
    records = await canceled(centre, run)
    assert [record["node_key"] for record in records] == ["sub", "sub/w"]
    assert {record["finished_at"] for record in records} == {centre.house.clock.now()}


@pytest.mark.contract("S4-12")
async def test_a_child_run_is_canceled_with_its_parent(centre: Centre) -> None:
    await centre.serve()
    await centre.publish(chain(("a", call("held"))), "inner")
    run = await centre.start(chain(("r", {"kind": "flow_ref", "params": {"flow": "inner"}})))
    await wait_until(lambda: centre.held)
    await centre.cancel(run)
    await wait_until(lambda: centre.told)
    await centre.release(centre.told[0])
    (record,) = await canceled(centre, run)
    assert record["node_key"] == "r"
    (inner,) = await canceled(centre, f"{run}-0")
    assert inner["node_key"] == "a"


@pytest.mark.contract("S4-12")
async def test_a_run_that_is_failing_may_still_be_canceled(centre: Centre) -> None:
    await centre.serve()
    definition = chain(("a", call("echo", compensate={"service": "held"})), ("b", call("broken")))
    run = await centre.start(definition)
    await wait_until(lambda: centre.held)
    assert await centre.cancel(run) == "canceling"
    await centre.release(centre.held[0])
    (record,) = await canceled(centre, run)
    assert record["finished_at"] == centre.house.clock.now()
    assert [row[1] for row in await centre.trail(run)] == ["ok", "error", "ok", "canceled"]


@pytest.mark.contract("S4-12", "N-5")
async def test_the_native_door_cancels_once(centre: Centre) -> None:
    await centre.serve({"slow": lambda value, params: HELD})
    run = await centre.start(chain(("a", call("slow"))))
    await wait_until(lambda: centre.held)
    first = await centre.house.post(f"/api/v2/runs/{run}/cancel", None)
    assert (first.status_code, first.json()["phase"]) == (200, "canceling")
    await wait_until(lambda: centre.told)
    await centre.release(centre.told[0])
    assert len(await canceled(centre, run)) == 1
    again = await centre.house.post(f"/api/v2/runs/{run}/cancel", None)
    assert (again.status_code, again.json()["code"]) == (409, "conflict")
    assert (await centre.house.post("/api/v2/runs/none/cancel", None)).status_code == 404


@pytest.mark.contract("S4-12", "S4-14")
async def test_a_cancel_that_meets_the_last_step_undoes_what_was_done(
    centre: Centre, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step has been made and not yet written when the cancel is accepted."""
    await centre.serve()
    centre.house.onward.dispatcher.reader = None  # the step is made by whoever claims the run
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
    run = await centre.start(
        chain(("a", call("echo", "$params.x", compensate=undo)), ("b", call("echo"))),
        params={"x": "did"},
    )
    await asyncio.wait_for(made.wait(), 5)
    assert await centre.cancel(run) == "canceling"
    go_on.set()
    assert (await centre.ended(run))["state"] == "canceled"
    assert ("upper", "did", {"x": "did"}) in centre.seen
