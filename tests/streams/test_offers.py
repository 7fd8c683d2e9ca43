"""What is put on the stream, and taken back: credits, types, cancels, restarts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from onward.client.worker import Worker
from onward.workers.streams import feed as streams
from tests.servers import RedisServer
from tests.streams.street import GROUP, TASKS, Street, open_street, text
from tests.support import wait_until

pytestmark = pytest.mark.slow

LEDGERS = pytest.mark.parametrize("ledger", ["sqlite", "redis"])


async def offered(street: Street) -> list[str]:
    return [text(fields)["task_id"] for _, fields in await street.redis.xrange(TASKS)]


@LEDGERS
@pytest.mark.contract("S1-1", "R-2")
async def test_credits_bound_what_nobody_has_taken_and_priority_holds_for_the_rest(
    ledger: str,
) -> None:
    async with open_street(ledger, stream_credits=4) as street:
        first = [await street.submit(queue="streams") for _ in range(10)]

        async def four() -> bool:
            return await street.length() == 4

        await street.until(four)
        urgent = await street.submit(queue="streams", priority="high")
        await street.holds(four, 1.2)
        assert await offered(street) == first[:4]
        assert (await street.read(first[4]))["phase"] == "queued", "the backlog is in the ledger"
        assert (await street.read(urgent))["phase"] == "queued"

        order = []
        for _ in range(11):
            entry, fields = await street.take()
            order.append(fields["task_id"])
            await street.succeed(entry, fields)
            await street.over(fields["task_id"])
        assert 4 <= order.index(urgent) <= 6, "overtakes the backlog, but not its fair share"
        assert [task for task in order if task != urgent] == first
        await street.empty()


@LEDGERS
@pytest.mark.contract("S1-1")
async def test_delivered_entries_cost_no_credit(ledger: str) -> None:
    async with open_street(ledger, visibility_timeout_s=30, stream_credits=10) as street:
        tasks = [await street.submit(queue="streams") for _ in range(45)]
        taken: list[tuple[str, dict[str, str]]] = []
        while len(taken) < len(tasks):
            some = await street.take_all()
            assert some, f"only {len(taken)} were offered"
            taken += some
        assert [fields["task_id"] for _, fields in taken] == tasks
        for entry, fields in taken:
            await street.succeed(entry, fields)
        for task in tasks:
            await street.over(task)
        await street.empty()


@pytest.mark.contract("S1-3")
async def test_an_offered_task_is_shown_as_queued_until_somebody_has_it(street: Street) -> None:
    task = await street.submit(queue="streams")
    await street.phase(task, "offered")
    found = await street.read(task)
    assert (found["state"], found["started_at"]) == ("queued", None)
    assert await street.listed("queued") == [task]
    assert await street.listed("running") == []
    assert await street.counted("streams") == {"queued": 1}
    entry, fields = await street.take()
    await street.phase(task, "running")
    found = await street.read(task)
    assert (found["state"], found["started_at"] is not None) == ("running", True)
    assert await street.listed("running") == [task]
    assert await street.listed("queued") == []
    assert await street.counted("streams") == {"running": 1}
    await street.succeed(entry, fields)
    await street.over(task)


@pytest.mark.contract("S1-3")
async def test_an_offered_task_can_be_withdrawn(street: Street) -> None:
    task = await street.submit(queue="streams")
    await street.phase(task, "offered")
    await street.cancel(task)
    assert (await street.over(task, 2))["state"] == "canceled"
    await street.empty()
    assert await street.types(task) == [
        "task.created", "task.claimed", "task.canceling", "task.canceled",
    ]  # fmt: skip


@pytest.mark.contract("S1-3")
async def test_a_delivered_task_that_is_canceled_stays_its_workers_until_it_answers(
    street: Street,
) -> None:
    task = await street.submit(queue="streams")
    entry, fields = await street.take()
    await street.phase(task, "running")
    await street.cancel(task)

    async def asked() -> bool:
        return bool(await street.redis.exists(f"onward:cancel:{task}:1"))

    await street.until(asked)
    assert 0 < await street.redis.ttl(f"onward:cancel:{task}:1") <= 60
    assert await street.pending() == 1, "not taken from under it"
    await street.succeed(entry, fields)
    assert (await street.over(task))["state"] == "canceled", "a cancel that was accepted holds"
    await street.empty()


@LEDGERS
@pytest.mark.contract("S1-3")
async def test_what_an_earlier_server_offered_can_be_withdrawn(ledger: str, tmp_path: Path) -> None:
    async with open_street(_file(ledger, tmp_path)) as street:
        task = await street.submit(queue="streams")
        await street.phase(task, "offered")
        await street.shut()
        await street.open()
        await street.cancel(task)
        assert (await street.over(task, 2))["state"] == "canceled"
        await street.empty()


def _file(ledger: str, folder: Path) -> str:
    return ledger if ledger == "redis" else f"sqlite:///{folder}/ledger.db"


@LEDGERS
@pytest.mark.contract("S1-13", "S1-4")
async def test_a_server_that_comes_back_recalls_its_offers_and_takes_what_was_answered(
    ledger: str, tmp_path: Path
) -> None:
    async with open_street(_file(ledger, tmp_path), visibility_timeout_s=30) as street:
        tasks = [await street.submit(queue="streams") for _ in range(6)]

        async def six() -> bool:
            return await street.length() == 6

        await street.until(six)
        taken = [await street.take() for _ in range(4)]
        await street.phase(tasks[3], "running")
        await street.shut()

        await street.succeed(*taken[0], "while it was away")
        await street.fail(*taken[1], "while it was away")
        before = await offered(street)
        await street.open()
        assert (await street.over(tasks[0], 5))["result"] == "while it was away"

        for entry, fields in taken[2:4]:
            await street.succeed(entry, fields)
        rest = [await street.take() for _ in range(3)]
        assert sorted(fields["task_id"] for _, fields in rest) == sorted([tasks[1], *tasks[4:]])
        for entry, fields in rest:
            await street.succeed(entry, fields)
        for task in tasks:
            assert (await street.over(task))["state"] == "succeeded"
            assert (await street.types(task)).count("task.delivered") <= 2
        await street.empty()
        assert len(before) == 6, "nothing was offered twice while it was away"
        for task in (tasks[0], *tasks[2:]):
            assert (await street.types(task)).count("task.claimed") == 1


@LEDGERS
@pytest.mark.contract("S1-13")
async def test_a_task_claimed_by_a_server_that_died_before_offering_it_is_not_forgotten(
    ledger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_street(_file(ledger, tmp_path)) as street:
        feed = street.app.onward._feed

        async def dies(*_: object) -> None: ...

        with monkeypatch.context() as patch:
            patch.setattr(feed, "_offer", dies)
            task = await street.submit(queue="streams")
            await street.phase(task, "offered")
            assert await street.length() == 0
            await street.shut()
        await street.open()
        entry, fields = await street.take()
        assert (fields["task_id"], fields["attempt"]) == (task, "1")
        await street.succeed(entry, fields)
        assert (await street.over(task))["state"] == "succeeded"


@LEDGERS
@pytest.mark.contract("S1-1")
async def test_entries_that_somebody_trimmed_are_offered_again(ledger: str) -> None:
    async with open_street(ledger, stream_credits=3) as street:
        tasks = [await street.submit(queue="streams") for _ in range(5)]
        await street.phase(tasks[2], "offered")
        await street.redis.xtrim(TASKS, maxlen=0, approximate=False)
        done: set[str] = set()
        while len(done) < 5:
            entry, fields = await street.take()
            done.add(fields["task_id"])
            await street.succeed(entry, fields)
        for task in tasks:
            assert (await street.over(task))["state"] == "succeeded"
        await street.empty()


@pytest.mark.contract("S1-1", "S1-13")
async def test_a_group_that_was_deleted_is_made_again(street: Street) -> None:
    task = await street.submit(queue="streams")
    await street.phase(task, "offered")
    await street.redis.xgroup_destroy(TASKS, GROUP)
    await street.redis.xgroup_destroy(TASKS, "cg:onward")

    await street.until(lambda: _has_group(street))
    entry, fields = await street.take()
    await street.succeed(entry, fields)
    assert (await street.over(task))["state"] == "succeeded"
    await street.empty()


async def _has_group(street: Street) -> bool:
    if not await street.redis.exists(TASKS):
        return False
    groups = await street.redis.xinfo_groups(TASKS)
    return {group["name"] for group in groups} == {b"cg:workers", b"cg:onward"}


@pytest.mark.contract("S1-13")
async def test_a_redis_that_lost_everything_is_fed_anew_from_the_ledger(tmp_path: Path) -> None:
    server = RedisServer("valkey", folder=tmp_path)
    try:
        async with open_street(redis_url=server.url) as street:
            waits = await street.submit(queue="streams")
            await street.phase(waits, "offered")
            runs, _ = await street.take()
            server.kill()
            await asyncio.sleep(0.6)
            server.start()
            await street.until(lambda: _has_group(street))
            done = await street.submit(queue="streams")
            seen: list[str] = []
            while len(seen) < 2:
                entry, fields = await street.take(timeout=15)
                assert entry != runs
                seen.append(fields["task_id"])
                await street.succeed(entry, fields)
            assert sorted(seen) == sorted([waits, done])
            for task in seen:
                assert (await street.over(task))["state"] == "succeeded"
    finally:
        server.close()


@LEDGERS
@pytest.mark.contract("S1-1", "R-2")
async def test_a_named_type_goes_over_the_stream_and_another_does_not(ledger: str) -> None:
    async with open_street(ledger, stream_types=("mail",)) as street:
        other = await street.submit(type="other")
        task = await street.submit(type="mail", payload={"to": "ada"})
        entry, fields = await street.take()
        assert (fields["task_id"], fields["tool_name"]) == (task, "mail")
        await street.succeed(entry, fields)
        await street.over(task)
        assert (await street.read(other))["phase"] == "queued"
        await street.empty()


@LEDGERS
@pytest.mark.contract("S1-1", "R-2")
async def test_a_star_means_every_type_that_no_connected_worker_serves(ledger: str) -> None:
    async with open_street(ledger, stream_types=("*",)) as street:
        await _join(street, "native")
        mine = await street.submit(type="native")
        task = await street.submit(type="anything")
        entry, fields = await street.take()
        assert fields["task_id"] == task
        await street.succeed(entry, fields)
        await street.over(task)
        assert await street.take_all(timeout=1.5) == []
        assert (await street.read(mine))["phase"] == "queued"


async def test_a_stream_that_takes_no_entries_is_not_tried_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "REFUSED_S", 1.0)
    async with open_street("sqlite") as street:
        await street.redis.execute_command("ACL", "SETUSER", "default", "-xadd")
        try:
            task = await street.submit(queue="streams")

            async def refused() -> bool:
                return "task.released" in await street.types(task)

            await street.until(refused)
            await asyncio.sleep(1.5)
            assert (await street.types(task)).count("task.released") <= 4
        finally:
            await street.redis.execute_command("ACL", "SETUSER", "default", "+xadd")
        entry, fields = await street.take()
        await street.succeed(entry, fields)
        assert (await street.over(task))["state"] == "succeeded"


async def _join(street: Street, *queues: str) -> None:
    """A worker on a socket, as far as anybody can tell."""
    roster = street.app.onward.roster
    await roster.join(roster.member("w", "socket", queues, 1))


@LEDGERS
@pytest.mark.contract("R-2")
async def test_a_type_that_a_socket_worker_serves_leaves_the_stream_again(ledger: str) -> None:
    async with open_street(ledger, stream_types=("mail",)) as street:
        await _join(street, "mail")
        await wait_until(lambda: "mail" not in street.app.onward._feed._offers.worker_slots.queues)
        first = await street.submit(type="mail")
        assert await street.take_all(timeout=1) == []
        roster = street.app.onward.roster
        await roster.leave(roster.members()[0])
        await street.phase(first, "offered")

        await _join(street, "mail")
        await street.phase(first, "requeued")
        assert await street.length() == 0
        assert (await street.read(first))["attempt"] == 0


@pytest.mark.contract("S1-7")
async def test_a_submissions_own_retries_and_backoff_win_over_the_doors(street: Street) -> None:
    task = await street.submit(queue="streams", max_retries=1, backoff_ms=[700])
    entry, fields = await street.take()
    await street.fail(entry, fields, "no")
    await street.phase(task, "retry_wait")
    (retrying,) = await street.events(task, "task.retrying")
    failed_at = (await street.history(task))[-1]["at"]
    assert 690 <= retrying["run_at"] - failed_at <= 710
    entry, fields = await street.take()
    await street.fail(entry, fields, "no")
    dead = await street.over(task)
    assert (dead["state"], dead["failures"]) == ("dead", 2)


@pytest.mark.contract("S1-7")
@pytest.mark.parametrize("said", [{"error_type": "SchemaInvalid"}, {"retryable": "false"}])
async def test_what_cannot_be_mended_is_a_dead_letter_at_once(
    street: Street, said: dict[str, str]
) -> None:
    task = await street.submit(queue="streams")
    entry, fields = await street.take()
    await street.fail(entry, fields, "no such field", **said)
    dead = await street.over(task)
    assert (dead["state"], dead["failures"]) == ("dead", 1)
    (letter,) = await street.until(street.letters)
    assert (letter["task_id"], letter["error"], letter["retry_count"]) == (
        task, "no such field", "1",
    )  # fmt: skip
    await street.empty()


@LEDGERS
@pytest.mark.contract("S1-5")
async def test_heartbeats_add_no_entry_and_keep_a_long_task_alive(ledger: str) -> None:
    async with open_street(ledger, visibility_timeout_s=3) as street:
        task = await street.submit(queue="streams")
        entry, fields = await street.take("slow")
        for _ in range(12):
            await asyncio.sleep(0.3)
            await street.redis.xclaim(TASKS, GROUP, "slow", 0, [entry], justid=True)
            assert await street.length() == 1
        await street.succeed(entry, fields)
        assert (await street.over(task))["state"] == "succeeded"
        types = await street.types(task)
        assert types == ["task.created", "task.claimed", "task.delivered", "task.succeeded"]
        await street.empty()


@LEDGERS
@pytest.mark.contract("S1-13", "N-11")
async def test_a_service_declared_via_streams_gets_its_tasks_there(ledger: str) -> None:
    async with open_street(ledger) as street:
        worker = Worker("http://127.0.0.1:1")

        @worker.service
        async def greet(name: str) -> str:
            return name

        declared = {**worker._registration().declare[0], "via": "streams"}
        response = await street.http.post("/api/v2/services", json=declared)
        assert response.status_code == 201, response.text
        task = await street.submit(type="greet", payload={"name": "Ada"})
        entry, fields = await street.take()
        assert json.loads(fields["payload"]) == {"name": "Ada"}
        await street.succeed(entry, fields, "Ada")
        assert (await street.over(task))["result"] == "Ada"


@LEDGERS
@pytest.mark.contract("R-2", "N-11")
async def test_a_type_declared_for_the_stream_stays_off_it_while_somebody_serves_it_natively(
    ledger: str,
) -> None:
    async with open_street(ledger) as street:
        await _join(street, "greet")
        service = {"name": "greeter", "task_types": ["greet"], "via": "streams"}
        declared = await street.http.post("/api/v2/services", json=service)
        assert declared.status_code == 201, declared.text
        task = await street.submit(type="greet")
        assert await street.take_all(timeout=1.5) == []
        found = await street.read(task)
        assert (found["queue"], found["phase"]) == ("greet", "queued")
