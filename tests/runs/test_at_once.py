"""A run goes on in the move that ends its child, where nothing speaks against it."""

from __future__ import annotations

from typing import Any

import pytest

from onward.core.task import State
from onward.flow import executor
from onward.flow.runs import QUEUE
from onward.services.catalog import RENEW_MS, Declared
from tests.runs.flow_app import FlowApp, call, chain, counted
from tests.support import wait_until

THREE = chain(*((key, call("add", "n", "n")) for key in "abc"))
HELD_FIRST = chain(("a", call("held")), ("b", call("add", "$params.n", "n")))


async def told(flows: FlowApp, run: str) -> list[str]:
    page = await flows.app.onward.backend.tasks.events(after="", limit=1_000, task=run)
    return [event.type for event in page.items]


async def held(flows: FlowApp, definition: Any = HELD_FIRST) -> tuple[str, str]:
    """A run whose first call is being done, and that call."""
    await flows.serve()
    run = await flows.start(definition, params={"n": 1})
    await wait_until(lambda: flows.held)
    await flows.until(run)
    return run, flows.held[0]


@pytest.mark.contract("S4-11")
async def test_a_run_is_claimed_once_and_goes_on_as_its_calls_end(any_flows: FlowApp) -> None:
    flows = any_flows
    await flows.serve()
    run = await flows.run(THREE)
    assert (run["state"], run["result"]) == ("succeeded", {"n": 3})
    events = await told(flows, run["id"])
    assert [type_ for type_ in events if type_.startswith("task.")] == [
        "task.created",
        "task.claimed",
        "task.parked",
        "task.succeeded",
    ]
    nodes = [type_ for type_ in events if type_.startswith("node.")]
    assert nodes == ["node.started", "node.finished"] * 3
    assert await flows.trail(run["id"]) == [(key, "ok", "default") for key in "abc"]


async def test_a_run_that_ends_in_its_childs_move_is_counted_as_ended(flows: FlowApp) -> None:
    await flows.serve()
    run = await flows.run(THREE)
    measures = flows.app.onward.dispatcher.measures
    assert measures.of((await flows.app.task(run["id"]))["type"]).endings == {State.SUCCEEDED: 1}
    assert measures.of("add").endings == {State.SUCCEEDED: 3}


async def test_a_forgotten_run_is_woken_and_claimed(
    flows: FlowApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "MOST_TEXT", 1)
    await flows.serve()
    run = await flows.run(THREE)
    assert run["result"] == {"n": 3}
    assert (await told(flows, run["id"])).count("task.claimed") == 4


async def test_what_is_known_of_services_is_read_anew_before_a_run_must_be_woken_for_it(
    flows: FlowApp,
) -> None:
    await flows.app.onward.catalog.declare(Declared(name="held", task_types=("held",)))
    run, _ = await held(flows, chain(*((key, call("held")) for key in "abcde")))
    for step in range(5):
        await wait_until(counted(flows.held, 1))
        await flows.app.advance(RENEW_MS)
        await flows.release(f"{run}-{step}")
    assert (await flows.ended(run))["state"] == "succeeded"
    assert (await told(flows, run)).count("task.claimed") == 1


async def test_no_more_runs_are_remembered_than_allowed(
    flows: FlowApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "MOST_KNOWN", 1)
    await flows.serve()
    flow = await flows.publish(HELD_FIRST)
    first = await flows.begin(flow, params={"n": 1})
    await flows.until(first)
    await flows.until(await flows.begin(flow, params={"n": 1}))
    await wait_until(counted(flows.held, 2))
    await flows.release(f"{first}-0")
    assert (await flows.ended(first))["result"] == {"n": 2}
    assert (await told(flows, first)).count("task.claimed") == 2, "forgotten for the second run"


async def test_a_run_without_calls_need_not_be_remembered(flows: FlowApp) -> None:
    node = {"kind": "wait_event", "params": {"signal_key": "go"}}
    await flows.until(await flows.start(chain(("w", node))))
    runs = flows.app.onward._flow_runner._executor
    assert isinstance(runs, executor.FlowExecutor)
    assert runs._known == {}


async def test_a_paused_queue_keeps_runs_where_they_are(flows: FlowApp) -> None:
    run, child = await held(flows)
    pauses = flows.app.onward.dispatcher.pressure.pauses
    await pauses.pause(QUEUE)
    await flows.release(child)
    assert (await flows.until(run, lambda run: run["state"] != "waiting"))["state"] == "queued"
    await pauses.resume(QUEUE)
    assert (await flows.ended(run))["result"] == {"n": 2}


@pytest.mark.contract("S4-12")
async def test_a_cancel_that_comes_before_the_step_is_written_holds(
    flows: FlowApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    undo = {"service": "upper"}
    run, child = await held(flows, chain(("a", call("held", compensate=undo)), ("b", call("echo"))))
    dispatcher = flows.app.onward.dispatcher
    store = dispatcher.backend.tasks
    apply = store.apply

    async def meddled(moves: Any, asks: Any = (), **named: Any) -> Any:
        if any(move.answer is not None for move in moves):
            monkeypatch.setattr(store, "apply", apply)
            assert await flows.cancel(run) == "canceling"
        return await apply(moves, asks, **named)

    monkeypatch.setattr(store, "apply", meddled)
    await flows.release(child, "did")
    assert (await flows.ended(run))["state"] == "canceled"
    assert [seen for seen in flows.seen if seen[0] != "held"] == [("upper", "did", {"n": 1})]


async def test_a_step_that_cannot_be_made_at_once_leaves_the_call_ended(flows: FlowApp) -> None:
    run, child = await held(flows)

    def stumble(*_: object) -> None:
        raise RuntimeError("no step")

    flows.app.onward.dispatcher.reader = stumble
    await flows.release(child)
    assert (await flows.ended(run))["result"] == {"n": 2}
    assert (await told(flows, run)).count("task.woken") >= 1
