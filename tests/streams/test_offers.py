"""What is put on the stream, and taken back: credits, types, cancels, restarts."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from onward.client.worker import Worker
from onward.workers.streams import channel, feed
from tests.servers import RedisServer
from tests.streams.stream_app import GROUP, TASKS, StreamApp, open_stream_app, text
from tests.support import wait_until

pytestmark = pytest.mark.slow

LEDGERS = pytest.mark.parametrize("ledger", ["sqlite", "redis"])


async def offered(streams: StreamApp) -> list[str]:
    return [text(fields)["task_id"] for _, fields in await streams.redis.xrange(TASKS)]


@LEDGERS
@pytest.mark.contract("S1-1", "R-2")
async def test_credits_bound_what_is_untaken_and_priority_holds_for_the_rest(ledger: str) -> None:
    async with open_stream_app(ledger, stream_credits=4) as streams:
        first = [await streams.submit(queue="streams") for _ in range(10)]

        async def four() -> bool:
            return await streams.length() == 4

        await streams.until(four)
        urgent = await streams.submit(queue="streams", priority="high")
        await streams.holds(four, 1.2)
        assert await offered(streams) == first[:4]
        assert (await streams.read(first[4]))["phase"] == "queued", "the backlog is in the ledger"
        assert (await streams.read(urgent))["phase"] == "queued"

        order = []
        for _ in range(11):
            entry, fields = await streams.take()
            order.append(fields["task_id"])
            await streams.succeed(entry, fields)
            await streams.over(fields["task_id"])
        assert 4 <= order.index(urgent) <= 6, "overtakes the backlog, but not its fair share"
        assert [task for task in order if task != urgent] == first
        await streams.empty()


@LEDGERS
@pytest.mark.contract("S1-1")
async def test_delivered_entries_cost_no_credit(ledger: str) -> None:
    async with open_stream_app(ledger, visibility_timeout_s=30, stream_credits=10) as streams:
        tasks = [await streams.submit(queue="streams") for _ in range(45)]
        taken: list[tuple[str, dict[str, str]]] = []
        while len(taken) < len(tasks):
            some = await streams.take_all()
            assert some, f"only {len(taken)} were offered"
            taken += some
        assert [fields["task_id"] for _, fields in taken] == tasks
        for entry, fields in taken:
            await streams.succeed(entry, fields)
        for task in tasks:
            await streams.over(task)
        await streams.empty()


@pytest.mark.contract("S1-3")
async def test_an_offered_task_is_shown_as_queued_until_a_worker_has_it(streams: StreamApp) -> None:
    task = await streams.submit(queue="streams")
    await streams.phase(task, "offered")
    found = await streams.read(task)
    assert (found["state"], found["started_at"]) == ("queued", None)
    assert await streams.listed("queued") == [task]
    assert await streams.listed("running") == []
    assert await streams.counted("streams") == {"queued": 1}
    entry, fields = await streams.take()
    await streams.phase(task, "running")
    found = await streams.read(task)
    assert (found["state"], found["started_at"] is not None) == ("running", True)
    assert await streams.listed("running") == [task]
    assert await streams.listed("queued") == []
    assert await streams.counted("streams") == {"running": 1}
    await streams.succeed(entry, fields)
    await streams.over(task)


@pytest.mark.contract("S1-3")
async def test_an_offered_task_can_be_withdrawn(streams: StreamApp) -> None:
    task = await streams.submit(queue="streams")
    await streams.phase(task, "offered")
    await streams.cancel(task)
    assert (await streams.over(task))["state"] == "canceled"
    await streams.empty()
    assert await streams.types(task) == [
        "task.created", "task.claimed", "task.canceling", "task.canceled",
    ]  # fmt: skip


@pytest.mark.contract("S1-3")
async def test_a_delivered_task_that_is_canceled_stays_its_workers_until_it_answers(
    streams: StreamApp,
) -> None:
    task = await streams.submit(queue="streams")
    entry, fields = await streams.take()
    await streams.phase(task, "running")
    await streams.cancel(task)

    async def asked() -> bool:
        return bool(await streams.redis.exists(f"onward:cancel:{task}:1"))

    await streams.until(asked)
    assert 0 < await streams.redis.ttl(f"onward:cancel:{task}:1") <= 60
    assert await streams.pending() == 1, "not taken from under it"
    await streams.succeed(entry, fields)
    assert (await streams.over(task))["state"] == "canceled", "a cancel that was accepted holds"
    await streams.empty()


@LEDGERS
@pytest.mark.contract("S1-3")
async def test_what_an_earlier_server_offered_can_be_withdrawn(ledger: str, tmp_path: Path) -> None:
    async with open_stream_app(_file(ledger, tmp_path)) as streams:
        task = await streams.submit(queue="streams")
        await streams.phase(task, "offered")
        await streams.shut()
        await streams.open()
        await streams.cancel(task)
        assert (await streams.over(task))["state"] == "canceled"
        await streams.empty()


def _file(ledger: str, folder: Path) -> str:
    return ledger if ledger == "redis" else f"sqlite:///{folder}/ledger.db"


@LEDGERS
@pytest.mark.contract("S1-13", "S1-4")
async def test_a_server_that_comes_back_recalls_its_offers_and_takes_what_was_answered(
    ledger: str, tmp_path: Path
) -> None:
    async with open_stream_app(_file(ledger, tmp_path), visibility_timeout_s=30) as streams:
        tasks = [await streams.submit(queue="streams") for _ in range(6)]

        async def six() -> bool:
            return await streams.length() == 6

        await streams.until(six)
        taken = [await streams.take() for _ in range(4)]
        await streams.phase(tasks[3], "running")
        await streams.shut()

        await streams.succeed(*taken[0], "while it was away")
        await streams.fail(*taken[1], "while it was away")
        before = await offered(streams)
        await streams.open()
        assert (await streams.over(tasks[0]))["result"] == "while it was away"

        for entry, fields in taken[2:4]:
            await streams.succeed(entry, fields)
        rest = [await streams.take() for _ in range(3)]
        assert sorted(fields["task_id"] for _, fields in rest) == sorted([tasks[1], *tasks[4:]])
        for entry, fields in rest:
            await streams.succeed(entry, fields)
        for task in tasks:
            assert (await streams.over(task))["state"] == "succeeded"
            assert (await streams.types(task)).count("task.delivered") <= 2
        await streams.empty()
        assert len(before) == 6, "nothing was offered twice while it was away"
        for task in (tasks[0], *tasks[2:]):
            assert (await streams.types(task)).count("task.claimed") == 1


@LEDGERS
@pytest.mark.contract("S1-13")
async def test_offers_on_many_pages_of_the_stream_are_recalled(
    ledger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "ENTRIES", 2)
    async with open_stream_app(_file(ledger, tmp_path)) as streams:
        tasks = [await streams.submit(queue="streams") for _ in range(5)]
        await wait_until(streams.length, holds=(5).__eq__)
        await streams.shut()
        await streams.open()
        for _ in tasks:
            await streams.succeed(*await streams.take())
        for task in tasks:
            assert (await streams.over(task))["state"] == "succeeded"
            assert (await streams.types(task)).count("task.claimed") == 1
        await streams.empty()


@LEDGERS
@pytest.mark.contract("S1-13")
async def test_a_task_claimed_by_a_server_that_died_before_offering_it_is_not_forgotten(
    ledger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_stream_app(_file(ledger, tmp_path)) as streams:
        feed = streams.app.onward._feed

        async def dies(*_: object) -> None: ...

        with monkeypatch.context() as patch:
            patch.setattr(feed, "_offer", dies)
            task = await streams.submit(queue="streams")
            await streams.phase(task, "offered")
            assert await streams.length() == 0
            await streams.shut()
        await streams.open()
        entry, fields = await streams.take()
        assert (fields["task_id"], fields["attempt"]) == (task, "1")
        await streams.succeed(entry, fields)
        assert (await streams.over(task))["state"] == "succeeded"


@LEDGERS
@pytest.mark.contract("S1-1")
async def test_trimmed_entries_are_offered_again(ledger: str) -> None:
    async with open_stream_app(ledger, stream_credits=3) as streams:
        tasks = [await streams.submit(queue="streams") for _ in range(5)]
        await streams.phase(tasks[2], "offered")
        await streams.redis.xtrim(TASKS, maxlen=0, approximate=False)
        done: set[str] = set()
        while len(done) < 5:
            entry, fields = await streams.take()
            done.add(fields["task_id"])
            await streams.succeed(entry, fields)
        for task in tasks:
            assert (await streams.over(task))["state"] == "succeeded"
        await streams.empty()


@pytest.mark.contract("S1-1", "S1-13")
async def test_a_group_that_was_deleted_is_made_again(streams: StreamApp) -> None:
    task = await streams.submit(queue="streams")
    await streams.phase(task, "offered")
    await streams.redis.xgroup_destroy(TASKS, GROUP)
    await streams.redis.xgroup_destroy(TASKS, "cg:onward")

    await streams.until(lambda: _has_group(streams))
    entry, fields = await streams.take()
    await streams.succeed(entry, fields)
    assert (await streams.over(task))["state"] == "succeeded"
    await streams.empty()


async def _has_group(streams: StreamApp) -> bool:
    if not await streams.redis.exists(TASKS):
        return False
    groups = await streams.redis.xinfo_groups(TASKS)
    return {group["name"] for group in groups} == {b"cg:workers", b"cg:onward"}


@pytest.mark.contract("S1-13")
async def test_a_redis_that_lost_everything_is_fed_anew_from_the_ledger(tmp_path: Path) -> None:
    server = RedisServer("valkey", folder=tmp_path)
    try:
        async with open_stream_app(redis_url=server.url) as streams:
            waits = await streams.submit(queue="streams")
            await streams.phase(waits, "offered")
            runs, _ = await streams.take()
            server.kill()
            await asyncio.sleep(0.6)
            server.start()
            await streams.until(lambda: _has_group(streams))
            done = await streams.submit(queue="streams")
            seen: list[str] = []
            while len(seen) < 2:
                entry, fields = await streams.take()
                assert entry != runs
                seen.append(fields["task_id"])
                await streams.succeed(entry, fields)
            assert sorted(seen) == sorted([waits, done])
            for task in seen:
                assert (await streams.over(task))["state"] == "succeeded"
    finally:
        server.close()


@LEDGERS
@pytest.mark.contract("S1-1", "R-2")
async def test_a_named_type_goes_over_the_stream_and_another_does_not(ledger: str) -> None:
    async with open_stream_app(ledger, stream_types=("mail",)) as streams:
        other = await streams.submit(type="other")
        task = await streams.submit(type="mail", payload={"to": "ada"})
        entry, fields = await streams.take()
        assert (fields["task_id"], fields["tool_name"]) == (task, "mail")
        await streams.succeed(entry, fields)
        await streams.over(task)
        assert (await streams.read(other))["phase"] == "queued"
        await streams.empty()


@LEDGERS
@pytest.mark.contract("S1-1", "R-2")
async def test_a_star_means_every_type_that_no_connected_worker_serves(ledger: str) -> None:
    async with open_stream_app(ledger, stream_types=("*",)) as streams:
        await _join(streams, "native")
        mine = await streams.submit(type="native")
        task = await streams.submit(type="anything")
        entry, fields = await streams.take()
        assert fields["task_id"] == task
        await streams.succeed(entry, fields)
        await streams.over(task)
        assert await streams.take_all(timeout=1.5) == []
        assert (await streams.read(mine))["phase"] == "queued"


async def test_a_stream_that_takes_no_entries_is_not_tried_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed, "REFUSED_S", 1.0)
    async with open_stream_app("sqlite") as streams:
        await streams.redis.execute_command("ACL", "SETUSER", "default", "-xadd")
        try:
            task = await streams.submit(queue="streams")

            async def refused() -> bool:
                return "task.released" in await streams.types(task)

            await streams.until(refused)
            await asyncio.sleep(1.5)
            assert (await streams.types(task)).count("task.released") <= 4
        finally:
            await streams.redis.execute_command("ACL", "SETUSER", "default", "+xadd")
        entry, fields = await streams.take()
        await streams.succeed(entry, fields)
        assert (await streams.over(task))["state"] == "succeeded"


async def _join(streams: StreamApp, *queues: str) -> None:
    """A worker on a socket, as far as anybody can tell."""
    roster = streams.app.onward.roster
    await roster.join(roster.member("w", "socket", queues, 1))


@LEDGERS
@pytest.mark.contract("R-2")
async def test_a_type_that_a_socket_worker_serves_leaves_the_stream_again(ledger: str) -> None:
    async with open_stream_app(ledger, stream_types=("mail",)) as streams:
        await _join(streams, "mail")
        await wait_until(lambda: "mail" not in streams.app.onward._feed._offers.worker_slots.queues)
        first = await streams.submit(type="mail")
        assert await streams.take_all(timeout=1) == []
        roster = streams.app.onward.roster
        await roster.leave(roster.members()[0])
        await streams.phase(first, "offered")

        await _join(streams, "mail")
        await streams.phase(first, "requeued")
        assert await streams.length() == 0
        assert (await streams.read(first))["attempt"] == 0


@pytest.mark.contract("S1-7")
async def test_a_submissions_own_retries_and_backoff_win_over_the_doors(streams: StreamApp) -> None:
    task = await streams.submit(queue="streams", max_retries=1, backoff_ms=[700])
    entry, fields = await streams.take()
    await streams.fail(entry, fields, "no")
    await streams.phase(task, "retry_wait")
    (retrying,) = await streams.events(task, "task.retrying")
    failed_at = (await streams.history(task))[-1]["at"]
    assert 690 <= retrying["run_at"] - failed_at <= 710
    entry, fields = await streams.take()
    await streams.fail(entry, fields, "no")
    dead = await streams.over(task)
    assert (dead["state"], dead["failures"]) == ("dead", 2)


@pytest.mark.contract("S1-7")
@pytest.mark.parametrize("said", [{"error_type": "SchemaInvalid"}, {"retryable": "false"}])
async def test_what_cannot_be_mended_is_a_dead_letter_at_once(
    streams: StreamApp, said: dict[str, str]
) -> None:
    task = await streams.submit(queue="streams")
    entry, fields = await streams.take()
    await streams.fail(entry, fields, "no such field", **said)
    dead = await streams.over(task)
    assert (dead["state"], dead["failures"]) == ("dead", 1)
    (letter,) = await streams.until(streams.letters)
    assert (letter["task_id"], letter["error"], letter["retry_count"]) == (
        task, "no such field", "1",
    )  # fmt: skip
    await streams.empty()


def _swept_since(feed: Any, sweeps: int) -> bool:
    return bool(feed._sweeps > sweeps + 1)


@LEDGERS
@pytest.mark.contract("S1-5")
async def test_heartbeats_add_no_entry_and_keep_a_long_task_alive(ledger: str) -> None:
    async with open_stream_app(ledger, visibility_timeout_s=30) as streams:
        task = await streams.submit(queue="streams")
        entry, fields = await streams.take("slow")
        await streams.phase(task, "running")
        feed = streams.app.onward._feed
        for _ in range(3):
            # Twenty seconds pass: twice without a heartbeat between would be too long.
            (row,) = await streams.redis.xpending_range(TASKS, GROUP, entry, entry, 1)
            idle = row["time_since_delivered"] + 20_000
            await streams.redis.xclaim(TASKS, GROUP, "slow", 0, [entry], idle=idle, justid=True)
            swept = feed._sweeps
            await wait_until(partial(_swept_since, feed, swept))
            await streams.redis.xclaim(TASKS, GROUP, "slow", 0, [entry], justid=True)
            assert await streams.length() == 1
        await streams.succeed(entry, fields)
        assert (await streams.over(task))["state"] == "succeeded"
        types = await streams.types(task)
        assert types == ["task.created", "task.claimed", "task.delivered", "task.succeeded"]
        await streams.empty()


@LEDGERS
@pytest.mark.contract("S1-13", "N-11")
async def test_a_service_declared_via_streams_gets_its_tasks_there(ledger: str) -> None:
    async with open_stream_app(ledger) as streams:
        worker = Worker("http://127.0.0.1:1")

        @worker.service
        async def greet(name: str) -> str:
            return name

        declared = {**worker.services["greet"].declaration(), "via": "streams"}
        response = await streams.http.post("/api/v2/services", json=declared)
        assert response.status_code == 201, response.text
        task = await streams.submit(type="greet", payload={"name": "Ada"})
        entry, fields = await streams.take()
        assert json.loads(fields["payload"]) == {"name": "Ada"}
        await streams.succeed(entry, fields, "Ada")
        assert (await streams.over(task))["result"] == "Ada"


@LEDGERS
@pytest.mark.contract("R-2", "N-11")
async def test_a_type_declared_for_the_stream_stays_off_it_while_served_natively(
    ledger: str,
) -> None:
    async with open_stream_app(ledger) as streams:
        await _join(streams, "greet")
        service = {"name": "greeter", "task_types": ["greet"], "via": "streams"}
        declared = await streams.http.post("/api/v2/services", json=service)
        assert declared.status_code == 201, declared.text
        task = await streams.submit(type="greet")
        assert await streams.take_all(timeout=1.5) == []
        found = await streams.read(task)
        assert (found["queue"], found["phase"]) == ("greet", "queued")
