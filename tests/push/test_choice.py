"""Who is called, who is called next, and what ends a call before its answer (S4-5, S4-12)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from onward.core.contract import LeaseRenewal, LeaseStatus
from onward.core.policy import Overrides
from onward.core.task import new_id
from tests.processes import free_port
from tests.push.conftest import (
    Hire,
    Request,
    events,
    raw,
    register,
    run,
    submit,
    until_state,
    wait_until,
)
from tests.running_app import App, running_app
from tests.support import a_task


@pytest.mark.contract("S4-5", "R-6")
async def test_without_a_connection_the_next_worker_has_it_at_once(app: App, hire: Hire) -> None:
    gone, worker = f"http://127.0.0.1:{free_port()}", hire()
    await register(app, gone, id="gone")
    await register(app, worker, id="there", load=5)
    found = await run(app, 1)
    assert (found["state"], found["attempt"], found["failures"]) == ("succeeded", 1, 0)
    said = [
        (type, data["worker"]) for type, data in await events(app, found["id"]) if "worker" in data
    ]
    assert said[1:] == [("task.sent", "gone"), ("task.unreached", "gone"), ("task.sent", "there")]

    again = await run(app, 2)  # it is not asked first again before it is heard of
    sent = await events(app, again["id"], "task.sent", "task.unreached")
    assert [data["worker"] for _, data in sent] == ["there"]


@pytest.mark.contract("S4-5", "R-5", "R-6")
async def test_with_no_worker_to_reach_the_attempt_fails_and_may_be_retried(app: App) -> None:
    for id in ("gone", "too"):
        await register(app, f"http://127.0.0.1:{free_port()}", id=id)
    id = await submit(app, 1)
    found = await until_state(app, id, "scheduled")
    assert (found["error"]["kind"], found["failures"]) == ("ServiceUnavailable", 1)
    sent = await events(app, id, "task.sent")
    assert sorted(data["worker"] for _, data in sent) == ["gone", "too"]


@pytest.mark.contract("S4-5")
async def test_a_name_with_two_addresses_is_tried_at_both(app: App, hire: Hire) -> None:
    worker = hire()
    await register(app, worker, id="w1")
    registry = app.onward.registry
    documents = registry._documents
    (found,) = await documents.list("http_worker", now=app.clock.now())
    body = found.body.replace('["127.0.0.1"]', '["127.0.0.9","127.0.0.1"]')
    await documents.put("http_worker", "w1", body, now=app.clock.now())
    await registry.all()
    assert (await run(app, 1))["state"] == "succeeded"


@pytest.mark.contract("S4-5")
async def test_work_is_shared_out_by_load(app: App, hire: Hire) -> None:
    release = threading.Event()

    def hold(request: Request) -> Any:
        release.wait(60)
        return request.body["input"]

    workers = [hire(hold), hire(hold)]
    for worker in workers:
        await register(app, worker)
    ids = [await submit(app, number) for number in range(6)]
    await wait_until(lambda: sum(len(worker.calls) for worker in workers) == 6)
    assert [len(worker.calls) for worker in workers] == [3, 3]
    release.set()
    for id in ids:
        await until_state(app, id, "succeeded")


@pytest.mark.contract("S4-5")
async def test_who_has_calls_under_way_is_not_called_next(app: App, hire: Hire) -> None:
    release = threading.Event()

    def hold(request: Request) -> Any:
        release.wait(60)
        return None

    slow, quick = hire(hold), hire()
    await register(app, slow, id="slow")
    await register(app, quick, id="quick", load=0.5)
    held = await submit(app, 0)
    await wait_until(lambda: slow.calls)
    assert [(await run(app, number))["result"] for number in (1, 2, 3)] == [1, 2, 3]
    assert (slow.inputs, quick.inputs) == ([0], [1, 2, 3])
    release.set()
    await until_state(app, held, "succeeded")


@pytest.mark.contract("S4-5")
async def test_a_worker_that_reports_much_load_is_left_alone(app: App, hire: Hire) -> None:
    calm, loaded = hire(), hire()
    await register(app, calm, id="calm")
    await register(app, loaded, id="loaded", load=3)
    await asyncio.gather(*[run(app, number) for number in range(3)])
    assert (len(calm.calls), len(loaded.calls)) == (3, 0)
    await app.post("/heartbeat", {"id": "calm", "load": 9})
    await run(app, 3)
    assert loaded.inputs == [3]


@pytest.mark.contract("S4-6")
@pytest.mark.parametrize(("by_load", "calls"), [(True, [4, 0]), (False, [2, 2])])
async def test_a_node_that_is_not_weighted_by_load_takes_its_workers_in_turn(
    app: App, hire: Hire, by_load: bool, calls: list[int]
) -> None:
    calm, loaded = hire(), hire()
    await register(app, calm, id="calm")
    await register(app, loaded, id="loaded", load=3)
    node = {"kind": "executor", "service": "echo", "weighted_by_load": by_load}
    flow = (await app.post("/flows", {"name": "turns"})).json()["id"]
    definition = {"start": "a", "nodes": {"a": node}, "edges": []}
    await app.post("/flows/version", {"flow_id": flow, "definition": definition})
    for _ in range(4):
        ended = await app.post("/api/v2/runs?wait_ms=10000", {"flow": "turns"})
        assert ended.json()["state"] == "succeeded"
    assert [len(calm.calls), len(loaded.calls)] == calls


async def test_no_more_is_claimed_than_workers_take(app: App, hire: Hire) -> None:
    release = threading.Event()

    def hold(request: Request) -> Any:
        release.wait(60)
        return None

    worker = hire(hold)
    await register(app, worker, id="w1", slots=2)
    ids = [await submit(app, number) for number in range(4)]
    await wait_until(lambda: len(worker.calls) == 2)
    await app.settled()
    assert [(await app.task(id))["state"] for id in ids] == ["running"] * 2 + ["queued"] * 2
    release.set()
    for id in ids:
        await until_state(app, id, "succeeded")
    assert sorted(worker.inputs) == [0, 1, 2, 3]


async def test_a_worker_that_takes_less_than_before_is_given_less(app: App, hire: Hire) -> None:
    go_on = [threading.Event() for _ in range(3)]

    def hold(request: Request) -> Any:
        go_on[request.body["input"]].wait(60)
        return None

    worker = hire(hold)
    await register(app, worker, id="w1", slots=3)
    first, second = await submit(app, 0), await submit(app, 1)
    await wait_until(lambda: len(worker.calls) == 2)
    await register(app, worker, id="w1", slots=1)  # fewer than run already
    third = await submit(app, 2)
    go_on[0].set()
    await until_state(app, first, "succeeded")
    await app.settled()
    assert (await app.task(third))["state"] == "queued"
    for event in go_on:
        event.set()
    for id in (second, third):
        await until_state(app, id, "succeeded")


@pytest.mark.contract("R-9")
async def test_slots_are_a_setting(hire: Hire) -> None:
    async with running_app(push_slots=1) as app:
        release = threading.Event()

        def hold(request: Request) -> Any:
            release.wait(60)
            return None

        worker = hire(hold)
        await register(app, worker)
        first, second = await submit(app), await submit(app)
        await wait_until(lambda: worker.calls)
        await app.settled()
        assert (await app.task(second))["state"] == "queued"
        release.set()
        for id in (first, second):
            await until_state(app, id, "succeeded")


async def submit_node(app: App, *, tries_each: int, max_retries: int, backoff_ms: int = 0) -> str:
    """As a flow does: so many tries on one worker before the next."""
    overrides = Overrides(max_retries=max_retries, backoff_ms=(backoff_ms,), tries_each=tries_each)
    node = a_task(id=new_id(), type="echo", queue="echo", overrides=overrides.encode())
    await app.onward.dispatcher.submit(node)
    return node.id


@pytest.mark.contract("S4-6")
async def test_retries_stay_on_one_worker_and_then_move_to_the_next(app: App, hire: Hire) -> None:
    workers = {id: hire(raw(500)) for id in ("a", "b", "c")}
    for id, worker in workers.items():
        await register(app, worker, id=id)
    node = await submit_node(app, tries_each=2, max_retries=6)
    await until_state(app, node, "dead")
    sent = [data["worker"] for _, data in await events(app, node, "task.sent")]
    first, second, third = sent[0], sent[2], sent[4]
    assert sent[:6] == [first, first, second, second, third, third]
    assert {first, second, third} == set(workers)
    assert len(sent) == 7


@pytest.mark.contract("S4-6")
async def test_a_worker_that_goes_away_is_replaced_in_its_turn(app: App, hire: Hire) -> None:
    a, b = hire(raw(500)), hire()
    await register(app, a, id="a")
    await register(app, b, id="b", load=1)
    node = await submit_node(app, tries_each=5, max_retries=5, backoff_ms=1_000)
    await until_state(app, node, "scheduled")
    await app.post("/workers/deregister", {"id": "a"})
    await app.advance(1_000)
    await until_state(app, node, "succeeded")
    assert (len(a.calls), len(b.calls)) == (1, 1)


@pytest.mark.contract("S4-6")
async def test_a_replayed_node_starts_its_turns_anew(app: App, hire: Hire) -> None:
    a, b = hire(raw(500)), hire(raw(500))
    await register(app, a, id="a")
    await register(app, b, id="b", load=1)
    node = await submit_node(app, tries_each=1, max_retries=1)
    await until_state(app, node, "dead")
    await app.post(f"/api/v2/tasks/{node}/retry", {})
    await wait_until(lambda: len(a.calls) + len(b.calls) == 4)
    sent = [data["worker"] for _, data in await events(app, node, "task.sent")]
    assert sent == ["a", "b", "a", "b"]


# Time, and being stopped.


@pytest.mark.contract("S4-5", "S4-12")
async def test_a_canceled_task_ends_the_call_and_tells_the_worker(app: App, hire: Hire) -> None:
    release = threading.Event()

    def hold(request: Request) -> Any:
        release.wait(60)
        return None

    worker = hire(hold)
    await register(app, worker)
    id = await submit(app)
    await wait_until(lambda: worker.calls)
    assert (await app.post(f"/api/v2/tasks/{id}/cancel", {})).status_code == 200
    found = await until_state(app, id, "canceled")
    assert found["error"] is None
    await wait_until(lambda: worker.cancels)
    assert worker.cancels == [{"task_id": id}]
    assert "task.late_result" not in dict(await events(app, id))
    release.set()


@pytest.mark.contract("S4-5", "S4-12")
async def test_an_attempt_past_its_time_is_aborted_and_told(app: App, hire: Hire) -> None:
    release = threading.Event()

    def hold(request: Request) -> Any:
        release.wait(60)
        return None

    worker = hire(hold)
    await register(app, worker)
    id = await submit(app, timeout_ms=2_000, max_retries=0)
    await wait_until(lambda: worker.calls)
    await app.advance(2_000)
    found = await until_state(app, id, "dead")
    assert found["error"]["kind"] == "TIMEOUT"
    await wait_until(lambda: worker.cancels)
    assert "task.late_result" not in dict(await events(app, id))
    release.set()


@pytest.mark.contract("S4-5")
async def test_no_call_lasts_longer_than_the_setting(hire: Hire) -> None:
    async with running_app(push_timeout_ms=500) as app:
        release = threading.Event()

        def hold(request: Request) -> Any:
            release.wait(60)
            return None

        worker = hire(hold)
        await register(app, worker)
        found = await run(app, 1, max_retries=0)
        assert (found["state"], found["error"]["kind"]) == ("dead", "TIMEOUT")
        await wait_until(lambda: worker.cancels)
        release.set()


@pytest.mark.contract("S4-5", "S4-12")
async def test_what_a_stopping_server_cannot_wait_for_goes_back_unburned(hire: Hire) -> None:
    release = threading.Event()

    def hold(request: Request) -> Any:
        release.wait(60)
        return None

    async with running_app() as app:
        worker = hire(hold)
        await register(app, worker)
        id = await submit(app)
        await wait_until(lambda: worker.calls)
        await app.asgi.drain()
        found = await app.task(id)
        assert (found["state"], found["attempt"]) == ("queued", 0)
        assert worker.cancels == [{"task_id": id}]
    release.set()


@pytest.mark.contract("S4-5")
async def test_a_stopping_server_lets_calls_finish(hire: Hire) -> None:
    release = threading.Event()

    def hold(request: Request) -> Any:
        release.wait(60)
        return "done"

    async with running_app(drain_ms=5_000) as app:
        worker = hire(hold)
        await register(app, worker)
        id = await submit(app)
        await wait_until(lambda: worker.calls)
        draining = asyncio.create_task(app.asgi.drain())
        await app.settled()
        release.set()
        await draining
        assert (await app.task(id))["result"] == "done"
        assert not worker.cancels


async def test_what_is_no_longer_ours_is_not_sent(app: App, hire: Hire) -> None:
    worker = hire()
    await register(app, worker)

    async def taken_away(renewal: LeaseRenewal) -> LeaseStatus:
        return LeaseStatus.LOST

    app.onward.dispatcher.extend = taken_away  # type: ignore[method-assign]
    id = await submit(app)
    assert (await until_state(app, id, "dead"))["error"]["kind"] == "poison"
    assert not worker.calls


async def test_what_is_canceled_between_claim_and_call_is_not_sent(app: App, hire: Hire) -> None:
    worker = hire()
    await register(app, worker)
    dispatcher = app.onward.dispatcher
    extend = dispatcher.extend

    async def canceled_meanwhile(renewal: LeaseRenewal) -> LeaseStatus:
        await dispatcher.cancel(renewal.task)
        return await extend(renewal)

    dispatcher.extend = canceled_meanwhile  # type: ignore[method-assign]
    id = await submit(app)
    await until_state(app, id, "canceled")
    assert not worker.calls


async def test_cookies_of_one_worker_are_not_anothers(app: App, hire: Hire) -> None:
    worker = hire(raw(200, {"result": 1}, set_cookie="secret=1"))
    await register(app, worker)
    await run(app)
    await run(app)
    assert [call.headers.get("cookie") for call in worker.calls] == [None, None]


async def test_a_proxy_from_the_environment_is_not_used(
    app: App, hire: Hire, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = hire()
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    monkeypatch.setenv("ALL_PROXY", proxy.url)
    worker = hire()
    await register(app, worker)
    assert (await run(app, 1))["state"] == "succeeded"
    assert not proxy.calls
    assert len(worker.calls) == 1


@pytest.mark.contract("S4-5")
async def test_many_tasks_are_each_done_once(app: App, hire: Hire) -> None:
    workers = [hire(), hire()]
    for worker in workers:
        await register(app, worker)
    found = await asyncio.gather(*[run(app, number) for number in range(200)])
    assert [one["result"] for one in found] == list(range(200))
    assert sorted(workers[0].inputs + workers[1].inputs) == list(range(200))
