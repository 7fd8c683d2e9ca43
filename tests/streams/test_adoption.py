"""Entries of others are held to what every door is held to, as long as nobody has taken them."""

from __future__ import annotations

from typing import Any

import pytest

from onward.workers.streams import channel
from tests.streams.street import DEAD, GROUP, RESULTS, TASKS, Street, open_street

pytestmark = [pytest.mark.slow, pytest.mark.contract("S1-13")]


async def known(street: Street, task: str) -> dict[str, Any]:
    async def there() -> dict[str, Any] | None:
        found = await street.http.get(f"/api/v2/tasks/{task}")
        return found.json() if found.status_code == 200 else None

    return await street.until(there)


async def declare(street: Street, **service: Any) -> None:
    body = {"name": "s", "task_types": ["t"], **service}
    answer = await street.http.post("/api/v2/services", json=body)
    assert answer.status_code in (200, 201), answer.text


@pytest.mark.contract("S1-8")
async def test_one_key_is_one_task_whoever_sends_it_again(street: Street) -> None:
    await street.add_foreign("first", idempotency_key="k")
    await known(street, "first")
    await street.add_foreign("second", idempotency_key="k")

    async def one() -> bool:
        return await street.length() == 1

    await street.until(one)
    assert (await street.http.get("/api/v2/tasks/second")).status_code == 404
    entry, fields = await street.take()
    assert fields["task_id"] == "first"
    await street.succeed(entry, fields)
    await street.over("first")
    await street.add_foreign("third", idempotency_key="k")  # and over is over
    await street.empty()


@pytest.mark.contract("S1-8")
async def test_a_key_with_another_payload_is_a_dead_letter(street: Street) -> None:
    await street.add_foreign("first", idempotency_key="k")
    await known(street, "first")
    await street.add_foreign("other", idempotency_key="k", payload='{"n": 2}')
    await known(street, "other")
    dead = await street.over("other")
    assert (dead["state"], dead["error"]["kind"]) == ("dead", "KeyReused")
    assert (await street.read("first"))["phase"] == "offered"


@pytest.mark.contract("S1-8")
async def test_what_a_worker_has_is_followed_whatever_its_key(street: Street) -> None:
    await street.shut()
    await street.add_foreign("first", idempotency_key="k")
    await street.add_foreign("second", idempotency_key="k")
    taken = await street.take_all(count=2)
    await street.open()
    for entry, fields in taken:
        await known(street, fields["task_id"])
        await street.succeed(entry, fields, fields["task_id"])
    for task in ("first", "second"):
        assert (await street.over(task))["result"] == task
    await street.empty()


@pytest.mark.contract("S1-8")
async def test_what_a_worker_has_answered_at_once_is_known_for_what_it_was(
    street: Street,
) -> None:
    await street.shut()
    for task in ("first", "second"):
        await street.add_foreign(task, idempotency_key="k")
    for entry, fields in await street.take_all(count=2):
        await street.succeed(entry, fields, fields["task_id"])
    await street.open()
    for task in ("first", "second"):
        await known(street, task)
        done = await street.over(task)
        assert (done["type"], done["payload"], done["result"]) == ("t", {"n": 1}, task)
    await street.empty()


async def test_a_stream_of_many_pages_is_taken_over_whole(
    street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "ENTRIES", 2)
    await street.shut()
    tasks = [f"task-{n}" for n in range(5)]
    for task in tasks:
        await street.add_foreign(task)
    *_, (entry, fields) = await street.take_all(count=5)
    await street.open()
    for task in tasks:
        assert (await known(street, task))["type"] == "t"
    await street.succeed(entry, fields)
    assert (await street.over(tasks[-1]))["state"] == "succeeded"


@pytest.mark.contract("S1-11")
async def test_a_guarded_type_waits_for_a_person_by_whatever_way_it_came(street: Street) -> None:
    await declare(street, requires_approval=True, via="streams")
    await street.add_foreign("theirs", payload='{"a": 1}')
    waiting = await known(street, "theirs")
    assert (waiting["state"], waiting["phase"]) == ("waiting", "waiting_approval")
    await street.empty()
    answer = await street.http.post("/api/v2/approvals/theirs/approve")
    assert answer.status_code == 200, answer.text
    entry, fields = await street.take()
    assert (fields["task_id"], fields["payload"]) == ("theirs", '{"a": 1}')
    await street.succeed(entry, fields)
    assert (await street.over("theirs"))["state"] == "succeeded"


@pytest.mark.contract("S1-8", "S1-11")
async def test_a_guarded_type_asks_once_for_one_key(street: Street) -> None:
    await declare(street, requires_approval=True, via="streams")
    await street.add_foreign("first", idempotency_key="k")
    await known(street, "first")
    await street.add_foreign("second", idempotency_key="k")
    await street.add_foreign("other", idempotency_key="k", payload='{"n": 2}')
    assert (await known(street, "other"))["type"] == "t"
    dead = await street.over("other")
    assert (dead["state"], dead["error"]["kind"]) == ("dead", "KeyReused")
    await street.empty()
    assert (await street.http.get("/api/v2/tasks/second")).status_code == 404
    assert (await street.read("first"))["phase"] == "waiting_approval"


@pytest.mark.contract("S1-7")
async def test_an_entry_that_does_not_fit_its_schema_is_a_dead_letter(street: Street) -> None:
    await declare(street, schema={"t": {"type": "object", "required": ["must"]}})
    await street.add_foreign("theirs")
    await known(street, "theirs")
    dead = await street.over("theirs")
    assert (dead["state"], dead["error"]["kind"]) == ("dead", "SchemaInvalid")
    assert "must" in dead["error"]["message"]
    await street.empty()


async def test_a_dead_letter_of_an_unknown_task_can_be_replayed(street: Street) -> None:
    letter = {
        "task_id": "theirs", "tool_name": "for.eign", "payload": '{"k": 2}',
        "error": "hopeless", "retry_count": "4", "failed_at": "1700000000",
    }  # fmt: skip
    await street.redis.xadd(DEAD, letter)
    await known(street, "theirs")
    dead = await street.over("theirs")
    told = (dead["state"], dead["type"], dead["payload"], dead["failures"])
    assert told == ("dead", "for.eign", {"k": 2}, 4)
    assert dead["error"]["message"] == "hopeless"
    assert (await street.http.post("/api/v2/tasks/theirs/retry")).status_code == 200
    _, fields = await street.take()
    assert (fields["tool_name"], fields["payload"]) == ("for.eign", '{"k": 2}')


@pytest.mark.contract("S1-7")
async def test_a_failure_of_which_nobody_knows_the_work_is_not_tried_again(street: Street) -> None:
    await street.answer(None, "never-seen", status="failed", error="no")
    await known(street, "never-seen")
    dead = await street.over("never-seen")
    assert (dead["state"], dead["error"]["message"]) == ("dead", "no")
    await street.empty()


@pytest.mark.contract("S1-3")
async def test_of_two_answers_the_first_one_counts(street: Street) -> None:
    tasks = [await street.submit(queue="streams") for _ in range(20)]
    for entry, fields in await street.take_all():
        pipe = street.redis.pipeline(transaction=True)
        said = {"task_id": fields["task_id"], "worker": "raw"}
        pipe.xadd(RESULTS, {**said, "status": "succeeded", "result": "1"})
        pipe.xadd(RESULTS, {**said, "status": "failed", "error": "no"})
        pipe.xack(TASKS, GROUP, entry)
        await pipe.execute()
    for task in tasks:
        assert (await street.over(task))["state"] == "succeeded"
    await street.empty()


@pytest.mark.parametrize("stream", [RESULTS, DEAD])
async def test_a_stream_that_somebody_deleted_is_read_again(street: Street, stream: str) -> None:
    await street.redis.delete(stream)

    async def there() -> bool:
        names = [group["name"] for group in await street.redis.xinfo_groups(stream)]
        return b"cg:onward" in names

    task = await street.submit(queue="streams")
    entry, fields = await street.take()
    await street.succeed(entry, fields, 5)
    over = await street.over(task)
    assert (over["result"], over["attempt"]) == (5, 1), "not done a second time"
    await street.until(there)


@pytest.mark.parametrize("ledger", ["sqlite", "redis"])
@pytest.mark.contract("S1-7", "R-9")
async def test_every_type_on_the_stream_follows_the_streams_rules(ledger: str) -> None:
    async with open_street(ledger, stream_types=("*",), max_retries=1) as street:
        task = await street.submit(type="anything")
        for _ in range(2):
            entry, fields = await street.take()
            await street.fail(entry, fields, "no")
        dead = await street.over(task)
        assert (dead["state"], dead["failures"]) == ("dead", 2)


@pytest.mark.contract("R-8")
async def test_the_tasks_door_shows_what_went_over_a_stream(street: Street) -> None:
    task = await street.submit(queue="streams", max_retries=0)
    entry, fields = await street.take()
    await street.fail(entry, fields, "no")
    await street.over(task)
    found = await street.http.get(f"/api/v1/tasks/{task}")
    assert (found.status_code, found.json().get("state")) == (200, "DLQ")
    letters = (await street.http.get("/api/v1/queues/dlq")).json()
    assert [letter["task_id"] for letter in letters] == [task]
