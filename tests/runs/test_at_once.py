"""A run goes on in the move that ends its child, where nothing speaks against it."""

from __future__ import annotations

from typing import Any

import pytest

from onward.flow import executor
from onward.flow.runs import QUEUE
from onward.services.catalog import RENEW_MS, Declared
from tests.runs.centre import Centre, call, chain, counted
from tests.support import wait_until

THREE = chain(*((key, call("add", "n", "n")) for key in "abc"))
HELD_FIRST = chain(("a", call("held")), ("b", call("add", "$params.n", "n")))


async def told(centre: Centre, run: str) -> list[str]:
    page = await centre.house.onward.backend.tasks.events(after="", limit=1_000, task=run)
    return [event.type for event in page.items]


async def held(centre: Centre, definition: Any = HELD_FIRST) -> tuple[str, str]:
    """A run whose first call is being done, and that call."""
    await centre.serve()
    run = await centre.start(definition, params={"n": 1})
    await wait_until(lambda: centre.held)
    await centre.until(run)
    return run, centre.held[0]


@pytest.mark.contract("S4-11")
async def test_a_run_is_claimed_once_and_goes_on_as_its_calls_end(any_centre: Centre) -> None:
    centre = any_centre
    await centre.serve()
    run = await centre.run(THREE)
    assert (run["state"], run["result"]) == ("succeeded", {"n": 3})
    events = await told(centre, run["id"])
    assert [type_ for type_ in events if type_.startswith("task.")] == [
        "task.created",
        "task.claimed",
        "task.parked",
        "task.succeeded",
    ]
    nodes = [type_ for type_ in events if type_.startswith("node.")]
    assert nodes == ["node.started", "node.finished"] * 3
    assert await centre.trail(run["id"]) == [(key, "ok", "default") for key in "abc"]


async def test_a_run_that_nobody_remembers_is_woken_and_claimed(
    centre: Centre, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "MOST_TEXT", 1)
    await centre.serve()
    run = await centre.run(THREE)
    assert run["result"] == {"n": 3}
    assert (await told(centre, run["id"])).count("task.claimed") == 4


async def test_what_is_known_of_services_is_read_anew_before_a_run_must_be_woken_for_it(
    centre: Centre,
) -> None:
    await centre.house.onward.catalog.declare(Declared(name="held", task_types=("held",)))
    run, _ = await held(centre, chain(*((key, call("held")) for key in "abcde")))
    for step in range(5):
        await wait_until(counted(centre.held, 1))
        await centre.house.advance(RENEW_MS)
        await centre.release(f"{run}-{step}")
    assert (await centre.ended(run))["state"] == "succeeded"
    assert (await told(centre, run)).count("task.claimed") == 1


async def test_no_more_runs_are_remembered_than_allowed(
    centre: Centre, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "MOST_KNOWN", 1)
    await centre.serve()
    flow = await centre.publish(HELD_FIRST)
    first = await centre.begin(flow, params={"n": 1})
    await centre.until(first)
    await centre.until(await centre.begin(flow, params={"n": 1}))
    await wait_until(counted(centre.held, 2))
    await centre.release(f"{first}-0")
    assert (await centre.ended(first))["result"] == {"n": 2}
    assert (await told(centre, first)).count("task.claimed") == 2, "forgotten for the second run"


async def test_a_run_without_calls_need_not_be_remembered(centre: Centre) -> None:
    node = {"kind": "wait_event", "params": {"signal_key": "go"}}
    await centre.until(await centre.start(chain(("w", node))))
    runs = centre.house.onward._flow_runner._executor
    assert isinstance(runs, executor.FlowExecutor)
    assert runs._known == {}


async def test_a_paused_queue_keeps_runs_where_they_are(centre: Centre) -> None:
    run, child = await held(centre)
    pauses = centre.house.onward.dispatcher.pressure.pauses
    await pauses.pause(QUEUE)
    await centre.release(child)
    assert (await centre.until(run, lambda run: run["state"] != "waiting"))["state"] == "queued"
    await pauses.resume(QUEUE)
    assert (await centre.ended(run))["result"] == {"n": 2}


@pytest.mark.contract("S4-12")
async def test_a_cancel_that_comes_before_the_step_is_written_holds(
    centre: Centre, monkeypatch: pytest.MonkeyPatch
) -> None:
    undo = {"service": "upper"}
    run, child = await held(
        centre, chain(("a", call("held", compensate=undo)), ("b", call("echo")))
    )
    dispatcher = centre.house.onward.dispatcher
    store = dispatcher.backend.tasks
    apply = store.apply

    async def meddled(moves: Any, asks: Any = (), *, now: int) -> Any:
        if any(move.answer is not None for move in moves):
            monkeypatch.setattr(store, "apply", apply)
            assert await centre.cancel(run) == "canceling"
        return await apply(moves, asks, now=now)

    monkeypatch.setattr(store, "apply", meddled)
    await centre.release(child, "did")
    assert (await centre.ended(run))["state"] == "canceled"
    assert [seen for seen in centre.seen if seen[0] != "held"] == [("upper", "did", {"n": 1})]


async def test_a_step_that_cannot_be_made_at_once_leaves_the_call_ended(centre: Centre) -> None:
    run, child = await held(centre)

    def stumble(*_: object) -> None:
        raise RuntimeError("no step")

    centre.house.onward.dispatcher.reader = stumble
    await centre.release(child)
    assert (await centre.ended(run))["result"] == {"n": 2}
    assert (await told(centre, run)).count("task.woken") >= 1
