"""Workers that fall silent, come back, or never answer: reclaim, fences and late results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from onward.core.alarm import Alarm
from onward.core.errors import LedgerUnavailable
from onward.workers.streams.channel import _DISMISS, BLOCK_MS
from tests.streams.street import GROUP, RESULTS, TASKS, Street, open_street

RELEASED = "onward:released"

pytestmark = pytest.mark.slow

FINAL = ("task.succeeded", "task.failed", "task.canceled")


async def finals(street: Street, task: str) -> list[str]:
    return [type for type in await street.types(task) if type in FINAL]


async def recorded(street: Street, task: str, type: str, count: int = 1) -> list[Any]:
    async def found() -> list[Any] | None:
        events = await street.events(task, type)
        return events if len(events) >= count else None

    return await street.until(found)


@pytest.mark.contract("S1-2", "S1-13")
async def test_a_worker_that_knows_only_the_protocols_words_is_understood(street: Street) -> None:
    task = await street.submit(queue="streams", payload=[1, 2])
    entry, fields = await street.take()
    await street.redis.xadd(RESULTS, {"task_id": task, "status": "succeeded", "result": "[3]"})
    await street.redis.xack(TASKS, GROUP, entry)
    assert (await street.over(task))["result"] == [3]
    await street.empty()
    assert fields["fence"] == "1"


@pytest.mark.contract("S1-2")
@pytest.mark.parametrize("result", ["plain words", "{not json", '{"deep": [1]}'])
async def test_a_result_that_is_no_json_is_kept_as_text(street: Street, result: str) -> None:
    task = await street.submit(queue="streams")
    entry, fields = await street.take()
    await street.answer(entry, fields["task_id"], status="succeeded", result=result)
    found = (await street.over(task))["result"]
    assert found == ({"deep": [1]} if result[-1] == "}" else result)


@pytest.mark.contract("S1-2")
async def test_answers_that_nobody_can_read_stop_nothing_behind_them(street: Street) -> None:
    task = await street.submit(queue="streams")
    entry, fields = await street.take()
    await street.redis.xadd(RESULTS, {b"\xff\xfe": b"\xff", "task_id": b"\xff\x00"})
    await street.redis.xadd(RESULTS, {"no": "task"})
    await street.answer(entry, task, fence="9" * 40, status="?")  # no success: a failure
    entry, fields = await street.take()
    assert fields["retry_count"] == "1"
    bad = "[" * 5000
    await street.answer(entry, task, status="succeeded", result=bad, fence=fields["fence"])
    dead = await street.over(task)
    assert dead["state"] in ("dead", "succeeded")
    again = await street.submit(queue="streams")
    entry, fields = await street.take()
    await street.succeed(entry, fields)
    assert (await street.over(again))["state"] == "succeeded"


@pytest.mark.contract("S1-3", "S1-6", "S1-13")
@pytest.mark.parametrize("with_fence", [True, False], ids=["fence", "no-fence"])
async def test_a_zombies_result_before_anybody_took_the_task_again_is_only_recorded(
    street: Street, with_fence: bool
) -> None:
    task = await street.submit(queue="streams")
    entry, fields = await street.take("zombie")
    await street.silent("zombie", entry)
    await recorded(street, task, "task.reclaimed")
    await street.phase(task, "offered")

    echoed = {"fence": fields["fence"]} if with_fence else {}
    await street.succeed(entry, fields, "too late", **echoed)
    (late,) = await recorded(street, task, "task.late_result")
    assert late["worker"] == "raw"
    assert late["fence"] == 1
    assert (await street.read(task))["phase"] == "offered"

    entry, fields = await street.take("heir")
    assert fields["fence"] == "2"
    await street.succeed(entry, fields, "in time")
    assert (await street.over(task))["result"] == "in time"
    assert await finals(street, task) == ["task.succeeded"]
    await street.empty()


@pytest.mark.contract("S1-3", "S1-13")
async def test_a_zombies_fenced_result_does_not_count_for_the_attempt_that_runs(
    street: Street,
) -> None:
    task = await street.submit(queue="streams")
    old, first = await street.take("zombie")
    await street.silent("zombie", old)
    entry, fields = await street.take("heir")
    await street.phase(task, "running")
    await street.fail(old, first, "too late", fence=first["fence"], retryable="false")
    await recorded(street, task, "task.late_result")
    assert (await street.read(task))["phase"] == "running"
    await street.succeed(entry, fields, "in time", fence=fields["fence"])
    assert (await street.over(task))["result"] == "in time"
    assert await finals(street, task) == ["task.succeeded"]


@pytest.mark.contract("S1-3", "S1-13")
@pytest.mark.parametrize("with_fence", [True, False], ids=["fence", "no-fence"])
async def test_a_zombies_result_after_the_end_is_only_recorded(
    street: Street, with_fence: bool
) -> None:
    task = await street.submit(queue="streams")
    old, first = await street.take("zombie")
    await street.silent("zombie", old)
    entry, fields = await street.take("heir")
    await street.succeed(entry, fields, "in time")
    await street.over(task)
    await street.succeed(old, first, "late", **({"fence": first["fence"]} if with_fence else {}))
    await recorded(street, task, "task.late_result")
    assert (await street.read(task))["result"] == "in time"
    assert await finals(street, task) == ["task.succeeded"]
    await street.empty()


@pytest.mark.contract("S1-6", "S1-13")
async def test_a_workers_own_claim_is_noticed_and_logged(street: Street) -> None:
    task = await street.submit(queue="streams")
    entry, fields = await street.take("first")
    await street.phase(task, "running")
    await asyncio.sleep(0.3)
    await street.redis.xclaim(TASKS, GROUP, "second", 200, [entry])
    (reclaimed,) = await recorded(street, task, "task.reclaimed")
    assert reclaimed == {"from": "first", "to": "second", "message_id": entry}
    await street.succeed(entry, fields)
    assert (await street.over(task))["state"] == "succeeded"
    await street.empty()


@pytest.mark.contract("S1-4", "S1-13")
@pytest.mark.parametrize("ledger", ["sqlite", "redis"])
async def test_a_task_acknowledged_without_a_result_is_lost_after_the_lease(ledger: str) -> None:
    async with open_street(ledger, visibility_timeout_s=3) as street:
        task = await street.submit(queue="streams")
        lost, fields = await street.take()
        await street.phase(task, "running")
        await street.redis.xack(TASKS, GROUP, lost)
        assert await street.take_all(timeout=0.6) == [], "its answer may be on the way"
        entry, fields = await street.take("other")
        assert (fields["task_id"], fields["retry_count"], fields["fence"]) == (task, "0", "2")
        await street.succeed(entry, fields)
        done = await street.over(task)
        assert (done["state"], done["failures"]) == ("succeeded", 0)
        await street.empty()


@pytest.mark.contract("S1-4", "S1-13")
async def test_a_result_that_comes_after_the_acknowledgement_counts(street: Street) -> None:
    task = await street.submit(queue="streams")
    entry, _ = await street.take()
    await street.redis.xack(TASKS, GROUP, entry)
    await asyncio.sleep(0.6)
    await street.answer(None, task, status="succeeded", result="1")
    assert (await street.over(task))["result"] == 1
    assert "task.reclaimed" not in await street.types(task)


@pytest.mark.contract("S1-4")
async def test_an_answer_that_the_ledger_could_not_take_is_read_again(
    street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await street.submit(queue="streams")
    entry, fields = await street.take()
    dispatcher = street.app.onward.dispatcher
    settle = dispatcher.settle
    refused: list[Any] = []

    async def away(*said: Any) -> Any:
        if len(refused) < 2:
            refused.append(said)
            raise LedgerUnavailable("away for a moment")
        return await settle(*said)

    monkeypatch.setattr(dispatcher, "settle", away)
    await street.succeed(entry, fields, "kept")
    assert (await street.over(task))["result"] == "kept"
    assert len(refused) == 2
    assert "task.reclaimed" not in await street.types(task)
    await street.empty()


@pytest.mark.contract("S1-6")
async def test_five_lost_deliveries_are_poison(street: Street) -> None:
    task = await street.submit(queue="streams")
    for turn in range(5):
        lost, fields = await street.take(f"dies-{turn}")
        await street.silent(f"dies-{turn}", lost)
        assert (fields["task_id"], fields["retry_count"]) == (task, "0")
    dead = await street.over(task)
    assert (dead["state"], dead["error"]["kind"], dead["failures"]) == ("dead", "poison", 0)
    assert await finals(street, task) == ["task.failed"]
    await street.until(street.letters)
    await street.empty()


@pytest.mark.contract("S1-6")
async def test_a_stale_entry_behind_fifteen_hundred_fresh_ones_is_reclaimed(
    street: Street,
) -> None:
    pipe = street.redis.pipeline()
    for n in range(1_500):
        pipe.xadd(TASKS, {"task_id": f"f-{n}", "tool_name": "t"})
    await pipe.execute()
    task = await street.submit(queue="streams")

    async def all_there() -> bool:  # claimed, and also put there
        return await street.length() == 1_501

    await street.until(all_there)
    taken = await street.take_all("alive", 2_000)
    assert len(taken) == 1_501
    last, fields = taken[-1]
    assert fields["task_id"] == task
    await street.silent("alive", last)

    async def reclaimed() -> bool:
        rows = await street.redis.xpending_range(TASKS, GROUP, last, last, 1)
        return not rows

    await street.until(reclaimed)
    assert await street.pending() == 1_500
    (data,) = await recorded(street, task, "task.reclaimed")
    # By the sweep, and not by the ledger's lease, which is only the net under it.
    assert data == {"from": "alive", "to": "onward", "message_id": last}


def between_look_and_claim(
    street: Street, monkeypatch: pytest.MonkeyPatch, step: Callable[[], Awaitable[bool]]
) -> None:
    """Run this in each sweep, until it has done its work: the server pauses there."""
    channel = street.app.onward._feed._channel
    claim_idle, done = channel.claim_idle, [False]

    async def paused(min_idle_ms: int) -> Any:
        done[0] = done[0] or await step()
        return await claim_idle(min_idle_ms)

    monkeypatch.setattr(channel, "claim_idle", paused)


async def read_and_fall_silent(street: Street, consumer: str, idle_ms: int) -> str | None:
    reply = await street.redis.xreadgroup(GROUP, "zombie", {TASKS: ">"}, count=1)
    if not reply:
        return None
    entry: str = reply[0][1][0][0].decode()
    await street.redis.xclaim(TASKS, GROUP, consumer, 0, [entry], idle=idle_ms, justid=True)
    return entry


@pytest.mark.contract("S1-6")
@pytest.mark.parametrize("consumer", ["zombie", RELEASED])
async def test_an_entry_taken_and_left_while_the_sweep_stood_still_keeps_its_consumer(
    street: Street, monkeypatch: pytest.MonkeyPatch, consumer: str
) -> None:
    entries: list[str] = []

    async def step() -> bool:
        entry = await read_and_fall_silent(street, consumer, 40_000)
        entries.extend([entry] if entry else [])
        return entry is not None

    between_look_and_claim(street, monkeypatch, step)
    task = await street.submit(queue="streams")
    if consumer == RELEASED:
        await recorded(street, task, "task.released")
        assert "task.reclaimed" not in await street.types(task)
    else:
        (reclaimed,) = await recorded(street, task, "task.reclaimed")
        assert reclaimed == {"from": "zombie", "to": "onward", "message_id": entries[0]}
    entry, fields = await street.take("heir")
    await street.succeed(entry, fields)
    assert (await street.over(task))["state"] == "succeeded"
    await street.empty()


@pytest.mark.contract("S1-6")
async def test_a_silence_longer_than_every_lease_is_reclaimed_by_the_sweep(
    street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[str] = []
    entry: str | None = None

    async def step() -> bool:
        # The alarm rings between the first look, which starts the lease, and the claim.
        await Alarm(street.app.onward.dispatcher).sweep()
        swept.extend(await street.types(task))
        return "task.delivered" in swept

    task = await street.submit(queue="streams")
    while entry is None:
        entry = await read_and_fall_silent(street, "zombie", 3_600_000)
    between_look_and_claim(street, monkeypatch, step)
    (reclaimed,) = await recorded(street, task, "task.reclaimed")
    assert reclaimed == {"from": "zombie", "to": "onward", "message_id": entry}


@pytest.mark.contract("S1-6")
async def test_a_foreign_entry_that_falls_silent_before_it_is_adopted_is_not_lost(
    street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries: list[str] = []
    channel = street.app.onward._feed._channel
    read, reading = channel.read, asyncio.Event()

    async def later(start: str, *, block: bool) -> Any:
        await reading.wait()
        return await read(start, block=block)

    async def step() -> bool:
        await street.add_foreign("f-1")
        entry = await read_and_fall_silent(street, "zombie", 40_000)
        assert entry is not None
        entries.append(entry)
        return True

    monkeypatch.setattr(channel, "read", later)
    await asyncio.sleep(BLOCK_MS / 1000 + 0.2)  # the read that is under way comes back
    between_look_and_claim(street, monkeypatch, step)
    await street.phase("f-1", "offered")
    reading.set()
    (reclaimed,) = await recorded(street, "f-1", "task.reclaimed")
    assert reclaimed == {"from": "zombie", "to": "onward", "message_id": entries[0]}
    entry, fields = await street.take("heir")
    await street.succeed(entry, fields)
    assert (await street.over("f-1"))["state"] == "succeeded"
    await street.empty()


@pytest.mark.contract("S1-6")
async def test_a_server_without_xautoclaim_is_reclaimed_from_by_hand(
    street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def unknown(redis: Any, *_: Any, **__: Any) -> Any:
        asked.append(1)
        return redis.execute_command("XAUTOCLAIM-OF-A-NEWER-SERVER", TASKS)

    monkeypatch.setattr("redis.asyncio.Redis.xautoclaim", unknown)
    task = await street.submit(queue="streams")
    lost, _ = await street.take("dies")
    await street.silent("dies", lost)
    entry, fields = await street.take("lives")
    await street.succeed(entry, fields)
    assert (await street.over(task))["state"] == "succeeded"
    (reclaimed,) = await street.events(task, "task.reclaimed")
    assert reclaimed == {"from": "dies", "to": "onward", "message_id": lost}
    assert asked
    await street.empty()


@pytest.mark.contract("S1-6")
async def test_names_of_workers_long_gone_are_forgotten_once_they_own_nothing() -> None:
    async with open_street() as street:
        task = await street.submit(queue="streams")
        entry, fields = await street.take("busy")
        await street.redis.xgroup_createconsumer(TASKS, GROUP, "idle")
        channel = street.app.onward._feed._channel
        await channel.dismiss(0)
        # Even if it took something between the look and the step.
        assert not await channel._script(_DISMISS, GROUP, "busy")
        names = {one["name"] for one in await street.redis.xinfo_consumers(TASKS, GROUP)}
        assert b"busy" in names
        assert b"idle" not in names
        await street.succeed(entry, fields)
        assert (await street.over(task))["state"] == "succeeded"
