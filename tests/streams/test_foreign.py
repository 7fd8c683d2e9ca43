"""Entries and dead letters that others write: adopted, settled, and never echoed."""

from __future__ import annotations

import asyncio

import pytest

from tests.streams.stream_app import DEAD, GROUP, RESULTS, TASKS, StreamApp, open_stream_app

pytestmark = [pytest.mark.slow, pytest.mark.contract("S1-13")]


async def known(streams: StreamApp, task: str) -> None:
    async def there() -> bool:
        return (await streams.http.get(f"/api/v2/tasks/{task}")).status_code == 200

    await streams.until(there)


async def test_a_foreign_entry_is_adopted_and_its_result_settles_it(streams: StreamApp) -> None:
    entry = await streams.add_foreign("theirs", payload='{"a": [1]}', idempotency_key="k-9")
    await known(streams, "theirs")
    found = await streams.read("theirs")
    assert (found["phase"], found["type"], found["payload"]) == ("offered", "t", {"a": [1]})
    assert found["idempotency_key"] == "k-9"
    why = (await streams.http.get("/api/v2/tasks/theirs/explain")).json()
    assert (why["reason"], "no worker has taken it" in why["sentence"]) == ("offered", True)
    taken, fields = await streams.take()
    assert (taken, fields["task_id"]) == (entry, "theirs")
    await streams.phase("theirs", "running")
    await streams.succeed(taken, fields, 5)
    assert (await streams.over("theirs"))["result"] == 5
    types = await streams.types("theirs")
    assert types == ["task.created", "task.claimed", "task.delivered", "task.succeeded"]
    await streams.empty()


async def test_a_foreign_entry_that_a_worker_has_already_is_adopted_as_running(
    streams: StreamApp,
) -> None:
    await streams.shut()
    entry = await streams.add_foreign("theirs")
    taken, fields = await streams.take("fast")
    await streams.open()
    await streams.phase("theirs", "running")
    assert (await streams.read("theirs"))["worker"] == "fast"
    await streams.succeed(taken, fields, 5)
    assert (await streams.over("theirs"))["result"] == 5
    assert taken == entry
    await streams.empty()


@pytest.mark.parametrize("ledger", ["sqlite", "redis"])
async def test_an_untaken_foreign_entry_waits_without_a_lease(ledger: str) -> None:
    async with open_stream_app(ledger, visibility_timeout_s=1) as streams:
        await streams.add_foreign("theirs")
        await known(streams, "theirs")

        async def waits() -> bool:
            return bool((await streams.read("theirs"))["phase"] == "offered")

        await streams.holds(waits, 2.5)
        assert await streams.length() == 1


async def test_a_foreign_task_that_fails_is_retried_by_our_rules(streams: StreamApp) -> None:
    await streams.add_foreign("theirs", retry_count="1")
    for failures in (1, 2, 3):
        entry, fields = await streams.take()
        assert fields["retry_count"] == str(failures)
        await streams.fail(entry, fields, "no")
    dead = await streams.over("theirs")
    assert (dead["state"], dead["failures"]) == ("dead", 4)
    await streams.empty()


async def test_a_foreign_task_whose_worker_dies_is_reclaimed(streams: StreamApp) -> None:
    await streams.add_foreign("theirs")
    lost, _ = await streams.take("dies")
    await streams.phase("theirs", "running")
    await streams.silent("dies", lost)
    entry, fields = await streams.take("lives")
    assert (fields["task_id"], fields["fence"]) == ("theirs", "2")
    await streams.succeed(entry, fields)
    assert (await streams.over("theirs"))["state"] == "succeeded"
    await streams.empty()


async def test_a_result_for_an_unknown_task_adopts_it_first(streams: StreamApp) -> None:
    await streams.redis.xadd(
        RESULTS, {"task_id": "never-seen", "status": "succeeded", "result": "7", "worker": "w"}
    )
    await known(streams, "never-seen")
    assert (await streams.over("never-seen"))["result"] == 7
    await streams.redis.xadd(
        RESULTS, {"task_id": "fenced", "status": "succeeded", "result": "8", "fence": "3"}
    )
    await known(streams, "fenced")
    assert (await streams.over("fenced"))["result"] == 8
    await streams.empty()


async def test_an_entry_sent_twice_is_one_task(streams: StreamApp) -> None:
    await streams.add_foreign("theirs")
    await streams.add_foreign("theirs")

    async def one() -> bool:
        return await streams.length() == 1

    await known(streams, "theirs")
    await streams.until(one)
    entry, fields = await streams.take()
    await streams.succeed(entry, fields)
    assert (await streams.over("theirs"))["state"] == "succeeded"
    await streams.add_foreign("theirs")  # and over is over
    await streams.empty()
    types = await streams.types("theirs")
    assert types.count("task.succeeded") == 1


async def test_a_worker_that_puts_its_task_back_itself_is_followed(streams: StreamApp) -> None:
    task = await streams.submit(queue="streams")
    entry, fields = await streams.take()
    await streams.phase(task, "running")
    again = await streams.add_foreign(task, retry_count="1")
    await streams.redis.xack(TASKS, GROUP, entry)

    async def moved() -> bool:
        return [row[0].decode() for row in await streams.redis.xrange(TASKS)] == [again]

    await streams.until(moved)
    taken, fields = await streams.take("other")
    assert taken == again
    await streams.succeed(taken, fields, "second try")
    assert (await streams.over(task))["result"] == "second try"
    await streams.empty()


@pytest.mark.contract("S1-7")
async def test_entries_without_a_task_id_are_dead_letters_and_stop_nothing(
    streams: StreamApp,
) -> None:
    junk: list[dict[str, str]] = [{"tool_name": "t"}, {"task_id": ""}, {"task_id": "x" * 5_000}]
    entries = [(await streams.redis.xadd(TASKS, fields)).decode() for fields in junk]
    for entry in entries:
        dead = await streams.over(f"streams-{entry}")
        assert (dead["state"], dead["error"]["kind"]) == ("dead", "SchemaInvalid")

    async def told() -> bool:
        return len(await streams.letters()) == len(junk)

    await streams.until(told)
    assert {letter["task_id"] for letter in await streams.letters()} == {
        f"streams-{entry}" for entry in entries
    }
    await streams.empty()
    task = await streams.submit(queue="streams")
    entry, fields = await streams.take()
    await streams.succeed(entry, fields)
    assert (await streams.over(task))["state"] == "succeeded"


@pytest.mark.contract("S1-7")
async def test_an_entry_without_a_tool_is_a_dead_letter_at_once(streams: StreamApp) -> None:
    await streams.redis.xadd(TASKS, {"task_id": "bare", "payload": "{}", "retry_count": "0"})
    await known(streams, "bare")
    dead = await streams.over("bare")
    assert (dead["state"], dead["error"]["kind"]) == ("dead", "SchemaInvalid")
    await streams.until(streams.letters)
    (letter,) = await streams.letters()
    assert (letter["task_id"], letter["error"]) == ("bare", "an entry without tool_name")
    assert "task.dlq" in await streams.types("bare")
    await streams.empty()


@pytest.mark.contract("S1-7")
async def test_a_workers_own_dead_letter_ends_its_task_and_is_not_echoed(
    streams: StreamApp,
) -> None:
    task = await streams.submit(queue="streams")
    entry, fields = await streams.take()
    await _bury(streams, task)
    await streams.redis.xack(TASKS, GROUP, entry)
    dead = await streams.over(task)
    assert (dead["state"], dead["error"]["message"]) == ("dead", "hopeless")
    assert [event for event in await streams.types(task) if event == "task.dlq"] == ["task.dlq"]
    await asyncio.sleep(1.2)
    assert len(await streams.letters()) == 1
    await streams.empty()

    # Its next death is told by us: the letter that is there is not about it.
    assert (await streams.http.post(f"/api/v2/tasks/{task}/retry")).status_code == 200
    entry, fields = await streams.take()
    await streams.fail(entry, fields, "again", retryable="false")
    await streams.over(task)

    async def told() -> bool:
        return len(await streams.letters()) == 2

    await streams.until(told)
    assert (await streams.letters())[1]["origin"] == "onward"


async def _bury(streams: StreamApp, task: str, **more: str) -> None:
    letter = {
        "task_id": task, "tool_name": "t", "payload": "null", "error": "hopeless",
        "retry_count": "1", "failed_at": "1700000000", **more,
    }  # fmt: skip
    await streams.redis.xadd(DEAD, letter)


@pytest.mark.contract("S1-7")
async def test_a_worker_that_reports_a_failure_and_then_buries_it_ends_its_task(
    streams: StreamApp,
) -> None:
    task = await streams.submit(queue="streams", backoff_ms=[60_000])
    entry, fields = await streams.take()
    await streams.fail(entry, fields, "hopeless")
    await streams.phase(task, "retry_wait")
    await _bury(streams, task)
    dead = await streams.over(task)
    assert (dead["state"], dead["failures"]) == ("dead", 1)
    await asyncio.sleep(1.2)
    assert len(await streams.letters()) == 1


@pytest.mark.contract("S1-7")
async def test_a_dead_letter_of_what_was_never_on_the_stream_kills_nothing(
    streams: StreamApp,
) -> None:
    waiting = await streams.submit(type="elsewhere")
    later = await streams.submit(type="elsewhere", delay_ms=60_000)
    for task in (waiting, later):
        await _bury(streams, task)
    own = await streams.submit(queue="streams")
    entry, _ = await streams.take()
    await _bury(streams, own)
    await streams.redis.xack(TASKS, GROUP, entry)
    await streams.over(own)  # read after the others
    assert [(await streams.read(task))["state"] for task in (waiting, later)] == [
        "queued",
        "scheduled",
    ]


@pytest.mark.contract("S1-7")
async def test_a_zombies_dead_letter_kills_nothing(streams: StreamApp) -> None:
    task = await streams.submit(queue="streams")
    old, _ = await streams.take("zombie")
    await streams.silent("zombie", old)
    entry, fields = await streams.take("heir")
    await streams.phase(task, "running")
    await _bury(streams, task, fence="1")

    async def late() -> bool:
        return "task.late_result" in await streams.types(task)

    await streams.until(late)
    await streams.succeed(entry, fields)
    assert (await streams.over(task))["state"] == "succeeded"
