"""Agents and services over Redis streams, with the agents' own words (S2-2, S2-3, S2-8)."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from onward.workers.streams import feed as streams
from tests.agents.agent_app import COMPLETED, CREATE, DEAD, FAILED, AgentApp, open_agent_app
from tests.support import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.contract("S2-3")]

LEDGERS = pytest.mark.parametrize("ledger", ["sqlite", "redis"])


@pytest.fixture(params=["sqlite", "redis"])
async def agents(request: pytest.FixtureRequest) -> AsyncIterator[AgentApp]:
    async with open_agent_app(request.param) as opened:
        yield opened


@pytest.mark.contract("S2-2", "R-2")
async def test_a_task_goes_out_in_the_agents_envelope_and_comes_back(agents: AgentApp) -> None:
    await agents.join()
    task = await agents.submit(
        type="report.generate", queue="agents", payload={"quarter": "Q4"},
        session_id="user-123", timeout_ms=300_000, priority="high",
    )  # fmt: skip
    entry, event = await agents.get()
    assert uuid.UUID(event["event_id"]).version == 4
    assert event["event_type"] == CREATE.removeprefix("agent:stream:")
    assert event["timestamp"].endswith("Z")
    ours = {"fence": 1, "attempt": 1}
    assert event["data"] == {
        "task_id": task, "task_type": "report.generate", "params": {"quarter": "Q4"},
        "session_id": "user-123", "timeout": 300, "priority": "high", "created_by": "agent", **ours,
    }  # fmt: skip
    await agents.phase(task, "running")
    assert (await agents.read(task))["worker"] == "report-service-worker-1"
    await agents.finish(entry, task, {"file_url": "https://storage/report.pdf"})
    over = await agents.over(task)
    assert (over["state"], over["result"]) == (
        "succeeded",
        {"file_url": "https://storage/report.pdf"},
    )
    await agents.swept()
    (notice,) = await agents.notices()
    assert (notice["data"]["type"], notice["data"]["task_id"]) == ("task_completed", task)


@pytest.mark.contract("S2-2", "S2-5")
async def test_a_task_without_a_timeout_shows_the_usual_one(
    agents: AgentApp,
) -> None:
    await agents.join()
    task = await agents.submit(type="report.generate", queue="agents", session_id="user-1")
    entry, event = await agents.get()
    assert event["data"]["timeout"] == 300

    async def shown() -> bool:
        return bool(await agents.redis.hget(f"task:{task}", "timeout") == b"300")

    await wait_until(shown)
    await agents.finish(entry, task)
    await agents.over(task)


async def test_nothing_is_put_there_before_a_service_has_its_group(agents: AgentApp) -> None:
    task = await agents.submit(type="report.generate", queue="agents")

    async def waits() -> bool:
        queued = (await agents.read(task))["phase"] == "queued"
        return queued and await agents.length(CREATE) == 0

    await agents.holds(waits, 1.2)
    await agents.join(start="$")
    _, event = await agents.get()
    assert event["data"]["task_id"] == task


@pytest.mark.contract("R-2")
async def test_a_declared_type_goes_by_stream_unless_a_worker_serves_it_natively(
    agents: AgentApp,
) -> None:
    await agents.join()
    declared = {"name": "report-service", "task_types": ["report.generate"], "via": "agent-stream"}
    assert (await agents.http.post("/api/v2/services", json=declared)).status_code in (200, 201)
    task = await agents.submit(type="report.generate")
    entry, event = await agents.get()
    assert event["data"]["task_id"] == task
    await agents.finish(entry, task)
    await agents.over(task)
    await agents.swept()

    roster = agents.app.onward.roster
    await roster.join(roster.member("native", "socket", ["report.generate"], 1))
    other = await agents.submit(type="report.generate")

    async def stays() -> bool:
        return await agents.length(CREATE) == 0

    async def unlisted() -> bool:
        return "report.generate" not in agents.app.onward._agent_feed._offers.worker_slots.queues

    await agents.until(unlisted)
    await agents.until(stays)
    await agents.holds(stays, 1)
    assert (await agents.read(other))["state"] == "queued"


@LEDGERS
async def test_all_types_for_the_other_door_leaves_ours_alone(ledger: str) -> None:
    async with open_agent_app(ledger, stream_types=("*",)) as agents:
        declared = {"name": "report-service", "task_types": ["r"], "via": "agent-stream"}
        assert (await agents.http.post("/api/v2/services", json=declared)).status_code in (200, 201)
        tasks = [await agents.submit(type="r"), await agents.submit(type="x", queue="agents")]
        other = await agents.submit(type="y")
        await agents.phase(other, "offered")

        async def wait() -> bool:
            return all([(await agents.read(task))["phase"] == "queued" for task in tasks])

        await agents.holds(wait, 1.2)


@pytest.mark.contract("S2-8", "R-5")
async def test_a_transient_failure_is_tried_three_times_more_and_then_a_dead_letter(
    agents: AgentApp,
) -> None:
    await agents.join()
    task = await agents.submit(type="report.generate", queue="agents", session_id="user-123")
    for attempt in (1, 2, 3, 4):
        entry, event = await agents.get()
        assert (event["data"]["task_id"], event["data"]["attempt"]) == (task, attempt)
        await agents.fail_with(entry, task, "RATE_LIMITED")
    over = await agents.over(task)
    assert (over["state"], over["failures"], over["retries"]) == ("dead", 4, 3)
    (letter,) = await agents.told(DEAD)
    assert letter["data"]["task_id"] == task
    assert letter["data"]["params"] is None
    assert letter["data"]["error"] == {
        "code": "RATE_LIMITED", "message": "it went wrong", "details": {"at": 3},
    }  # fmt: skip
    await agents.notices()
    assert len(await agents.on(FAILED)) == 4, "what the service said, and no echo of the last"
    await agents.swept()


@pytest.mark.contract("S2-8", "R-5")
@pytest.mark.parametrize("code", ["InvalidInput", "INSUFFICIENT_DATA"])
async def test_a_permanent_or_unheard_of_failure_is_final(agents: AgentApp, code: str) -> None:
    await agents.join()
    task = await agents.submit(type="report.generate", queue="agents", session_id="user-123")
    entry, _ = await agents.get()
    await agents.fail_with(entry, task, code)
    over = await agents.over(task)
    assert (over["state"], over["retries"], over["error"]["kind"]) == ("dead", 0, code)
    (notice,) = await agents.notices()
    assert notice["data"]["type"] == "task_failed"
    assert "it went wrong" in notice["data"]["message"]
    (letter,) = await agents.told(DEAD)
    assert letter["data"]["error"]["code"] == code


@pytest.mark.contract("R-5")
async def test_a_service_may_say_itself_whether_to_try_again(agents: AgentApp) -> None:
    await agents.join()
    task = await agents.submit(type="report.generate", queue="agents")
    entry, _ = await agents.get()
    await agents.fail_with(entry, task, "INSUFFICIENT_DATA", retryable=True)
    entry, _ = await agents.get()
    await agents.fail_with(entry, task, "BUSY", status=503)
    entry, _ = await agents.get()
    await agents.fail_with(entry, task, "UNAVAILABLE", retryable=False)
    over = await agents.over(task)
    assert (over["state"], over["retries"]) == ("dead", 2)


async def test_a_foreign_agents_task_is_adopted_and_its_result_settles_it(agents: AgentApp) -> None:
    await agents.join()
    task = await agents.ask(priority="low", timeout=60)
    found = await agents.known(task)
    assert (found["phase"], found["type"]) == ("offered", "report.generate")
    assert (found["payload"], found["priority"]) == ({"quarter": "Q4"}, "low")
    entry, _ = await agents.get()
    await agents.phase(task, "running")
    await agents.finish(entry, task, 5)
    assert (await agents.over(task))["result"] == 5
    (heard,) = await agents.hear(COMPLETED)
    assert heard["data"]["completed_by"] == "report-service", (
        "the agents' own group is left to them"
    )
    (notice,) = await agents.notices()
    assert notice["data"]["task_id"] == task
    listed = (await agents.http.get("/api/v2/sessions/user-123/tasks")).json()["items"]
    assert [item["id"] for item in listed] == [task]

    async def kept() -> Any:
        return (await agents.http.get("/api/v2/sessions/user-123/notifications")).json()["items"]

    assert len(await agents.until(kept)) == 1
    await agents.swept()


async def test_a_foreign_task_that_a_service_has_already_is_adopted_as_running(
    agents: AgentApp,
) -> None:
    await agents.shut()
    await agents.join("early")
    task = await agents.ask()
    entry, _ = await agents.get("early")
    await agents.open()
    await agents.phase(task, "running")
    await agents.finish(entry, task, 6, service="early")
    assert (await agents.over(task))["result"] == 6


async def test_a_foreign_task_that_fails_is_tried_again_by_our_rules(agents: AgentApp) -> None:
    await agents.join()
    task = await agents.ask()
    entry, _ = await agents.get()
    await agents.fail_with(entry, task, "UNAVAILABLE")
    entry, event = await agents.get()
    assert (event["data"]["task_id"], event["data"]["session_id"]) == (task, "user-123")
    assert event["data"]["timeout"] == 300
    await agents.finish(entry, task)
    assert (await agents.over(task))["state"] == "succeeded"


async def test_a_result_for_an_unknown_task_adopts_it_first(agents: AgentApp) -> None:
    await agents.finish(None, "never-seen", 7)
    await agents.known("never-seen")
    assert (await agents.over("never-seen"))["result"] == 7


async def test_a_completion_told_twice_counts_once(agents: AgentApp) -> None:
    await agents.join()
    task = await agents.submit(type="report.generate", queue="agents", session_id="user-123")
    entry, _ = await agents.get()
    await agents.finish(entry, task, 1)
    assert (await agents.over(task))["result"] == 1
    await agents.finish(None, task, 2)

    async def late() -> bool:
        return "task.late_result" in await agents.types(task)

    await agents.until(late)
    assert (await agents.read(task))["result"] == 1
    assert (await agents.types(task)).count("task.succeeded") == 1
    assert len(await agents.notices()) == 1


async def test_a_service_that_dies_with_its_entry_loses_it_to_the_next(agents: AgentApp) -> None:
    await agents.join()
    task = await agents.submit(type="report.generate", queue="agents")
    lost, _ = await agents.get(worker="dies")
    await agents.fall_silent(lost, "dies")
    entry, event = await agents.get(worker="lives")
    assert (event["data"]["task_id"], event["data"]["fence"]) == (task, 2)
    await agents.finish(entry, task, "at last")
    assert (await agents.over(task))["result"] == "at last"
    assert "task.reclaimed" in await agents.types(task)
    await agents.swept()


async def test_a_slow_service_is_believed_when_it_is_done_at_last(agents: AgentApp) -> None:
    await agents.join()
    task = await agents.submit(type="report.generate", queue="agents")
    entry, _ = await agents.get()
    await agents.fall_silent(entry)

    async def offered_again() -> bool:
        return "task.reclaimed" in await agents.types(task) and await agents.length(CREATE) == 1

    await agents.until(offered_again)
    await agents.finish(None, task, "slow")
    assert (await agents.over(task))["result"] == "slow"
    await agents.swept()


async def test_an_envelope_that_says_nothing_stops_nothing(agents: AgentApp) -> None:
    await agents.join()
    for nonsense in ("no json", "[]", '{"task_id": null}', "[" * 5000, '{"task_id": "a\\u0000"}'):
        await agents.publish(COMPLETED, nonsense)
        await agents.publish(FAILED, nonsense)
    await agents.publish(FAILED, {"task_id": "odd", "error": "just a text"})
    await agents.known("odd")
    over = await agents.over("odd")
    assert (over["state"], over["error"]["message"]) == ("dead", "just a text")
    task = await agents.submit(type="report.generate", queue="agents")
    entry, _ = await agents.get()
    await agents.finish(entry, task)
    assert (await agents.over(task))["state"] == "succeeded"


# Several services.


async def test_each_service_takes_its_own_and_lets_the_others_go(agents: AgentApp) -> None:
    await agents.join()
    await agents.join("data-service")
    report = await agents.submit(type="report.generate", queue="agents")
    data = await agents.submit(type="data.analyze", queue="agents")
    entry, event = await agents.get("data-service", types=("data.analyze",))
    assert event["data"]["task_id"] == data
    await agents.phase(data, "running")
    await agents.finish(entry, data, "d", service="data-service")
    assert (await agents.over(data))["worker"] == "data-service-worker-1"
    entry, event = await agents.get()
    assert event["data"]["task_id"] == report
    await agents.finish(entry, report, "r")
    assert (await agents.over(report))["result"] == "r"
    await agents.swept()
    await agents.swept("data-service")


async def test_a_service_that_let_it_go_does_not_make_it_look_taken_or_lost(
    agents: AgentApp,
) -> None:
    await agents.join()
    await agents.join("data-service")
    # Somebody is in the other group, and slow to read.
    await agents.redis.xgroup_createconsumer(CREATE, "report-service-group", "slow")
    task = await agents.submit(type="report.generate", queue="agents")
    with pytest.raises(AssertionError):
        await agents.get("data-service", types=("data.analyze",), timeout=1)

    async def waits() -> bool:
        return bool((await agents.read(task))["phase"] == "offered")

    await agents.holds(waits, 2.5)
    entry, event = await agents.get()
    assert event["data"]["fence"] == 1, "the same offer all the time"
    await agents.finish(entry, task)
    assert (await agents.over(task))["state"] == "succeeded"


async def test_a_service_that_only_looks_is_not_shown_as_doing_it(
    agents: AgentApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "GLANCE_MS", 5_000)
    monkeypatch.setattr(agents.app.onward._agent_feed, "_visibility_ms", 60_000)
    await agents.join()
    task = await agents.submit(type="report.generate", queue="agents")
    entry, _ = await agents.get()

    async def looks() -> bool:
        return bool((await agents.read(task))["phase"] == "offered")

    await agents.holds(looks, 1.2)
    monkeypatch.setattr(streams, "GLANCE_MS", 100)
    await agents.phase(task, "running")
    await agents.finish(entry, task)
    await agents.over(task)


@pytest.mark.parametrize("ledger", ["sqlite", "redis"])
async def test_what_every_service_let_go_is_offered_again_and_never_counts_as_lost(
    ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "GLANCE_MS", 5_000)
    async with open_agent_app(ledger, visibility_timeout_s=1) as agents:
        await agents.join()
        task = await agents.submit(type="nobody.does", queue="agents")
        for _ in range(2):
            with pytest.raises(AssertionError):
                await agents.get(timeout=1.5)

        async def again() -> bool:
            return (await agents.types(task)).count("task.released") >= 1

        await agents.until(again)
        assert "task.reclaimed" not in await agents.types(task)
        await agents.join("late-service")
        entry, _ = await agents.get("late-service", types=("nobody.does",))
        await agents.finish(entry, task, service="late-service")
        assert (await agents.over(task))["state"] == "succeeded"


async def test_a_dead_consumer_of_another_service_takes_nothing_from_who_works(
    agents: AgentApp,
) -> None:
    await agents.join()
    await agents.join("data-service")
    task = await agents.submit(type="report.generate", queue="agents")
    read, _ = await agents.get("data-service", types=("report.generate",))
    await agents.fall_silent(read, service="data-service")  # it died before acking
    entry, _ = await agents.get(worker="busy")
    group = "report-service-group"
    await agents.phase(task, "running")

    async def beats() -> bool:
        await agents.redis.xclaim(CREATE, group, "report-service-worker-busy", 0, [entry])
        return bool((await agents.read(task))["state"] == "running")

    await agents.holds(beats, 2.5)
    await agents.finish(entry, task)
    assert (await agents.over(task))["state"] == "succeeded"
    assert not {"task.reclaimed", "task.released"} & set(await agents.types(task))
    await agents.swept("data-service")


async def test_a_failure_counts_although_another_service_has_yet_to_read(agents: AgentApp) -> None:
    await agents.join()
    await agents.join("data-service")
    await agents.redis.xgroup_createconsumer(CREATE, "data-service-group", "slow")
    task = await agents.submit(type="report.generate", queue="agents")
    entry, _ = await agents.get()
    await agents.redis.xack(CREATE, "report-service-group", entry)  # first, as some services do
    await agents.fail_with(None, task, "UNAVAILABLE")
    entry, event = await agents.get()
    assert event["data"]["attempt"] == 2
    await agents.finish(entry, task)
    assert (await agents.over(task))["failures"] == 1


async def test_a_task_under_way_is_asked_to_stop_and_one_that_waits_is_withdrawn(
    agents: AgentApp,
) -> None:
    await agents.join()
    task = await agents.submit(type="report.generate", queue="agents")
    entry, _ = await agents.get()
    await agents.phase(task, "running")
    await agents.cancel(task)

    async def asked() -> bool:
        return bool(await agents.redis.exists(f"onward:cancel:{task}:1"))

    await agents.until(asked)
    await agents.finish(entry, task)
    assert (await agents.over(task))["state"] == "canceled"

    other = await agents.submit(type="report.generate", queue="agents")
    await agents.phase(other, "offered")
    await agents.cancel(other)
    assert (await agents.over(other))["state"] == "canceled"
    await agents.swept()
    (told,) = await agents.told(FAILED)
    assert (told["data"]["task_id"], told["data"]["error"]["code"]) == (other, "CANCELED")

    async def shown() -> bool:
        found = await agents.redis.hgetall(f"task:{other}")
        over = found.get(b"status") == b"failed"
        return over and bool(json.loads(found[b"error"])["code"] == "CANCELED")

    await agents.until(shown)


@LEDGERS
async def test_a_server_that_comes_back_goes_on_where_it_stopped(
    ledger: str, tmp_path: Path
) -> None:
    where = ledger if ledger == "redis" else f"sqlite:///{tmp_path}/ledger.db"
    async with open_agent_app(where, visibility_timeout_s=30) as agents:
        await agents.join()
        tasks = [
            await agents.submit(type="report.generate", queue="agents", session_id="user-123")
            for _ in range(3)
        ]
        taken = [await agents.get() for _ in range(2)]
        await agents.phase(tasks[1], "running")

        async def all_offered() -> bool:
            return await agents.length(CREATE) == 3

        await agents.until(all_offered)
        await agents.shut()
        await agents.finish(taken[0][0], tasks[0], "while it was away")
        await agents.open()
        assert (await agents.over(tasks[0]))["result"] == "while it was away"
        await agents.finish(taken[1][0], tasks[1], 2)
        entry, event = await agents.get()
        assert event["data"]["task_id"] == tasks[2]
        await agents.finish(entry, tasks[2], 3)
        assert [(await agents.over(task))["attempt"] for task in tasks] == [1, 1, 1]
        assert len(await agents.notices(count=3)) == 3
        await agents.swept()
