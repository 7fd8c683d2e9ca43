"""Entries and dead letters that others write: adopted, settled, and never echoed."""

from __future__ import annotations

import asyncio

import pytest

from tests.streams.street import DEAD, GROUP, RESULTS, TASKS, Street, open_street

pytestmark = [pytest.mark.slow, pytest.mark.contract("S1-13")]


async def known(street: Street, task: str) -> None:
    async def there() -> bool:
        return (await street.http.get(f"/api/v2/tasks/{task}")).status_code == 200

    await street.until(there)


async def test_a_foreign_entry_is_adopted_and_its_result_settles_it(street: Street) -> None:
    entry = await street.add_foreign("theirs", payload='{"a": [1]}', idempotency_key="k-9")
    await known(street, "theirs")
    found = await street.read("theirs")
    assert (found["phase"], found["type"], found["payload"]) == ("offered", "t", {"a": [1]})
    assert found["idempotency_key"] == "k-9"
    why = (await street.http.get("/api/v2/tasks/theirs/explain")).json()
    assert (why["reason"], "no worker has taken it" in why["sentence"]) == ("offered", True)
    taken, fields = await street.take()
    assert (taken, fields["task_id"]) == (entry, "theirs")
    await street.phase("theirs", "running")
    await street.succeed(taken, fields, 5)
    assert (await street.over("theirs"))["result"] == 5
    types = await street.types("theirs")
    assert types == ["task.created", "task.claimed", "task.delivered", "task.succeeded"]
    await street.empty()


async def test_a_foreign_entry_that_a_worker_has_already_is_adopted_as_running(
    street: Street,
) -> None:
    await street.shut()
    entry = await street.add_foreign("theirs")
    taken, fields = await street.take("fast")
    await street.open()
    await street.phase("theirs", "running")
    assert (await street.read("theirs"))["worker"] == "fast"
    await street.succeed(taken, fields, 5)
    assert (await street.over("theirs"))["result"] == 5
    assert taken == entry
    await street.empty()


@pytest.mark.parametrize("ledger", ["sqlite", "redis"])
async def test_a_foreign_entry_nobody_takes_waits_without_a_lease(ledger: str) -> None:
    async with open_street(ledger, visibility_timeout_s=1) as street:
        await street.add_foreign("theirs")
        await known(street, "theirs")

        async def waits() -> bool:
            return bool((await street.read("theirs"))["phase"] == "offered")

        await street.holds(waits, 2.5)
        assert await street.length() == 1


async def test_a_foreign_task_that_fails_is_retried_by_our_rules(street: Street) -> None:
    await street.add_foreign("theirs", retry_count="1")
    for failures in (1, 2, 3):
        entry, fields = await street.take()
        assert fields["retry_count"] == str(failures)
        await street.fail(entry, fields, "no")
    dead = await street.over("theirs")
    assert (dead["state"], dead["failures"]) == ("dead", 4)
    await street.empty()


async def test_a_foreign_task_whose_worker_dies_is_reclaimed(street: Street) -> None:
    await street.add_foreign("theirs")
    lost, _ = await street.take("dies")
    await street.phase("theirs", "running")
    await street.silent("dies", lost)
    entry, fields = await street.take("lives")
    assert (fields["task_id"], fields["fence"]) == ("theirs", "2")
    await street.succeed(entry, fields)
    assert (await street.over("theirs"))["state"] == "succeeded"
    await street.empty()


async def test_a_result_for_an_unknown_task_adopts_it_first(street: Street) -> None:
    await street.redis.xadd(
        RESULTS, {"task_id": "never-seen", "status": "succeeded", "result": "7", "worker": "w"}
    )
    await known(street, "never-seen")
    assert (await street.over("never-seen"))["result"] == 7
    await street.redis.xadd(
        RESULTS, {"task_id": "fenced", "status": "succeeded", "result": "8", "fence": "3"}
    )
    await known(street, "fenced")
    assert (await street.over("fenced"))["result"] == 8
    await street.empty()


async def test_an_entry_sent_twice_is_one_task(street: Street) -> None:
    await street.add_foreign("theirs")
    await street.add_foreign("theirs")

    async def one() -> bool:
        return await street.length() == 1

    await known(street, "theirs")
    await street.until(one)
    entry, fields = await street.take()
    await street.succeed(entry, fields)
    assert (await street.over("theirs"))["state"] == "succeeded"
    await street.add_foreign("theirs")  # and over is over
    await street.empty()
    types = await street.types("theirs")
    assert types.count("task.succeeded") == 1


async def test_a_worker_that_puts_its_task_back_itself_is_followed(street: Street) -> None:
    task = await street.submit(queue="streams")
    entry, fields = await street.take()
    await street.phase(task, "running")
    again = await street.add_foreign(task, retry_count="1")
    await street.redis.xack(TASKS, GROUP, entry)

    async def moved() -> bool:
        return [row[0].decode() for row in await street.redis.xrange(TASKS)] == [again]

    await street.until(moved)
    taken, fields = await street.take("other")
    assert taken == again
    await street.succeed(taken, fields, "second try")
    assert (await street.over(task))["result"] == "second try"
    await street.empty()


@pytest.mark.contract("S1-7")
async def test_entries_without_a_task_id_are_dead_letters_and_stop_nothing(street: Street) -> None:
    junk: list[dict[str, str]] = [{"tool_name": "t"}, {"task_id": ""}, {"task_id": "x" * 5_000}]
    entries = [(await street.redis.xadd(TASKS, fields)).decode() for fields in junk]
    for entry in entries:
        dead = await street.over(f"streams-{entry}")
        assert (dead["state"], dead["error"]["kind"]) == ("dead", "SchemaInvalid")

    async def told() -> bool:
        return len(await street.letters()) == len(junk)

    await street.until(told)
    assert {letter["task_id"] for letter in await street.letters()} == {
        f"streams-{entry}" for entry in entries
    }
    await street.empty()
    task = await street.submit(queue="streams")
    entry, fields = await street.take()
    await street.succeed(entry, fields)
    assert (await street.over(task))["state"] == "succeeded"


@pytest.mark.contract("S1-7")
async def test_an_entry_without_a_tool_is_a_dead_letter_at_once(street: Street) -> None:
    await street.redis.xadd(TASKS, {"task_id": "bare", "payload": "{}", "retry_count": "0"})
    await known(street, "bare")
    dead = await street.over("bare")
    assert (dead["state"], dead["error"]["kind"]) == ("dead", "SchemaInvalid")
    await street.until(street.letters)
    (letter,) = await street.letters()
    assert (letter["task_id"], letter["error"]) == ("bare", "an entry without tool_name")
    assert "task.dlq" in await street.types("bare")
    await street.empty()


@pytest.mark.contract("S1-7")
async def test_a_workers_own_dead_letter_ends_its_task_and_is_not_echoed(street: Street) -> None:
    task = await street.submit(queue="streams")
    entry, fields = await street.take()
    await _bury(street, task)
    await street.redis.xack(TASKS, GROUP, entry)
    dead = await street.over(task)
    assert (dead["state"], dead["error"]["message"]) == ("dead", "hopeless")
    assert [event for event in await street.types(task) if event == "task.dlq"] == ["task.dlq"]
    await asyncio.sleep(1.2)
    assert len(await street.letters()) == 1
    await street.empty()

    # Its next death is told by us: the letter that is there is not about it.
    assert (await street.http.post(f"/api/v2/tasks/{task}/retry")).status_code == 200
    entry, fields = await street.take()
    await street.fail(entry, fields, "again", retryable="false")
    await street.over(task)

    async def told() -> bool:
        return len(await street.letters()) == 2

    await street.until(told)
    assert (await street.letters())[1]["origin"] == "onward"


async def _bury(street: Street, task: str, **more: str) -> None:
    letter = {
        "task_id": task, "tool_name": "t", "payload": "null", "error": "hopeless",
        "retry_count": "1", "failed_at": "1700000000", **more,
    }  # fmt: skip
    await street.redis.xadd(DEAD, letter)


@pytest.mark.contract("S1-7")
async def test_a_worker_that_reports_a_failure_and_then_buries_it_ends_its_task(
    street: Street,
) -> None:
    task = await street.submit(queue="streams", backoff_ms=[60_000])
    entry, fields = await street.take()
    await street.fail(entry, fields, "hopeless")
    await street.phase(task, "retry_wait")
    await _bury(street, task)
    dead = await street.over(task)
    assert (dead["state"], dead["failures"]) == ("dead", 1)
    await asyncio.sleep(1.2)
    assert len(await street.letters()) == 1


@pytest.mark.contract("S1-7")
async def test_a_dead_letter_of_what_was_never_on_the_stream_kills_nothing(street: Street) -> None:
    waiting = await street.submit(type="elsewhere")
    later = await street.submit(type="elsewhere", delay_ms=60_000)
    for task in (waiting, later):
        await _bury(street, task)
    own = await street.submit(queue="streams")
    entry, _ = await street.take()
    await _bury(street, own)
    await street.redis.xack(TASKS, GROUP, entry)
    await street.over(own)  # read after the others
    assert [(await street.read(task))["state"] for task in (waiting, later)] == [
        "queued",
        "scheduled",
    ]


@pytest.mark.contract("S1-7")
async def test_a_zombies_dead_letter_kills_nothing(street: Street) -> None:
    task = await street.submit(queue="streams")
    old, _ = await street.take("zombie")
    await street.silent("zombie", old)
    entry, fields = await street.take("heir")
    await street.phase(task, "running")
    await _bury(street, task, fence="1")

    async def late() -> bool:
        return "task.late_result" in await street.types(task)

    await street.until(late)
    await street.succeed(entry, fields)
    assert (await street.over(task))["state"] == "succeeded"
