"""The protocol's four acceptance cases, with raw workers, on both ledgers (S1-12)."""

from __future__ import annotations

import pytest

from tests.streams.street import Street

pytestmark = [pytest.mark.slow, pytest.mark.contract("S1-12")]


@pytest.mark.contract("S1-1", "S1-2", "S1-3", "S1-4")
async def test_a_task_is_created_claimed_succeeded_acknowledged_and_gone(street: Street) -> None:
    task = await street.submit(queue="streams", payload={"n": 1}, idempotency_key="k-1")
    entry, fields = await street.take()
    assert fields["task_id"] == task
    assert (fields["tool_name"], fields["payload"]) == ("t", '{"n":1}')
    assert (fields["idempotency_key"], fields["retry_count"]) == ("k-1", "0")
    assert fields["created_at"].isdigit()
    assert await street.pending() == 1
    await street.phase(task, "running")
    await street.succeed(entry, fields, {"ok": True})
    done = await street.over(task)
    assert (done["state"], done["result"]) == ("succeeded", {"ok": True})
    types = [event["type"] for event in await street.history(task)]
    assert types == ["task.created", "task.claimed", "task.delivered", "task.succeeded"]
    assert await street.pending() == 0
    await street.empty()


@pytest.mark.contract("S1-7", "S1-9")
async def test_a_failing_task_is_retried_to_the_bound_and_then_a_dead_letter(
    street: Street,
) -> None:
    task = await street.submit(queue="streams", payload={"n": 1})
    for failures in range(4):
        entry, fields = await street.take()
        assert (fields["task_id"], fields["retry_count"]) == (task, str(failures))
        await street.fail(entry, fields, "smoke came out")
    dead = await street.over(task)
    assert (dead["state"], dead["failures"]) == ("dead", 4)
    types = [event["type"] for event in await street.history(task)]
    assert types.count("task.retrying") == 3
    assert types[-2:] == ["task.failed", "task.dlq"]
    assert await street.pending() == 0

    (told,) = await street.until(street.letters)
    assert told["failed_at"].isdigit()
    assert told == {
        "task_id": task, "tool_name": "t", "payload": '{"n":1}', "error": "smoke came out",
        "retry_count": "4", "failed_at": told["failed_at"], "origin": "onward",
    }  # fmt: skip


@pytest.mark.contract("S1-5", "S1-6")
async def test_a_stopped_workers_task_is_reclaimed_and_finished_by_another(street: Street) -> None:
    task = await street.submit(queue="streams")
    lost, _ = await street.take("dies")
    await street.phase(task, "running")
    await street.silent("dies", lost)
    entry, fields = await street.take("lives")
    assert entry != lost, "a fresh entry"
    assert (fields["task_id"], fields["retry_count"]) == (task, "0")
    await street.succeed(entry, fields, "done")
    assert (await street.over(task))["state"] == "succeeded"
    (reclaimed,) = [e for e in await street.history(task) if e["type"] == "task.reclaimed"]
    assert reclaimed["data"] == {"from": "dies", "to": "onward", "message_id": lost}
    assert await street.pending() == 0


@pytest.mark.contract("S1-8")
async def test_one_key_is_one_task_and_one_effect(street: Street) -> None:
    first = await street.submit(queue="streams", payload=1, idempotency_key="pay-7")
    again = await street.submit(queue="streams", payload=1, idempotency_key="pay-7")
    assert first == again
    entry, fields = await street.take()
    path = f"/api/v2/tasks/{first}/effects/charge"
    begun = await street.http.post(path, json={"fence": int(fields["fence"])})
    assert begun.json() == {"state": "begun"}
    await street.http.put(path, json={"fence": int(fields["fence"]), "value": 7})
    await street.fail(entry, fields, "after the charge")
    entry, fields = await street.take()
    seen = await street.http.post(path, json={"fence": int(fields["fence"])})
    assert seen.json() == {"state": "done", "value": 7}
    await street.succeed(entry, fields)
    assert (await street.over(first))["state"] == "succeeded"
