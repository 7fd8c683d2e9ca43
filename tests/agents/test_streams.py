"""Agents and services over Redis streams, with the agents' own words (S2-2, S2-3, S2-8)."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from onward.workers.streams import feed as streams
from tests.agents.agency import COMPLETED, CREATE, DEAD, FAILED, Agency, open_agency

pytestmark = [pytest.mark.slow, pytest.mark.contract("S2-3")]

LEDGERS = pytest.mark.parametrize("ledger", ["sqlite", "redis"])


@pytest.fixture(params=["sqlite", "redis"])
async def agency(request: pytest.FixtureRequest) -> AsyncIterator[Agency]:
    async with open_agency(request.param) as opened:
        yield opened


@pytest.mark.contract("S2-2", "R-2")
async def test_a_task_goes_out_in_the_agents_envelope_and_comes_back(agency: Agency) -> None:
    await agency.join()
    task = await agency.submit(
        type="report.generate", queue="agents", payload={"quarter": "Q4"},
        session_id="user-123", timeout_ms=300_000, priority="high",
    )  # fmt: skip
    entry, event = await agency.get()
    assert uuid.UUID(event["event_id"]).version == 4
    assert event["event_type"] == CREATE.removeprefix("agent:stream:")
    assert event["timestamp"].endswith("Z")
    ours = {"fence": 1, "attempt": 1}
    assert event["data"] == {
        "task_id": task, "task_type": "report.generate", "params": {"quarter": "Q4"},
        "session_id": "user-123", "timeout": 300, "priority": "high", "created_by": "agent", **ours,
    }  # fmt: skip
    await agency.phase(task, "running")
    assert (await agency.read(task))["worker"] == "report-service-worker-1"
    await agency.finish(entry, task, {"file_url": "https://storage/report.pdf"})
    over = await agency.over(task)
    assert (over["state"], over["result"]) == (
        "succeeded",
        {"file_url": "https://storage/report.pdf"},
    )
    await agency.swept()
    (notice,) = await agency.notices()
    assert (notice["data"]["type"], notice["data"]["task_id"]) == ("task_completed", task)


async def test_nothing_is_put_there_before_a_service_has_its_group(agency: Agency) -> None:
    task = await agency.submit(type="report.generate", queue="agents")

    async def waits() -> bool:
        queued = (await agency.read(task))["phase"] == "queued"
        return queued and await agency.length(CREATE) == 0

    await agency.holds(waits, 1.2)
    await agency.join(start="$")
    _, event = await agency.get()
    assert event["data"]["task_id"] == task


@pytest.mark.contract("R-2")
async def test_a_declared_type_goes_by_stream_unless_somebody_serves_it_natively(
    agency: Agency,
) -> None:
    await agency.join()
    declared = {"name": "report-service", "task_types": ["report.generate"], "via": "agent-stream"}
    assert (await agency.http.post("/api/v2/services", json=declared)).status_code in (200, 201)
    task = await agency.submit(type="report.generate")
    entry, event = await agency.get()
    assert event["data"]["task_id"] == task
    await agency.finish(entry, task)
    await agency.over(task)
    await agency.swept()

    roster = agency.app.onward.roster
    await roster.join(roster.member("native", "socket", ["report.generate"], 1))
    other = await agency.submit(type="report.generate")

    async def stays() -> bool:
        return await agency.length(CREATE) == 0

    async def unlisted() -> bool:
        return "report.generate" not in agency.app.onward._agent_feed._offers.worker_slots.queues

    await agency.until(unlisted)
    await agency.until(stays)
    await agency.holds(stays, 1)
    assert (await agency.read(other))["state"] == "queued"


@LEDGERS
async def test_all_types_for_the_other_door_leaves_ours_alone(ledger: str) -> None:
    async with open_agency(ledger, stream_types=("*",)) as agency:
        declared = {"name": "report-service", "task_types": ["r"], "via": "agent-stream"}
        assert (await agency.http.post("/api/v2/services", json=declared)).status_code in (200, 201)
        tasks = [await agency.submit(type="r"), await agency.submit(type="x", queue="agents")]
        other = await agency.submit(type="y")
        await agency.phase(other, "offered")

        async def wait() -> bool:
            return all([(await agency.read(task))["phase"] == "queued" for task in tasks])

        await agency.holds(wait, 1.2)


@pytest.mark.contract("S2-8", "R-5")
async def test_a_transient_failure_is_tried_three_times_more_and_then_a_dead_letter(
    agency: Agency,
) -> None:
    await agency.join()
    task = await agency.submit(type="report.generate", queue="agents", session_id="user-123")
    for attempt in (1, 2, 3, 4):
        entry, event = await agency.get()
        assert (event["data"]["task_id"], event["data"]["attempt"]) == (task, attempt)
        await agency.fail_with(entry, task, "RATE_LIMITED")
    over = await agency.over(task)
    assert (over["state"], over["failures"], over["retries"]) == ("dead", 4, 3)
    (letter,) = await agency.told(DEAD)
    assert letter["data"]["task_id"] == task
    assert letter["data"]["params"] is None
    assert letter["data"]["error"] == {
        "code": "RATE_LIMITED", "message": "it went wrong", "details": {"at": 3},
    }  # fmt: skip
    await agency.notices()
    assert len(await agency.on(FAILED)) == 4, "what the service said, and no echo of the last"
    await agency.swept()


@pytest.mark.contract("S2-8", "R-5")
@pytest.mark.parametrize("code", ["InvalidInput", "INSUFFICIENT_DATA"])
async def test_a_permanent_or_unheard_of_failure_is_final(agency: Agency, code: str) -> None:
    await agency.join()
    task = await agency.submit(type="report.generate", queue="agents", session_id="user-123")
    entry, _ = await agency.get()
    await agency.fail_with(entry, task, code)
    over = await agency.over(task)
    assert (over["state"], over["retries"], over["error"]["kind"]) == ("dead", 0, code)
    (notice,) = await agency.notices()
    assert notice["data"]["type"] == "task_failed"
    assert "it went wrong" in notice["data"]["message"]
    (letter,) = await agency.told(DEAD)
    assert letter["data"]["error"]["code"] == code


@pytest.mark.contract("R-5")
async def test_a_service_may_say_itself_whether_to_try_again(agency: Agency) -> None:
    await agency.join()
    task = await agency.submit(type="report.generate", queue="agents")
    entry, _ = await agency.get()
    await agency.fail_with(entry, task, "INSUFFICIENT_DATA", retryable=True)
    entry, _ = await agency.get()
    await agency.fail_with(entry, task, "BUSY", status=503)
    entry, _ = await agency.get()
    await agency.fail_with(entry, task, "UNAVAILABLE", retryable=False)
    over = await agency.over(task)
    assert (over["state"], over["retries"]) == ("dead", 2)


async def test_a_foreign_agents_task_is_adopted_and_its_result_settles_it(agency: Agency) -> None:
    await agency.join()
    task = await agency.ask(priority="low", timeout=60)
    found = await agency.known(task)
    assert (found["phase"], found["type"]) == ("offered", "report.generate")
    assert (found["payload"], found["priority"]) == ({"quarter": "Q4"}, "low")
    entry, _ = await agency.get()
    await agency.phase(task, "running")
    await agency.finish(entry, task, 5)
    assert (await agency.over(task))["result"] == 5
    (heard,) = await agency.hear(COMPLETED)
    assert heard["data"]["completed_by"] == "report-service", (
        "the agents' own group is left to them"
    )
    (notice,) = await agency.notices()
    assert notice["data"]["task_id"] == task
    listed = (await agency.http.get("/api/v2/sessions/user-123/tasks")).json()["items"]
    assert [item["id"] for item in listed] == [task]

    async def kept() -> Any:
        return (await agency.http.get("/api/v2/sessions/user-123/notifications")).json()["items"]

    assert len(await agency.until(kept)) == 1
    await agency.swept()


async def test_a_foreign_task_that_a_service_has_already_is_adopted_as_running(
    agency: Agency,
) -> None:
    await agency.shut()
    await agency.join("early")
    task = await agency.ask()
    entry, _ = await agency.get("early")
    await agency.open()
    await agency.phase(task, "running")
    await agency.finish(entry, task, 6, service="early")
    assert (await agency.over(task))["result"] == 6


async def test_a_foreign_task_that_fails_is_tried_again_by_our_rules(agency: Agency) -> None:
    await agency.join()
    task = await agency.ask()
    entry, _ = await agency.get()
    await agency.fail_with(entry, task, "UNAVAILABLE")
    entry, event = await agency.get()
    assert (event["data"]["task_id"], event["data"]["session_id"]) == (task, "user-123")
    assert event["data"]["timeout"] == 300
    await agency.finish(entry, task)
    assert (await agency.over(task))["state"] == "succeeded"


async def test_a_result_for_an_unknown_task_adopts_it_first(agency: Agency) -> None:
    await agency.finish(None, "never-seen", 7)
    await agency.known("never-seen")
    assert (await agency.over("never-seen"))["result"] == 7


async def test_a_completion_told_twice_counts_once(agency: Agency) -> None:
    await agency.join()
    task = await agency.submit(type="report.generate", queue="agents", session_id="user-123")
    entry, _ = await agency.get()
    await agency.finish(entry, task, 1)
    assert (await agency.over(task))["result"] == 1
    await agency.finish(None, task, 2)

    async def late() -> bool:
        return "task.late_result" in await agency.types(task)

    await agency.until(late)
    assert (await agency.read(task))["result"] == 1
    assert (await agency.types(task)).count("task.succeeded") == 1
    assert len(await agency.notices()) == 1


async def test_a_service_that_dies_with_its_entry_loses_it_to_the_next(agency: Agency) -> None:
    await agency.join()
    task = await agency.submit(type="report.generate", queue="agents")
    lost, _ = await agency.get(worker="dies")
    await agency.fall_silent(lost, "dies")
    entry, event = await agency.get(worker="lives")
    assert (event["data"]["task_id"], event["data"]["fence"]) == (task, 2)
    await agency.finish(entry, task, "at last")
    assert (await agency.over(task))["result"] == "at last"
    assert "task.reclaimed" in await agency.types(task)
    await agency.swept()


async def test_a_slow_service_is_believed_when_it_is_done_at_last(agency: Agency) -> None:
    await agency.join()
    task = await agency.submit(type="report.generate", queue="agents")
    entry, _ = await agency.get()
    await agency.fall_silent(entry)

    async def offered_again() -> bool:
        return "task.reclaimed" in await agency.types(task) and await agency.length(CREATE) == 1

    await agency.until(offered_again)
    await agency.finish(None, task, "slow")
    assert (await agency.over(task))["result"] == "slow"
    await agency.swept()


async def test_an_envelope_that_says_nothing_stops_nothing(agency: Agency) -> None:
    await agency.join()
    for nonsense in ("no json", "[]", '{"task_id": null}', "[" * 5000, '{"task_id": "a\\u0000"}'):
        await agency.publish(COMPLETED, nonsense)
        await agency.publish(FAILED, nonsense)
    await agency.publish(FAILED, {"task_id": "odd", "error": "just a text"})
    await agency.known("odd")
    over = await agency.over("odd")
    assert (over["state"], over["error"]["message"]) == ("dead", "just a text")
    task = await agency.submit(type="report.generate", queue="agents")
    entry, _ = await agency.get()
    await agency.finish(entry, task)
    assert (await agency.over(task))["state"] == "succeeded"


# Several services.


async def test_each_service_takes_its_own_and_lets_the_others_go(agency: Agency) -> None:
    await agency.join()
    await agency.join("data-service")
    report = await agency.submit(type="report.generate", queue="agents")
    data = await agency.submit(type="data.analyze", queue="agents")
    entry, event = await agency.get("data-service", types=("data.analyze",))
    assert event["data"]["task_id"] == data
    await agency.phase(data, "running")
    await agency.finish(entry, data, "d", service="data-service")
    assert (await agency.over(data))["worker"] == "data-service-worker-1"
    entry, event = await agency.get()
    assert event["data"]["task_id"] == report
    await agency.finish(entry, report, "r")
    assert (await agency.over(report))["result"] == "r"
    await agency.swept()
    await agency.swept("data-service")


async def test_a_service_that_let_it_go_does_not_make_it_look_taken_or_lost(
    agency: Agency,
) -> None:
    await agency.join()
    await agency.join("data-service")
    # Somebody is in the other group, and slow to read.
    await agency.redis.xgroup_createconsumer(CREATE, "report-service-group", "slow")
    task = await agency.submit(type="report.generate", queue="agents")
    with pytest.raises(AssertionError):
        await agency.get("data-service", types=("data.analyze",), timeout=1)

    async def waits() -> bool:
        return bool((await agency.read(task))["phase"] == "offered")

    await agency.holds(waits, 2.5)
    entry, event = await agency.get()
    assert event["data"]["fence"] == 1, "the same offer all the time"
    await agency.finish(entry, task)
    assert (await agency.over(task))["state"] == "succeeded"


async def test_a_service_that_only_looks_is_not_shown_as_doing_it(
    agency: Agency, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "GLANCE_MS", 5_000)
    monkeypatch.setattr(agency.app.onward._agent_feed, "_visibility_ms", 60_000)
    await agency.join()
    task = await agency.submit(type="report.generate", queue="agents")
    entry, _ = await agency.get()

    async def looks() -> bool:
        return bool((await agency.read(task))["phase"] == "offered")

    await agency.holds(looks, 1.2)
    monkeypatch.setattr(streams, "GLANCE_MS", 100)
    await agency.phase(task, "running")
    await agency.finish(entry, task)
    await agency.over(task)


@pytest.mark.parametrize("ledger", ["sqlite", "redis"])
async def test_what_every_service_let_go_is_offered_again_and_never_counts_as_lost(
    ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "GLANCE_MS", 5_000)
    async with open_agency(ledger, visibility_timeout_s=1) as agency:
        await agency.join()
        task = await agency.submit(type="nobody.does", queue="agents")
        for _ in range(2):
            with pytest.raises(AssertionError):
                await agency.get(timeout=1.5)

        async def again() -> bool:
            return (await agency.types(task)).count("task.released") >= 1

        await agency.until(again)
        assert "task.reclaimed" not in await agency.types(task)
        await agency.join("late-service")
        entry, _ = await agency.get("late-service", types=("nobody.does",))
        await agency.finish(entry, task, service="late-service")
        assert (await agency.over(task))["state"] == "succeeded"


async def test_a_dead_consumer_of_another_service_takes_nothing_from_who_works(
    agency: Agency,
) -> None:
    await agency.join()
    await agency.join("data-service")
    task = await agency.submit(type="report.generate", queue="agents")
    read, _ = await agency.get("data-service", types=("report.generate",))
    await agency.fall_silent(read, service="data-service")  # it died before acking
    entry, _ = await agency.get(worker="busy")
    group = "report-service-group"
    await agency.phase(task, "running")

    async def beats() -> bool:
        await agency.redis.xclaim(CREATE, group, "report-service-worker-busy", 0, [entry])
        return bool((await agency.read(task))["state"] == "running")

    await agency.holds(beats, 2.5)
    await agency.finish(entry, task)
    assert (await agency.over(task))["state"] == "succeeded"
    assert not {"task.reclaimed", "task.released"} & set(await agency.types(task))
    await agency.swept("data-service")


async def test_a_failure_counts_although_another_service_has_yet_to_read(agency: Agency) -> None:
    await agency.join()
    await agency.join("data-service")
    await agency.redis.xgroup_createconsumer(CREATE, "data-service-group", "slow")
    task = await agency.submit(type="report.generate", queue="agents")
    entry, _ = await agency.get()
    await agency.redis.xack(CREATE, "report-service-group", entry)  # first, as some services do
    await agency.fail_with(None, task, "UNAVAILABLE")
    entry, event = await agency.get()
    assert event["data"]["attempt"] == 2
    await agency.finish(entry, task)
    assert (await agency.over(task))["failures"] == 1


async def test_a_task_under_way_is_asked_to_stop_and_one_that_waits_is_withdrawn(
    agency: Agency,
) -> None:
    await agency.join()
    task = await agency.submit(type="report.generate", queue="agents")
    entry, _ = await agency.get()
    await agency.phase(task, "running")
    await agency.cancel(task)

    async def asked() -> bool:
        return bool(await agency.redis.exists(f"onward:cancel:{task}:1"))

    await agency.until(asked)
    await agency.finish(entry, task)
    assert (await agency.over(task))["state"] == "canceled"

    other = await agency.submit(type="report.generate", queue="agents")
    await agency.phase(other, "offered")
    await agency.cancel(other)
    assert (await agency.over(other, 2))["state"] == "canceled"
    await agency.swept()
    (told,) = await agency.told(FAILED)
    assert (told["data"]["task_id"], told["data"]["error"]["code"]) == (other, "CANCELED")


@LEDGERS
async def test_a_server_that_comes_back_goes_on_where_it_stopped(
    ledger: str, tmp_path: Path
) -> None:
    where = ledger if ledger == "redis" else f"sqlite:///{tmp_path}/ledger.db"
    async with open_agency(where, visibility_timeout_s=30) as agency:
        await agency.join()
        tasks = [
            await agency.submit(type="report.generate", queue="agents", session_id="user-123")
            for _ in range(3)
        ]
        taken = [await agency.get() for _ in range(2)]
        await agency.phase(tasks[1], "running")
        await agency.shut()
        await agency.finish(taken[0][0], tasks[0], "while it was away")
        await agency.open()
        assert (await agency.over(tasks[0]))["result"] == "while it was away"
        await agency.finish(taken[1][0], tasks[1], 2)
        entry, event = await agency.get()
        assert event["data"]["task_id"] == tasks[2]
        await agency.finish(entry, tasks[2], 3)
        assert [(await agency.over(task))["attempt"] for task in tasks] == [1, 1, 1]
        assert len(await agency.notices(count=3)) == 3
        await agency.swept()
