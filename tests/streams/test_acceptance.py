"""The protocol's four acceptance cases, with raw workers, on both ledgers (S1-12)."""

from __future__ import annotations

import pytest

from tests.streams.stream_app import StreamApp

pytestmark = [pytest.mark.slow, pytest.mark.contract("S1-12")]


@pytest.mark.contract("S1-1", "S1-2", "S1-3", "S1-4")
async def test_a_task_is_created_claimed_succeeded_acknowledged_and_gone(
    streams: StreamApp,
) -> None:
    task = await streams.submit(queue="streams", payload={"n": 1}, idempotency_key="k-1")
    entry, fields = await streams.take()
    assert fields["task_id"] == task
    assert (fields["tool_name"], fields["payload"]) == ("t", '{"n":1}')
    assert (fields["idempotency_key"], fields["retry_count"]) == ("k-1", "0")
    assert fields["created_at"].isdigit()
    assert await streams.pending() == 1
    await streams.phase(task, "running")
    await streams.succeed(entry, fields, {"ok": True})
    done = await streams.over(task)
    assert (done["state"], done["result"]) == ("succeeded", {"ok": True})
    types = [event["type"] for event in await streams.history(task)]
    assert types == ["task.created", "task.claimed", "task.delivered", "task.succeeded"]
    assert await streams.pending() == 0
    await streams.empty()


@pytest.mark.contract("S1-7", "S1-9")
async def test_a_failing_task_is_retried_to_the_bound_and_then_a_dead_letter(
    streams: StreamApp,
) -> None:
    task = await streams.submit(queue="streams", payload={"n": 1})
    for failures in range(4):
        entry, fields = await streams.take()
        assert (fields["task_id"], fields["retry_count"]) == (task, str(failures))
        await streams.fail(entry, fields, "smoke came out")
    dead = await streams.over(task)
    assert (dead["state"], dead["failures"]) == ("dead", 4)
    types = [event["type"] for event in await streams.history(task)]
    assert types.count("task.retrying") == 3
    # Whether a sweep saw it or its answer came first, each attempt names the worker that had it.
    assert types.count("task.delivered") == 4
    assert str(dead["worker"]).startswith("raw")
    assert types[-2:] == ["task.failed", "task.dlq"]
    assert await streams.pending() == 0

    (told,) = await streams.until(streams.letters)
    assert told["failed_at"].isdigit()
    assert told == {
        "task_id": task, "tool_name": "t", "payload": '{"n":1}', "error": "smoke came out",
        "retry_count": "4", "failed_at": told["failed_at"], "origin": "onward",
    }  # fmt: skip


@pytest.mark.contract("S1-5", "S1-6")
async def test_a_stopped_workers_task_is_reclaimed_and_finished_by_another(
    streams: StreamApp,
) -> None:
    task = await streams.submit(queue="streams")
    lost, _ = await streams.take("dies")
    await streams.phase(task, "running")
    await streams.silent("dies", lost)
    entry, fields = await streams.take("lives")
    assert entry != lost, "a fresh entry"
    assert (fields["task_id"], fields["retry_count"]) == (task, "0")
    await streams.succeed(entry, fields, "done")
    assert (await streams.over(task))["state"] == "succeeded"
    (reclaimed,) = [e for e in await streams.history(task) if e["type"] == "task.reclaimed"]
    assert reclaimed["data"] == {"from": "dies", "to": "onward", "message_id": lost}
    assert await streams.pending() == 0


@pytest.mark.contract("S1-8")
async def test_one_key_is_one_task_and_one_effect(streams: StreamApp) -> None:
    first = await streams.submit(queue="streams", payload=1, idempotency_key="pay-7")
    again = await streams.submit(queue="streams", payload=1, idempotency_key="pay-7")
    assert first == again
    entry, fields = await streams.take()
    path = f"/api/v2/tasks/{first}/effects/charge"
    begun = await streams.http.post(path, json={"fence": int(fields["fence"])})
    assert begun.json() == {"state": "begun"}
    await streams.http.put(path, json={"fence": int(fields["fence"]), "value": 7})
    await streams.fail(entry, fields, "after the charge")
    entry, fields = await streams.take()
    seen = await streams.http.post(path, json={"fence": int(fields["fence"])})
    assert seen.json() == {"state": "done", "value": 7}
    await streams.succeed(entry, fields)
    assert (await streams.over(first))["state"] == "succeeded"
