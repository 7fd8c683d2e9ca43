"""What others write under the seeds' names: adopted where a seed's producer did, else set aside."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from onward.doors.redis_views.projector import SeedViews
from onward.doors.redis_views.writer import Superseded, ViewWriter
from onward.ledgers.redis.client import connect
from tests.contract.sealed_ledger import NEW, OLD, SECRET, redis_bytes
from tests.doors.seed_003 import METADATA, Seed003
from tests.doors.summarizing import dead, fail, read, submitted, summarizer
from tests.running_app import App, running_app
from tests.servers import fresh_url
from tests.support import wait_until

pytestmark = pytest.mark.contract("R-4")

seed = Seed003()


@pytest.fixture
def app_settings() -> dict[str, Any]:
    return {"ledger": fresh_url("valkey"), "archive": ""}


async def known(app: App, task: str) -> dict[str, Any]:
    await wait_until(
        lambda: app.get(f"/api/v1/tasks/{task}"), holds=lambda said: said.status_code != 404
    )
    return await read(app, task)


def waiting_for_adoption() -> int:
    return int(seed.redis.llen("onward:view:adopting"))


@pytest.mark.contract("S3-14")
@pytest.mark.parametrize("push", ["lpush", "rpush"])
async def test_a_task_of_a_producer_who_knows_only_the_seed_is_worked_on(
    app: App, push: str
) -> None:
    task = seed.create_task("A foreign text", push=push, max_retries=1)
    found = await known(app, task)
    assert (found["state"], found["content"]) == ("PENDING", "A foreign text")
    assert (found["task_type"], found["max_retries"]) == ("summarize", 1)
    await wait_until(lambda: seed.ids("tasks:pending:primary") == [task])
    worker = await summarizer(app)
    assert (await worker.task())["taskId"] == task
    await worker.answer(task, "short")
    await wait_until(lambda: seed.state(task) == "COMPLETED")
    assert seed.detail(task)["result"] == "short"
    assert seed.ids("tasks:pending:primary") == []
    assert waiting_for_adoption() == 0


async def test_a_task_that_is_pushed_twice_is_one_task(app: App) -> None:
    task = seed.create_task("A foreign text")
    seed.redis.lpush("tasks:pending:primary", task, task)
    await known(app, task)
    await wait_until(lambda: seed.ids("tasks:pending:primary") == [task])
    seed.redis.rpush("tasks:pending:primary", task)
    worker = await summarizer(app)
    await worker.answer((await worker.task())["taskId"], "short")
    await wait_until(lambda: seed.state(task) == "COMPLETED")
    await wait_until(lambda: seed.ids("tasks:pending:primary") == [])
    counts = await app.onward.backend.tasks.counts()
    assert sum(counts.values()) == 1


async def test_hundreds_of_foreign_tasks_among_our_own_are_adopted_in_order(app: App) -> None:
    own = [await submitted(app) for _ in range(50)]
    await wait_until(lambda: seed.ids("tasks:pending:primary") == own)
    foreign = [seed.create_task(f"Text {n}", push="rpush") for n in range(300)]
    await known(app, foreign[-1])
    await wait_until(lambda: waiting_for_adoption() == 0 and len(own_list()) == 350)
    assert own_list() == [*own, *foreign]


def own_list() -> list[str]:
    return seed.ids("tasks:pending:primary")


async def test_an_id_without_a_hash_is_set_aside_with_one_line(app: App) -> None:
    with capture_logs() as lines:
        seed.redis.lpush("tasks:pending:primary", "ghost")
        seed.redis.set("task:text", "{}")
        seed.redis.rpush("tasks:pending:primary", "text", b"\xff\x00")
        seed.redis.hset(b"task:\xff\x00", "content", "x")
        seed.redis.hset("task:empty", "state", "PENDING")
        seed.redis.rpush("tasks:pending:primary", "empty")
        later = seed.create_task("A sound one")
        await known(app, later)
        await wait_until(lambda: waiting_for_adoption() == 0)
    aside = [line["id"] for line in lines if line["event"] == "a foreign id was set aside"]
    assert sorted(aside) == sorted(["b'ghost'", "b'text'", repr(b"\xff\x00"), "b'empty'"])
    status = (await app.get("/api/v1/queues/status")).json()
    assert status["queues"] == {"primary": 1, "retry": 0, "scheduled": 0, "dlq": 0}
    await wait_until(lambda: own_list() == [later])


async def test_a_hash_that_comes_a_moment_after_its_id_is_found(app: App) -> None:
    seed.redis.lpush("tasks:pending:primary", "slow-producer")
    await wait_until(waiting_for_adoption)
    seed.store("slow-producer", content="At last")
    assert (await known(app, "slow-producer"))["content"] == "At last"


@pytest.mark.contract("S3-4")
async def test_a_retry_by_the_seeds_own_words_is_a_retry(app: App) -> None:
    worker = await summarizer(app)
    task = await dead(app, worker)
    await wait_until(lambda: seed.state(task) == "DLQ")
    seed.retry_task(task)
    frame = await worker.task()
    assert frame["taskId"] == task
    await worker.answer(task, "now it works")
    await wait_until(lambda: seed.state(task) == "COMPLETED")
    assert seed.ids("tasks:pending:retry") + seed.ids("dlq:tasks") == []


async def test_the_list_of_a_declared_service_is_looked_into_too(app: App) -> None:
    declared = {"name": "images", "task_types": ["resize"]}
    assert (await app.post("/api/v2/services", declared)).is_success
    seed.store("a-picture", content='{"width": 3}')
    seed.redis.lpush("tasks:pending:primary:resize", "a-picture")
    found = await known(app, "a-picture")
    assert (found["task_type"], found["payload"]) == ("resize", {"width": 3})


@pytest.mark.contract("S3-4")
async def test_a_type_that_is_served_or_has_work_needs_no_declaration(app: App) -> None:
    worker = await app.worker(group=None, services=["paint"], workerId="w")
    task = (await app.post("/api/v1/tasks/paint/", {"n": 1})).json()["task_id"]
    await fail(app, worker, status=404)
    await wait_until(lambda: seed.state(task) == "DLQ")
    seed.retry_task(task, queue="paint")
    assert (await worker.task())["taskId"] == task
    seed.store("a-wall", content='{"n": 2}')
    seed.redis.lpush("tasks:pending:primary:paint", "a-wall")
    await worker.answer(task, "done")
    assert (await worker.task())["taskId"] == "a-wall"
    await worker.answer("a-wall", "done")
    await worker.close()


def _string(name: str) -> None:
    seed.redis.delete(name)
    seed.redis.set(name, "something else")


def _set(name: str) -> None:
    seed.redis.delete(name)
    seed.redis.sadd(name, "something else")


def _stream(name: str) -> None:
    seed.redis.delete(name)
    seed.redis.xadd(name, {"something": "else"})


def _hash(name: str) -> None:
    seed.redis.delete(name)
    seed.redis.hset(name, "state", b"\xff\xfe")


@pytest.mark.parametrize("foul", [_string, _set, _stream, _hash])
async def test_a_foreign_key_of_any_type_under_any_name_harms_no_task(
    app: App, foul: Callable[[str], None]
) -> None:
    worker = await summarizer(app)
    failed = await dead(app, worker)
    task = await submitted(app)
    frame = await worker.task()
    names = [
        "tasks:pending:primary", "tasks:pending:retry", "tasks:scheduled", "dlq:tasks",
        "metrics:queue:depths", "metrics:tasks:by_state", f"task:{task}", f"task:{failed}",
        f"dlq:task:{failed}", "task:unknown",
    ]  # fmt: skip
    await wait_until(lambda: seed.state(task) == "ACTIVE")
    for name in names:
        foul(name)
    behind = await submitted(app)
    await worker.answer(frame["taskId"], "short")
    assert (await worker.task())["taskId"] == behind
    await wait_until(lambda: seed.state(task) == "COMPLETED")
    assert (await app.post(f"/api/v1/tasks/{failed}/retry", None)).is_success
    await wait_until(lambda: seed.ids("tasks:pending:retry") == [failed])
    await worker.answer(behind, "short")
    await worker.answer((await worker.task())["taskId"], error="no such model", status=404)
    await wait_until(lambda: seed.ids("dlq:tasks") == [failed])
    assert [letter["state"] for letter in seed.dead_letters()] == ["DLQ"]
    done = {"PENDING": 0, "ACTIVE": 0, "COMPLETED": 2, "FAILED": 0, "DLQ": 1}
    await wait_until(lambda: seed.metrics()[1] == done)
    assert (await app.get("/health")).json()["status"] == "healthy"
    assert (await app.get("/api/v2/tasks")).status_code == 200


def said(lines: Sequence[MutableMapping[str, Any]]) -> list[str]:
    return [line["key"] for line in lines if line["event"] == "a foreign key was set aside"]


async def test_what_is_set_aside_is_kept_for_a_while_and_said_once(app: App) -> None:
    with capture_logs() as lines:
        seed.redis.set("tasks:pending:primary", "mine")
        task = await submitted(app)
        await wait_until(lambda: own_list() == [task] and said(lines))
    assert seed.redis.get("onward:set-aside:tasks:pending:primary") == b"mine"
    assert seed.redis.ttl("onward:set-aside:tasks:pending:primary") > 0
    assert said(lines) == ["tasks:pending:primary"]


async def test_a_server_that_was_overtaken_writes_no_views(app: App) -> None:
    task = await submitted(app)
    await wait_until(lambda: own_list() == [task])
    log = await app.onward.backend.tasks.events(after="", limit=10)
    redis = connect(app.onward.settings.ledger)
    late = SeedViews(app.onward.dispatcher, ViewWriter(redis, "", beside_ledger=True), whole=True)
    await late.project(log.items)
    mark = seed.redis.get("onward:view:writer")
    await wait_until(lambda: seed.redis.get("onward:view:writer") != mark)  # the server takes over
    seed.redis.delete(f"task:{task}")
    late._shown.clear()
    with pytest.raises(Superseded):
        await late.project(log.items)
    assert not seed.task(task)
    await redis.aclose()


async def test_one_task_that_does_not_open_does_not_stop_the_view_of_others() -> None:
    url = fresh_url("valkey")
    async with running_app(ledger=url, archive="", encryption_keys=OLD) as app:
        closed = await submitted(app, "sealed with the old key")
        await wait_until(lambda: own_list() == [closed])
    seed.redis.delete("onward:doc:cursor", f"task:{closed}")
    async with running_app(ledger=url, archive="", encryption_keys=NEW) as app:
        tasks = [await submitted(app) for _ in range(3)]
        await wait_until(lambda: own_list() == [closed, *tasks])
        await wait_until(lambda: seed.task(closed).get("state") == "PENDING")
        seed.redis.lpush("tasks:pending:retry", closed)
        later = seed.create_task("A foreign text")
        await known(app, later)


@pytest.mark.contract("S3-14")
async def test_what_the_ledger_seals_is_sealed_in_the_view_too() -> None:
    async with running_app(ledger=fresh_url("valkey"), archive="", encryption_keys=NEW) as app:
        worker = await summarizer(app)
        task = await submitted(app, SECRET)
        await worker.answer((await worker.task())["taskId"], f"short {SECRET}")
        await wait_until(lambda: seed.state(task) == "COMPLETED")
        failed = await submitted(app, SECRET)
        wrong = f"{SECRET} is wrong"
        await worker.answer((await worker.task())["taskId"], error=wrong, status=400)
        await wait_until(lambda: seed.state(failed) == "DLQ")
        for found in (seed.task(task), seed.task(failed), *seed.dead_letters()):
            assert set(found) == METADATA
            assert found["content"].startswith("sealed:k2:")
            assert found["retry_count"] == "0", "what work is routed by is clear"
            assert SECRET not in "".join(found.values())
        assert seed.task(task)["result"].startswith("sealed:k2:")
        assert seed.task(failed)["last_error"].startswith("sealed:k2:")
        assert SECRET.encode() not in redis_bytes("valkey", but=[b"stream:dlq"])


async def test_two_servers_show_each_id_once() -> None:
    url = fresh_url("valkey")
    async with (
        running_app(ledger=url, archive="") as first,
        running_app(ledger=url, archive="") as other,
    ):
        tasks = [await submitted(app) for app in (first, other) * 10]
        task = seed.create_task("A foreign text")
        await known(other, task)
        await wait_until(lambda: len(own_list()) == 21)
        assert sorted(own_list()) == sorted([*tasks, task])


@pytest.mark.contract("R-4", "S3-14")
async def test_with_a_prefix_the_seeds_names_stand_behind_it() -> None:
    named = Seed003("here:")
    async with running_app(ledger=fresh_url("valkey"), archive="", redis_prefix="here:") as app:
        task = await submitted(app)
        await wait_until(lambda: named.state(task) == "PENDING")
        assert named.ids("tasks:pending:primary") == [task]
        foreign = named.create_task("A foreign text")
        assert (await known(app, foreign))["content"] == "A foreign text"
        keys = [key.decode() for key in seed.redis.keys("*task*")]
        strays = [key for key in keys if not key.startswith(("here:", "stream:", "agent:stream:"))]
        assert strays == []
