"""Workers that fall silent, come back, or never answer: reclaim, fences and late results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from onward.core.alarm import Alarm
from onward.core.errors import LedgerUnavailable
from onward.workers.streams.channel import _DISMISS, BLOCK_MS
from tests.streams.stream_app import GROUP, RESULTS, TASKS, StreamApp, open_stream_app
from tests.support import wait_until

RELEASED = "onward:released"

pytestmark = pytest.mark.slow

FINAL = ("task.succeeded", "task.failed", "task.canceled")


async def finals(streams: StreamApp, task: str) -> list[str]:
    return [type for type in await streams.types(task) if type in FINAL]


async def recorded(streams: StreamApp, task: str, type: str, count: int = 1) -> list[Any]:
    async def found() -> list[Any] | None:
        events = await streams.events(task, type)
        return events if len(events) >= count else None

    return await streams.until(found)


@pytest.mark.contract("S1-2", "S1-13")
async def test_a_worker_that_knows_only_the_protocols_words_is_understood(
    streams: StreamApp,
) -> None:
    task = await streams.submit(queue="streams", payload=[1, 2])
    entry, fields = await streams.take()
    await streams.redis.xadd(RESULTS, {"task_id": task, "status": "succeeded", "result": "[3]"})
    await streams.redis.xack(TASKS, GROUP, entry)
    assert (await streams.over(task))["result"] == [3]
    await streams.empty()
    assert fields["fence"] == "1"


@pytest.mark.contract("S1-2")
@pytest.mark.parametrize("result", ["plain words", "{not json", '{"deep": [1]}'])
async def test_a_result_that_is_no_json_is_kept_as_text(streams: StreamApp, result: str) -> None:
    task = await streams.submit(queue="streams")
    entry, fields = await streams.take()
    await streams.answer(entry, fields["task_id"], status="succeeded", result=result)
    found = (await streams.over(task))["result"]
    assert found == ({"deep": [1]} if result[-1] == "}" else result)


@pytest.mark.contract("S1-2")
async def test_unreadable_answers_stop_nothing_behind_them(streams: StreamApp) -> None:
    task = await streams.submit(queue="streams")
    entry, fields = await streams.take()
    await streams.redis.xadd(RESULTS, {b"\xff\xfe": b"\xff", "task_id": b"\xff\x00"})
    await streams.redis.xadd(RESULTS, {"no": "task"})
    await streams.answer(entry, task, fence="9" * 40, status="?")  # no success: a failure
    entry, fields = await streams.take()
    assert fields["retry_count"] == "1"
    bad = "[" * 5000
    await streams.answer(entry, task, status="succeeded", result=bad, fence=fields["fence"])
    dead = await streams.over(task)
    assert dead["state"] in ("dead", "succeeded")
    again = await streams.submit(queue="streams")
    entry, fields = await streams.take()
    await streams.succeed(entry, fields)
    assert (await streams.over(again))["state"] == "succeeded"


@pytest.mark.contract("S1-3", "S1-6", "S1-13")
@pytest.mark.parametrize("with_fence", [True, False], ids=["fence", "no-fence"])
async def test_a_zombies_result_before_anybody_took_the_task_again_is_only_recorded(
    streams: StreamApp, with_fence: bool
) -> None:
    task = await streams.submit(queue="streams")
    entry, fields = await streams.take("zombie")
    await streams.silent("zombie", entry)
    await recorded(streams, task, "task.reclaimed")
    await streams.phase(task, "offered")

    echoed = {"fence": fields["fence"]} if with_fence else {}
    await streams.succeed(entry, fields, "too late", **echoed)
    (late,) = await recorded(streams, task, "task.late_result")
    assert late["worker"] == "raw"
    assert late["fence"] == 1
    assert (await streams.read(task))["phase"] == "offered"

    entry, fields = await streams.take("heir")
    assert fields["fence"] == "2"
    await streams.succeed(entry, fields, "in time")
    assert (await streams.over(task))["result"] == "in time"
    assert await finals(streams, task) == ["task.succeeded"]
    await streams.empty()


@pytest.mark.contract("S1-3", "S1-13")
async def test_a_zombies_fenced_result_does_not_count_for_the_attempt_that_runs(
    streams: StreamApp,
) -> None:
    task = await streams.submit(queue="streams")
    old, first = await streams.take("zombie")
    await streams.silent("zombie", old)
    entry, fields = await streams.take("heir")
    await streams.phase(task, "running")
    await streams.fail(old, first, "too late", fence=first["fence"], retryable="false")
    await recorded(streams, task, "task.late_result")
    assert (await streams.read(task))["phase"] == "running"
    await streams.succeed(entry, fields, "in time", fence=fields["fence"])
    assert (await streams.over(task))["result"] == "in time"
    assert await finals(streams, task) == ["task.succeeded"]


@pytest.mark.contract("S1-3", "S1-13")
@pytest.mark.parametrize("with_fence", [True, False], ids=["fence", "no-fence"])
async def test_a_zombies_result_after_the_end_is_only_recorded(
    streams: StreamApp, with_fence: bool
) -> None:
    task = await streams.submit(queue="streams")
    old, first = await streams.take("zombie")
    await streams.silent("zombie", old)
    entry, fields = await streams.take("heir")
    await streams.succeed(entry, fields, "in time")
    await streams.over(task)
    await streams.succeed(old, first, "late", **({"fence": first["fence"]} if with_fence else {}))
    await recorded(streams, task, "task.late_result")
    assert (await streams.read(task))["result"] == "in time"
    assert await finals(streams, task) == ["task.succeeded"]
    await streams.empty()


@pytest.mark.contract("S1-6", "S1-13")
async def test_a_workers_own_claim_is_noticed_and_logged(streams: StreamApp) -> None:
    task = await streams.submit(queue="streams")
    entry, fields = await streams.take("first")
    await streams.phase(task, "running")
    await asyncio.sleep(0.3)
    await streams.redis.xclaim(TASKS, GROUP, "second", 200, [entry])
    (reclaimed,) = await recorded(streams, task, "task.reclaimed")
    assert reclaimed == {"from": "first", "to": "second", "message_id": entry}
    await streams.succeed(entry, fields)
    assert (await streams.over(task))["state"] == "succeeded"
    await streams.empty()


@pytest.mark.contract("S1-6", "S1-13")
@pytest.mark.parametrize("signature", ["second", "a-host-name"])
async def test_a_claim_and_its_answer_between_two_sweeps_are_noticed(
    streams: StreamApp, monkeypatch: pytest.MonkeyPatch, signature: str
) -> None:
    task = await streams.submit(queue="streams")
    entry, fields = await streams.take("first")
    await streams.phase(task, "running")

    async def step() -> bool:
        await streams.redis.xclaim(TASKS, GROUP, "second", 0, [entry])
        await streams.succeed(entry, fields, worker=signature)
        await streams.over(task)
        return True

    await between_look_and_claim(streams, monkeypatch, step)
    await streams.over(task)
    found = await streams.events(task, "task.reclaimed")
    # An answer signed with a name that is no consumer's does not show who had the entry.
    noticed = {"from": "first", "to": "second", "message_id": entry}
    assert found == ([noticed] if signature == "second" else [])


@pytest.mark.contract("S1-13")
async def test_the_answer_of_a_consumer_whose_entry_was_taken_is_no_claim(
    streams: StreamApp,
) -> None:
    task = await streams.submit(queue="streams")
    entry, _ = await streams.take("first")
    await streams.phase(task, "running")
    await streams.redis.xclaim(TASKS, GROUP, "second", 0, [entry])
    await recorded(streams, task, "task.reclaimed")
    await streams.answer(None, task, status="succeeded", result="1", worker="first")
    await streams.over(task)
    assert [found["to"] for found in await streams.events(task, "task.reclaimed")] == ["second"]


@pytest.mark.contract("S1-4", "S1-13")
@pytest.mark.parametrize("ledger", ["sqlite", "redis"])
async def test_a_task_acknowledged_without_a_result_is_lost_after_the_lease(ledger: str) -> None:
    async with open_stream_app(ledger, visibility_timeout_s=30) as streams:
        task = await streams.submit(queue="streams")
        lost, fields = await streams.take()
        await streams.phase(task, "running")
        await streams.redis.xack(TASKS, GROUP, lost)
        assert await streams.take_all(timeout=0.6) == [], "its answer may be on the way"
        offer = streams.app.onward._feed._offers.of(task)
        await wait_until(lambda: offer.acked_at is not None)
        offer.acked_at -= 30_000
        entry, fields = await streams.take("other")
        assert (fields["task_id"], fields["retry_count"], fields["fence"]) == (task, "0", "2")
        await streams.succeed(entry, fields)
        done = await streams.over(task)
        assert (done["state"], done["failures"]) == ("succeeded", 0)
        await streams.empty()


@pytest.mark.contract("S1-4", "S1-13")
async def test_a_result_that_comes_after_the_acknowledgement_counts(streams: StreamApp) -> None:
    task = await streams.submit(queue="streams")
    entry, _ = await streams.take()
    await streams.redis.xack(TASKS, GROUP, entry)
    await asyncio.sleep(0.6)
    await streams.answer(None, task, status="succeeded", result="1")
    assert (await streams.over(task))["result"] == 1
    assert "task.reclaimed" not in await streams.types(task)


@pytest.mark.contract("S1-4")
async def test_an_answer_that_the_ledger_could_not_take_is_read_again(
    streams: StreamApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await streams.submit(queue="streams")
    entry, fields = await streams.take()
    dispatcher = streams.app.onward.dispatcher
    settle = dispatcher.settle
    refused: list[Any] = []

    async def away(*said: Any) -> Any:
        if len(refused) < 2:
            refused.append(said)
            raise LedgerUnavailable("away for a moment")
        return await settle(*said)

    monkeypatch.setattr(dispatcher, "settle", away)
    await streams.succeed(entry, fields, "kept")
    assert (await streams.over(task))["result"] == "kept"
    assert len(refused) == 2
    assert "task.reclaimed" not in await streams.types(task)
    await streams.empty()


@pytest.mark.contract("S1-6")
async def test_five_lost_deliveries_are_poison(streams: StreamApp) -> None:
    task = await streams.submit(queue="streams")
    for turn in range(5):
        lost, fields = await streams.take(f"dies-{turn}")
        await streams.silent(f"dies-{turn}", lost)
        assert (fields["task_id"], fields["retry_count"]) == (task, "0")
    dead = await streams.over(task)
    assert (dead["state"], dead["error"]["kind"], dead["failures"]) == ("dead", "poison", 0)
    assert await finals(streams, task) == ["task.failed"]
    await streams.until(streams.letters)
    await streams.empty()


@pytest.mark.contract("S1-6")
async def test_a_stale_entry_behind_fifteen_hundred_fresh_ones_is_reclaimed(
    streams: StreamApp,
) -> None:
    pipe = streams.redis.pipeline()
    for n in range(1_500):
        pipe.xadd(TASKS, {"task_id": f"f-{n}", "tool_name": "t"})
    await pipe.execute()
    task = await streams.submit(queue="streams")

    async def all_there() -> bool:  # claimed, and also put there
        return await streams.length() == 1_501

    await streams.until(all_there)
    taken = await streams.take_all("alive", 2_000)
    assert len(taken) == 1_501
    last, fields = taken[-1]
    assert fields["task_id"] == task
    await streams.silent("alive", last)

    async def reclaimed() -> bool:
        rows = await streams.redis.xpending_range(TASKS, GROUP, last, last, 1)
        return not rows

    await streams.until(reclaimed)
    assert await streams.pending() == 1_500
    (data,) = await recorded(streams, task, "task.reclaimed")
    # By the sweep, and not by the ledger's lease, which is only the net under it.
    assert data == {"from": "alive", "to": "onward", "message_id": last}


async def between_look_and_claim(
    streams: StreamApp, monkeypatch: pytest.MonkeyPatch, step: Callable[[], Awaitable[bool]]
) -> None:
    """Run this in each sweep, until it has done its work: the server pauses there."""
    channel = streams.app.onward._feed._channel
    claim_idle, done = channel.claim_idle, asyncio.Event()

    async def paused(min_idle_ms: int) -> Any:
        if not done.is_set() and await step():
            done.set()
        return await claim_idle(min_idle_ms)

    monkeypatch.setattr(channel, "claim_idle", paused)
    await wait_until(done.is_set)  # else the application could close in the middle of the step


async def read_and_fall_silent(streams: StreamApp, consumer: str, idle_ms: int) -> str | None:
    reply = await streams.redis.xreadgroup(GROUP, "zombie", {TASKS: ">"}, count=1)
    if not reply:
        return None
    entry: str = reply[0][1][0][0].decode()
    await streams.redis.xclaim(TASKS, GROUP, consumer, 0, [entry], idle=idle_ms, justid=True)
    return entry


@pytest.mark.contract("S1-6")
@pytest.mark.parametrize("consumer", ["zombie", RELEASED])
async def test_an_entry_taken_and_left_while_the_sweep_stood_still_keeps_its_consumer(
    streams: StreamApp, monkeypatch: pytest.MonkeyPatch, consumer: str
) -> None:
    entries: list[str] = []

    async def step() -> bool:
        entry = await read_and_fall_silent(streams, consumer, 40_000)
        entries.extend([entry] if entry else [])
        return entry is not None

    task = await streams.submit(queue="streams")
    await between_look_and_claim(streams, monkeypatch, step)
    if consumer == RELEASED:
        await recorded(streams, task, "task.released")
        assert "task.reclaimed" not in await streams.types(task)
    else:
        (reclaimed,) = await recorded(streams, task, "task.reclaimed")
        assert reclaimed == {"from": "zombie", "to": "onward", "message_id": entries[0]}
    entry, fields = await streams.take("heir")
    await streams.succeed(entry, fields)
    assert (await streams.over(task))["state"] == "succeeded"
    await streams.empty()


@pytest.mark.contract("S1-6")
async def test_a_silence_longer_than_every_lease_is_reclaimed_by_the_sweep(
    streams: StreamApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[str] = []
    entry: str | None = None

    async def step() -> bool:
        # The alarm rings between the first look, which starts the lease, and the claim.
        await Alarm(streams.app.onward.dispatcher).sweep()
        swept.extend(await streams.types(task))
        return "task.delivered" in swept

    task = await streams.submit(queue="streams")
    while entry is None:
        entry = await read_and_fall_silent(streams, "zombie", 3_600_000)
    await between_look_and_claim(streams, monkeypatch, step)
    (reclaimed,) = await recorded(streams, task, "task.reclaimed")
    assert reclaimed == {"from": "zombie", "to": "onward", "message_id": entry}


@pytest.mark.contract("S1-6")
async def test_a_foreign_entry_that_falls_silent_before_it_is_adopted_is_not_lost(
    streams: StreamApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries: list[str] = []
    channel = streams.app.onward._feed._channel
    read, reading = channel.read, asyncio.Event()

    async def later(start: str, *, block: bool) -> Any:
        await reading.wait()
        return await read(start, block=block)

    async def step() -> bool:
        await streams.add_foreign("f-1")
        entry = await read_and_fall_silent(streams, "zombie", 40_000)
        assert entry is not None
        entries.append(entry)
        return True

    monkeypatch.setattr(channel, "read", later)
    await asyncio.sleep(BLOCK_MS / 1000 + 0.2)  # the read that is under way comes back
    await between_look_and_claim(streams, monkeypatch, step)
    await streams.phase("f-1", "offered")
    reading.set()
    (reclaimed,) = await recorded(streams, "f-1", "task.reclaimed")
    assert reclaimed == {"from": "zombie", "to": "onward", "message_id": entries[0]}
    entry, fields = await streams.take("heir")
    await streams.succeed(entry, fields)
    assert (await streams.over("f-1"))["state"] == "succeeded"
    await streams.empty()


@pytest.mark.contract("S1-6")
async def test_a_server_without_xautoclaim_is_reclaimed_from_by_hand(
    streams: StreamApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def unknown(redis: Any, *_: Any, **__: Any) -> Any:
        asked.append(1)
        return redis.execute_command("XAUTOCLAIM-OF-A-NEWER-SERVER", TASKS)

    monkeypatch.setattr("redis.asyncio.Redis.xautoclaim", unknown)
    task = await streams.submit(queue="streams")
    lost, _ = await streams.take("dies")
    await streams.silent("dies", lost)
    entry, fields = await streams.take("lives")
    await streams.succeed(entry, fields)
    assert (await streams.over(task))["state"] == "succeeded"
    (reclaimed,) = await streams.events(task, "task.reclaimed")
    assert reclaimed == {"from": "dies", "to": "onward", "message_id": lost}
    assert asked
    await streams.empty()


@pytest.mark.contract("S1-6")
async def test_names_of_workers_long_gone_are_forgotten_once_they_own_nothing() -> None:
    async with open_stream_app() as streams:
        task = await streams.submit(queue="streams")
        entry, fields = await streams.take("busy")
        await streams.redis.xgroup_createconsumer(TASKS, GROUP, "idle")
        channel = streams.app.onward._feed._channel
        await channel.dismiss(0)
        # Even if it took something between the look and the step.
        assert not await channel._script("stream:task", _DISMISS, GROUP, "busy")
        names = {one["name"] for one in await streams.redis.xinfo_consumers(TASKS, GROUP)}
        assert b"busy" in names
        assert b"idle" not in names
        await streams.succeed(entry, fields)
        assert (await streams.over(task))["state"] == "succeeded"
