"""Entries of others are held to what every door is held to, as long as nobody has taken them."""

from __future__ import annotations

from typing import Any

import pytest

from onward.workers.streams import channel
from tests.streams.stream_app import DEAD, GROUP, RESULTS, TASKS, StreamApp, open_stream_app

pytestmark = [pytest.mark.slow, pytest.mark.contract("S1-13")]


async def known(streams: StreamApp, task: str) -> dict[str, Any]:
    async def there() -> dict[str, Any] | None:
        found = await streams.http.get(f"/api/v2/tasks/{task}")
        return found.json() if found.status_code == 200 else None

    return await streams.until(there)


async def declare(streams: StreamApp, **service: Any) -> None:
    body = {"name": "s", "task_types": ["t"], **service}
    answer = await streams.http.post("/api/v2/services", json=body)
    assert answer.status_code in (200, 201), answer.text


@pytest.mark.contract("S1-8")
async def test_one_key_is_one_task_from_any_sender(streams: StreamApp) -> None:
    await streams.add_foreign("first", idempotency_key="k")
    await known(streams, "first")
    await streams.add_foreign("second", idempotency_key="k")

    async def one() -> bool:
        return await streams.length() == 1

    await streams.until(one)
    assert (await streams.http.get("/api/v2/tasks/second")).status_code == 404
    entry, fields = await streams.take()
    assert fields["task_id"] == "first"
    await streams.succeed(entry, fields)
    await streams.over("first")
    await streams.add_foreign("third", idempotency_key="k")  # and over is over
    await streams.empty()


@pytest.mark.contract("S1-8")
async def test_a_key_with_another_payload_is_a_dead_letter(streams: StreamApp) -> None:
    await streams.add_foreign("first", idempotency_key="k")
    await known(streams, "first")
    await streams.add_foreign("other", idempotency_key="k", payload='{"n": 2}')
    await known(streams, "other")
    dead = await streams.over("other")
    assert (dead["state"], dead["error"]["kind"]) == ("dead", "KeyReused")
    assert (await streams.read("first"))["phase"] == "offered"


@pytest.mark.contract("S1-8")
async def test_what_a_worker_has_is_followed_whatever_its_key(streams: StreamApp) -> None:
    await streams.shut()
    await streams.add_foreign("first", idempotency_key="k")
    await streams.add_foreign("second", idempotency_key="k")
    taken = await streams.take_all(count=2)
    await streams.open()
    for entry, fields in taken:
        await known(streams, fields["task_id"])
        await streams.succeed(entry, fields, fields["task_id"])
    for task in ("first", "second"):
        assert (await streams.over(task))["result"] == task
    await streams.empty()


@pytest.mark.contract("S1-8")
async def test_what_a_worker_has_answered_at_once_is_known_for_what_it_was(
    streams: StreamApp,
) -> None:
    await streams.shut()
    for task in ("first", "second"):
        await streams.add_foreign(task, idempotency_key="k")
    for entry, fields in await streams.take_all(count=2):
        await streams.succeed(entry, fields, fields["task_id"])
    await streams.open()
    for task in ("first", "second"):
        await known(streams, task)
        done = await streams.over(task)
        assert (done["type"], done["payload"], done["result"]) == ("t", {"n": 1}, task)
    await streams.empty()


async def test_a_stream_of_many_pages_is_taken_over_whole(
    streams: StreamApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "ENTRIES", 2)
    await streams.shut()
    tasks = [f"task-{n}" for n in range(5)]
    for task in tasks:
        await streams.add_foreign(task)
    *_, (entry, fields) = await streams.take_all(count=5)
    await streams.open()
    for task in tasks:
        assert (await known(streams, task))["type"] == "t"
    await streams.succeed(entry, fields)
    assert (await streams.over(tasks[-1]))["state"] == "succeeded"


@pytest.mark.contract("S1-11")
async def test_a_guarded_type_waits_for_a_person_by_whatever_way_it_came(
    streams: StreamApp,
) -> None:
    await declare(streams, requires_approval=True, via="streams")
    await streams.add_foreign("theirs", payload='{"a": 1}')
    waiting = await known(streams, "theirs")
    assert (waiting["state"], waiting["phase"]) == ("waiting", "waiting_approval")
    await streams.empty()
    answer = await streams.http.post("/api/v2/approvals/theirs/approve")
    assert answer.status_code == 200, answer.text
    entry, fields = await streams.take()
    assert (fields["task_id"], fields["payload"]) == ("theirs", '{"a": 1}')
    await streams.succeed(entry, fields)
    assert (await streams.over("theirs"))["state"] == "succeeded"


@pytest.mark.contract("S1-8", "S1-11")
async def test_a_guarded_type_asks_once_for_one_key(streams: StreamApp) -> None:
    await declare(streams, requires_approval=True, via="streams")
    await streams.add_foreign("first", idempotency_key="k")
    await known(streams, "first")
    await streams.add_foreign("second", idempotency_key="k")
    await streams.add_foreign("other", idempotency_key="k", payload='{"n": 2}')
    assert (await known(streams, "other"))["type"] == "t"
    dead = await streams.over("other")
    assert (dead["state"], dead["error"]["kind"]) == ("dead", "KeyReused")
    await streams.empty()
    assert (await streams.http.get("/api/v2/tasks/second")).status_code == 404
    assert (await streams.read("first"))["phase"] == "waiting_approval"


@pytest.mark.contract("S1-7")
async def test_an_entry_that_does_not_fit_its_schema_is_a_dead_letter(streams: StreamApp) -> None:
    await declare(streams, schema={"t": {"type": "object", "required": ["must"]}})
    await streams.add_foreign("theirs")
    await known(streams, "theirs")
    dead = await streams.over("theirs")
    assert (dead["state"], dead["error"]["kind"]) == ("dead", "SchemaInvalid")
    assert "must" in dead["error"]["message"]
    await streams.empty()


async def test_a_dead_letter_of_an_unknown_task_can_be_replayed(streams: StreamApp) -> None:
    letter = {
        "task_id": "theirs", "tool_name": "for.eign", "payload": '{"k": 2}',
        "error": "hopeless", "retry_count": "4", "failed_at": "1700000000",
    }  # fmt: skip
    await streams.redis.xadd(DEAD, letter)
    await known(streams, "theirs")
    dead = await streams.over("theirs")
    told = (dead["state"], dead["type"], dead["payload"], dead["failures"])
    assert told == ("dead", "for.eign", {"k": 2}, 4)
    assert dead["error"]["message"] == "hopeless"
    assert (await streams.http.post("/api/v2/tasks/theirs/retry")).status_code == 200
    _, fields = await streams.take()
    assert (fields["tool_name"], fields["payload"]) == ("for.eign", '{"k": 2}')


@pytest.mark.contract("S1-7")
async def test_a_failure_of_unknown_work_is_not_tried_again(streams: StreamApp) -> None:
    await streams.answer(None, "never-seen", status="failed", error="no")
    await known(streams, "never-seen")
    dead = await streams.over("never-seen")
    assert (dead["state"], dead["error"]["message"]) == ("dead", "no")
    await streams.empty()


@pytest.mark.contract("S1-3")
async def test_of_two_answers_the_first_one_counts(streams: StreamApp) -> None:
    tasks = [await streams.submit(queue="streams") for _ in range(20)]
    for entry, fields in await streams.take_all():
        pipe = streams.redis.pipeline(transaction=True)
        said = {"task_id": fields["task_id"], "worker": "raw"}
        pipe.xadd(RESULTS, {**said, "status": "succeeded", "result": "1"})
        pipe.xadd(RESULTS, {**said, "status": "failed", "error": "no"})
        pipe.xack(TASKS, GROUP, entry)
        await pipe.execute()
    for task in tasks:
        assert (await streams.over(task))["state"] == "succeeded"
    await streams.empty()


@pytest.mark.parametrize("stream", [RESULTS, DEAD])
async def test_a_deleted_stream_is_read_again(streams: StreamApp, stream: str) -> None:
    await streams.redis.delete(stream)

    async def there() -> bool:
        names = [group["name"] for group in await streams.redis.xinfo_groups(stream)]
        return b"cg:onward" in names

    task = await streams.submit(queue="streams")
    entry, fields = await streams.take()
    await streams.succeed(entry, fields, 5)
    over = await streams.over(task)
    assert (over["result"], over["attempt"]) == (5, 1), "not done a second time"
    await streams.until(there)


@pytest.mark.parametrize("ledger", ["sqlite", "redis"])
@pytest.mark.contract("S1-7", "R-9")
async def test_every_type_on_the_stream_follows_the_streams_rules(ledger: str) -> None:
    async with open_stream_app(ledger, stream_types=("*",), max_retries=1) as streams:
        task = await streams.submit(type="anything")
        for _ in range(2):
            entry, fields = await streams.take()
            await streams.fail(entry, fields, "no")
        dead = await streams.over(task)
        assert (dead["state"], dead["failures"]) == ("dead", 2)


@pytest.mark.contract("R-8")
async def test_the_tasks_door_shows_what_went_over_a_stream(streams: StreamApp) -> None:
    task = await streams.submit(queue="streams", max_retries=0)
    entry, fields = await streams.take()
    await streams.fail(entry, fields, "no")
    await streams.over(task)
    found = await streams.http.get(f"/api/v1/tasks/{task}")
    assert (found.status_code, found.json().get("state")) == (200, "DLQ")
    letters = (await streams.http.get("/api/v1/queues/dlq")).json()
    assert [letter["task_id"] for letter in letters] == [task]
