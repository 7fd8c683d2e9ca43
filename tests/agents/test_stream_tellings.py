"""What agents are told on Redis of tasks that ended elsewhere, and the keys they may look up."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from onward.core.task import Event
from onward.doors.agents.streams import AgentStreams
from tests.agents.agency import COMPLETED, CREATE, DEAD, FAILED, TIMEOUT, Agency, open_agency

pytestmark = [pytest.mark.slow, pytest.mark.contract("S2-2")]

DAY_S = 24 * 3600
LEDGERS = pytest.mark.parametrize("ledger", ["sqlite", "redis"])


@pytest.fixture(params=["sqlite", "redis"])
async def agency(request: pytest.FixtureRequest) -> AsyncIterator[Agency]:
    async with open_agency(request.param, builtin_worker=True) as opened:
        yield opened


async def hash_of(agency: Agency, task: str, prefix: str = "") -> dict[str, str]:
    found = await agency.redis.hgetall(f"{prefix}task:{task}")
    return {name.decode(): value.decode() for name, value in found.items()}


@pytest.mark.contract("R-2", "S2-6")
async def test_what_ended_natively_is_told_to_the_agents_group_and_to_the_session(
    agency: Agency,
) -> None:
    task = await agency.submit(type="echo", payload={"n": 1}, session_id="user-1")
    await agency.over(task)
    (heard,) = await agency.hear(COMPLETED)
    data = heard["data"]
    assert (data["task_id"], data["status"], data["result"]) == (task, "success", {"n": 1})
    assert data["duration_ms"] >= 0
    assert data["completed_by"].startswith("builtin-")
    (notice,) = await agency.notices("user-1")

    async def kept() -> Any:
        return (await agency.http.get("/api/v2/sessions/user-1/notifications")).json()["items"]

    (item,) = await agency.until(kept)
    shown = {name: value for name, value in item.items() if name != "read"}
    assert notice["data"] == shown, "one notice, by whatever way"
    assert notice["event_id"] == shown["notification_id"]
    assert 0 < await agency.redis.ttl("user:stream:notifications:user-1") <= 7 * DAY_S
    assert await agency.length(CREATE) == 0, "served natively, it was never on the stream"


async def test_what_is_told_by_us_is_not_taken_for_a_services_answer(agency: Agency) -> None:
    task = await agency.submit(type="echo", session_id="user-1")
    await agency.over(task)
    await agency.told(COMPLETED)

    async def read() -> bool:
        (group,) = [
            one for one in await agency.redis.xinfo_groups(COMPLETED) if one["name"] == b"onward"
        ]
        return bool(group["pending"] == 0 and group["lag"] == 0)

    await agency.until(read)
    assert "task.late_result" not in await agency.types(task)


async def test_a_task_without_a_session_is_nobodys_news(agency: Agency) -> None:
    quiet = await agency.submit(type="echo")
    await agency.over(quiet)
    task = await agency.submit(type="echo", session_id="user-1")
    await agency.over(task)
    told = await agency.told(COMPLETED)
    assert [event["data"]["task_id"] for event in told] == [task]


async def test_a_rejected_and_a_canceled_task_are_told_as_failed(agency: Agency) -> None:
    asked = await agency.submit(type="echo", session_id="user-1", requires_approval=True)
    (open_,) = (await agency.http.get("/api/v2/approvals?status=open")).json()["items"]
    reply = await agency.http.post(f"/api/v2/approvals/{open_['id']}/reject", json={})
    assert reply.status_code == 200, reply.text
    await agency.over(asked)
    (told,) = await agency.told(FAILED)
    assert (told["data"]["task_id"], told["data"]["status"]) == (asked, "failed")
    assert set(told["data"]["error"]) == {"code", "message", "details"}
    stopped = await agency.submit(type="nobody", session_id="user-1")
    await agency.cancel(stopped)
    told = (await agency.told(FAILED, 2))[1]
    assert (told["data"]["task_id"], told["data"]["error"]["code"]) == (stopped, "CANCELED")
    assert len(await agency.notices("user-1")) == 1, "whoever cancels knows"


@pytest.mark.contract("S2-7")
async def test_a_timeout_is_told_once_and_the_completion_after_it(agency: Agency) -> None:
    await agency.join()
    task = await agency.submit(
        type="report.generate", queue="agents", session_id="user-1", timeout_ms=1000
    )
    entry, event = await agency.get()
    assert event["data"]["timeout"] == 1
    (told,) = await agency.told(TIMEOUT)
    assert told["data"]["task_id"] == task
    assert told["data"]["status"] == "timeout"
    assert told["data"]["message"] == "Task exceeded timeout of 1 seconds"
    assert 1000 <= told["data"]["elapsed_ms"] < 3000
    await agency.finish(None, task, "late, but here")
    assert (await agency.over(task))["result"] == "late, but here"
    kinds = [notice["data"]["type"] for notice in await agency.notices("user-1", 2)]
    assert kinds == ["task_timeout", "task_completed"]
    assert len(await agency.on(TIMEOUT)) == 1
    assert entry


@pytest.mark.contract("S2-7")
async def test_a_task_that_nobody_has_taken_is_not_late_until_somebody_has(agency: Agency) -> None:
    await agency.join()
    task = await agency.submit(
        type="report.generate", queue="agents", session_id="user-1", timeout_ms=300
    )
    await agency.phase(task, "offered")

    async def quiet() -> bool:
        return not await agency.on(TIMEOUT)

    await agency.holds(quiet, 1.5)
    entry, _ = await agency.get()
    (told,) = await agency.told(TIMEOUT)
    assert told["data"]["elapsed_ms"] >= 1500
    assert told["data"]["message"] == "Task exceeded timeout of 0 seconds"
    await agency.finish(entry, task)
    await agency.over(task)


@pytest.mark.contract("S2-5", "S2-4")
async def test_keys_for_looking_up_last_a_day_after_the_end(agency: Agency) -> None:
    task = await agency.submit(
        type="echo", payload={"n": 1}, session_id="user-1", timeout_ms=300_000
    )
    await agency.over(task)

    async def cached() -> Any:
        return await agency.redis.get(f"task:{task}:result")

    body = json.loads(await agency.until(cached))
    assert body["result"] == {"n": 1}
    assert set(body) == {"result", "cached_at"}
    assert body["cached_at"].endswith("Z")
    assert await agency.redis.smembers("session:user-1:tasks") == {task.encode()}
    assert DAY_S - 60 < await agency.redis.ttl(f"task:{task}:result") <= DAY_S
    assert DAY_S - 60 < await agency.redis.ttl("session:user-1:tasks") <= DAY_S
    assert await agency.redis.exists(f"task:{task}")
    assert (await agency.read(task))["result"] == {"n": 1}, "the ledger reads its own as before"


@pytest.mark.contract("S2-5")
async def test_a_long_result_is_cached_the_same_way(agency: Agency) -> None:
    payload = {"text": "x" * 500}
    task = await agency.submit(type="echo", payload=payload, session_id="user-1")
    await agency.over(task)

    async def cached() -> Any:
        return await agency.redis.get(f"task:{task}:result")

    assert json.loads(await agency.until(cached))["result"] == payload
    assert (await agency.read(task))["result"] == payload, "the ledger has its own"


@LEDGERS
@pytest.mark.contract("S2-5", "S2-4")
async def test_the_agents_fields_are_kept_up_to_date_in_the_tasks_hash(ledger: str) -> None:
    async with open_agency(ledger, redis_prefix="here:") as agency:
        await agency.join()
        task = await agency.submit(
            type="report.generate", queue="agents", payload={"quarter": "Q4"},
            session_id="user-1", timeout_ms=300_000,
        )  # fmt: skip

        async def said(status: str) -> dict[str, str] | None:
            found = await hash_of(agency, task, "here:")
            return found if found.get("status") == status else None

        pending = await agency.until(lambda: said("pending"))
        assert (pending["task_id"], pending["timeout"]) == (task, "300")
        assert (pending["session_id"], pending["completed_at"]) == ("user-1", "")
        assert json.loads(pending["params"]) == {"quarter": "Q4"}
        entry, _ = await agency.get()
        await agency.until(lambda: said("processing"))
        await agency.finish(entry, task, [1])
        completed = await agency.until(lambda: said("completed"))
        assert (json.loads(completed["result"]), completed["timeout"]) == ([1], "300")
        assert completed["completed_at"].endswith("Z")
        assert await agency.redis.exists("here:session:user-1:tasks")
        assert (await agency.read(task))["result"] == [1]
        assert (completed["error"], completed["priority"]) == ("null", "normal")
        assert completed["completed_at"] >= completed["created_at"]
        assert DAY_S - 60 < await agency.redis.ttl(f"here:task:{task}") <= DAY_S


@LEDGERS
async def test_every_key_of_the_door_but_its_streams_goes_by_itself(ledger: str) -> None:
    async with open_agency(ledger, builtin_worker=True) as agency:
        task = await agency.submit(type="echo", session_id="user-1")
        await agency.over(task)
        await agency.notices("user-1")
        for pattern in ("session:*", "user:*", "onward:told:*", "task:*"):
            keys = [key async for key in agency.redis.scan_iter(match=pattern)]
            assert keys, pattern
            for key in keys:
                assert await agency.redis.ttl(key) > 0, key


@pytest.mark.contract("S2-8")
async def test_dead_letters_stay_a_week_and_other_news_a_day() -> None:
    async with open_agency() as agency:
        now = int(time.time() * 1000)
        day = DAY_S * 1000
        for stream, age in ((DEAD, 8 * day), (DEAD, 6 * day), (COMPLETED, 2 * day), (FAILED, 10)):
            await agency.redis.xadd(stream, {"data": "{}"}, id=f"{now - age}-0")
        await agency.app.onward._agent_feed._channel.trim(now)
        lengths = [await agency.length(stream) for stream in (DEAD, COMPLETED, FAILED)]
        assert lengths == [1, 0, 1]


async def test_events_seen_twice_are_told_once_and_an_answer_across_batches_is_no_echo(
    agency: Agency,
) -> None:
    await agency.join()
    native = await agency.submit(type="echo", session_id="user-1")
    await agency.over(native)
    task = await agency.submit(type="report.generate", queue="agents", session_id="user-1")
    entry, _ = await agency.get()
    await agency.finish(entry, task)
    await agency.over(task)
    await agency.notices("user-1", 2)
    onward = agency.app.onward
    again = AgentStreams(onward.backend, agency.redis, onward.clock, prefix="")
    log: list[Event] = []
    for id in (native, task):
        log += (await onward.backend.tasks.events(after="0", limit=100, task=id)).items
    for event in log:
        await again.project([event])
    assert not again._tally, "told before, so nothing is counted as published"
    assert len(await agency.on(COMPLETED)) == 2, "the service's own, and ours of the native one"
    assert len(await agency.notices("user-1", 2)) == 2


class Second(Agency):
    """A server that finds another one on duty."""

    async def on_duty(self) -> bool:
        return bool(self.app.onward.ready)


async def test_two_servers_tell_each_thing_once() -> None:
    async with open_agency("redis", builtin_worker=True) as agency:
        await agency.join()
        other = Second(agency.settings)
        other.builtin_worker = True
        await other.open()
        natives = [await other.submit(type="echo", session_id="user-1") for _ in range(20)]
        for task in natives:
            await agency.over(task)
        task = await other.submit(type="report.generate", queue="agents", session_id="user-1")
        entry, _ = await agency.get()
        await agency.finish(entry, task)
        await other.over(task)
        assert len(await agency.notices("user-1", 21)) == 21
        told = [event["data"]["task_id"] for event in await agency.told(COMPLETED, 21)]
        assert sorted(told) == sorted([*natives, task])
        await other.shut()
        await other.redis.aclose()


@LEDGERS
async def test_a_server_that_was_away_tells_what_it_had_not_told(
    ledger: str, tmp_path: Path
) -> None:
    where = ledger if ledger == "redis" else f"sqlite:///{tmp_path}/ledger.db"
    async with open_agency(where, builtin_worker=True) as agency:
        first = await agency.submit(type="echo", session_id="user-1")
        await agency.over(first)
        await agency.told(COMPLETED)
        second = await agency.submit(type="echo", session_id="user-1")
        await agency.shut()
        await agency.open()
        await agency.over(second)
        told = await agency.told(COMPLETED, 2)
        assert [event["data"]["task_id"] for event in told] == [first, second]
