"""The tasks door on a Redis ledger: its keys as somebody sees them who knows only its seed."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from onward.doors.redis_views.projector import SeedViews
from onward.doors.redis_views.writer import Superseded, ViewWriter
from onward.ledgers.redis.client import connect
from tests.doors.seed_003 import Seed003
from tests.doors.summarizing import dead, fail, read, submitted, summarizer
from tests.running_app import App, running_app
from tests.servers import RedisServer, fresh_url, shared
from tests.support import wait_until

seed = Seed003()


@pytest.fixture
def app_settings(tmp_path: Path) -> dict[str, Any]:
    return {"ledger": fresh_url("valkey"), "archive": f"sqlite:///{tmp_path}/archive.db"}


async def see(task: str, state: str) -> dict[str, Any]:
    await wait_until(lambda: seed.state(task) == state)
    return seed.detail(task)


@pytest.mark.contract("S3-14", "R-4")
async def test_a_task_is_a_hash_and_its_id_stands_in_the_primary_list(app: App) -> None:
    first = await submitted(app)
    second = await submitted(app, "x" * 100_000)
    await wait_until(lambda: len(seed.ids("tasks:pending:primary")) == 2)
    assert seed.ids("tasks:pending:primary") == [first, second], "first in, first out"
    task = await see(first, "PENDING")
    assert (task["task_id"], task["content"]) == (first, "Long text")
    assert (task["retry_count"], task["max_retries"], task["error_history"]) == (0, 3, [])
    empty = ("last_error", "error_type", "retry_after", "completed_at", "result")
    assert [task[name] for name in empty] == [""] * 5
    assert seed.detail(second)["content"] == "x" * 100_000
    await app.worker(group=None, services=["other"], workerId="w")
    running = await submitted(app, type_="other")
    waiting = await submitted(app, type_="other")
    await wait_until(lambda: seed.ids("tasks:pending:primary:other") == [waiting])
    await see(running, "ACTIVE")


@pytest.mark.contract("S3-14", "R-4")
async def test_work_of_other_types_shows_what_it_was_given(app: App) -> None:
    body = {"type": "resize", "payload": {"width": 3}}
    task = await app.submit(**body)
    assert (await see(task, "PENDING"))["content"] == '{"width":3}'
    assert seed.ids("tasks:pending:primary:resize") == [task]


@pytest.mark.contract("S3-14", "L-2")
async def test_tasks_of_all_partitions_stand_in_the_list_of_their_queue(app: App) -> None:
    named = [
        await app.submit(type="resize", payload={"width": 3}, partition=name) for name in ("a", "b")
    ]
    plain = await app.submit(type="resize", payload={"width": 3})
    await wait_until(lambda: len(seed.ids("tasks:pending:primary:resize")) == 3)
    assert seed.ids("tasks:pending:primary:resize") == [*named, plain]


@pytest.mark.contract("S3-14", "R-4")
@pytest.mark.parametrize("length", [5, 100, 300_000])
async def test_a_result_is_there_in_full_however_long(app: App, length: int) -> None:
    worker = await summarizer(app)
    task = await submitted(app)
    await worker.answer((await worker.task())["taskId"], "r" * length)
    done = await see(task, "COMPLETED")
    assert done["result"] == "r" * length
    assert done["completed_at"].endswith("Z")
    assert seed.ids("tasks:pending:primary") == []


@pytest.mark.contract("S3-14", "R-4")
async def test_a_result_that_is_no_text_is_json(app: App) -> None:
    worker = await summarizer(app)
    task = await submitted(app)
    await worker.answer((await worker.task())["taskId"], {"summary": [1]})
    assert json.loads((await see(task, "COMPLETED"))["result"]) == {"summary": [1]}


@pytest.mark.contract("S3-14", "S3-8", "S3-9")
async def test_a_failed_task_waits_in_the_sorted_set_and_then_in_the_retry_list(app: App) -> None:
    worker = await summarizer(app)
    task = await submitted(app)
    await fail(app, worker)
    kept = await see(task, "FAILED")
    ((member, score),) = seed.scheduled().items()
    assert member == task
    assert 5 <= score - app.clock.now() / 1000 <= 5.5, "a Unix timestamp, in seconds"
    assert (kept["retry_count"], kept["last_error"]) == (1, "flaky")
    assert kept["error_type"] == "ServiceUnavailable"
    assert kept["retry_after"].endswith("Z")
    assert [failure["error"] for failure in kept["error_history"]] == ["flaky"]
    assert seed.ids("tasks:pending:primary") + seed.ids("tasks:pending:retry") == []
    await worker.close()
    await app.advance(5_500)
    await wait_until(lambda: seed.ids("tasks:pending:retry") == [task])
    assert seed.scheduled() == {}
    assert seed.state(task) == "PENDING"


@pytest.mark.contract("S3-14", "S3-4", "S3-3")
async def test_a_dead_task_is_in_the_dead_letters_until_it_is_retried_or_deleted(app: App) -> None:
    worker = await summarizer(app)
    task = await dead(app, worker)
    await see(task, "DLQ")
    await worker.close()
    assert seed.ids("dlq:tasks") == [task]
    (why,) = seed.dead_letters()
    assert (why["task_id"], why["state"]) == (task, "DLQ")
    assert (why["last_error"], why["content"]) == ("no such model", "Long text")
    retried = await app.post(f"/api/v1/tasks/{task}/retry", None)
    assert retried.status_code == 200, retried.text
    await wait_until(lambda: seed.ids("tasks:pending:retry") == [task])
    assert shared("valkey").client.exists("dlq:tasks", f"dlq:task:{task}") == 0

    worker = await summarizer(app)
    await fail(app, worker, status=400)
    await wait_until(lambda: seed.ids("dlq:tasks") == [task])
    deleted = await app.http.delete(f"/api/v1/tasks/{task}")
    assert (deleted.status_code, deleted.json()) == (200, {"task_id": task, "state": "DLQ"})
    names = ("dlq:tasks", f"dlq:task:{task}", f"task:{task}")
    await wait_until(lambda: shared("valkey").client.exists(*names) == 0)


@pytest.mark.contract("R-4", "S3-6")
async def test_the_metrics_and_a_readers_own_count_agree_with_the_door(app: App) -> None:
    worker = await summarizer(app)
    gone = await dead(app, worker)
    await submitted(app)
    await fail(app, worker)
    done = await submitted(app)
    await worker.answer((await worker.task())["taskId"], "short")
    await see(done, "COMPLETED")
    running, waiting = await submitted(app), await submitted(app)
    depths = {"primary": 1, "retry": 0, "scheduled": 1, "dlq": 1}
    states = {"PENDING": 1, "ACTIVE": 1, "COMPLETED": 1, "FAILED": 1, "DLQ": 1}
    await wait_until(lambda: seed.metrics() == (depths, states))
    await see(running, "ACTIVE")
    await see(waiting, "PENDING")
    assert seed.status() == {"queues": depths, "states": states}
    shown = (await app.get("/api/v1/queues/status")).json()
    assert (shown["queues"], shown["states"]) == (depths, states)
    assert gone in seed.ids("dlq:tasks")


@pytest.mark.contract("R-4", "S3-6")
async def test_the_status_of_queues_sums_all_of_them_whatever_stands_in_the_keys(app: App) -> None:
    client: Any = shared("valkey").client
    await submitted(app)
    await app.post("/api/v2/tasks", {"type": "resize", "payload": {}})
    client.set("metrics:queue:depths", "nonsense")
    client.lpush("tasks:pending:retry", "ghost")
    shown = (await app.get("/api/v1/queues/status")).json()
    assert shown["queues"] == {"primary": 2, "retry": 0, "scheduled": 0, "dlq": 0}
    assert shown["states"]["PENDING"] == 2


@pytest.mark.contract("R-4")
async def test_the_ledgers_own_keys_lie_elsewhere(app: App) -> None:
    task = await submitted(app)
    await see(task, "PENDING")
    mentioned = [key.decode() for key in seed.redis.keys(f"*{task}*")]
    assert f"task:{task}" in mentioned
    assert all(key.startswith("onward:") for key in mentioned if key != f"task:{task}")


@pytest.mark.contract("R-4")
async def test_a_view_goes_when_the_ledger_forgets_its_task(app: App) -> None:
    worker = await summarizer(app)
    task = await submitted(app)
    await worker.answer((await worker.task())["taskId"], "short")
    await see(task, "COMPLETED")
    assert 0 < shared("valkey").client.ttl(f"task:{task}") <= 24 * 3600


@pytest.mark.contract("R-4")
async def test_a_log_that_is_read_again_leaves_each_id_where_it_stands_once(app: App) -> None:
    worker = await summarizer(app)
    gone = await dead(app, worker)
    await worker.close()
    waiting = [await submitted(app) for _ in range(3)]
    await see(waiting[-1], "PENDING")
    page = await app.onward.backend.tasks.events(after="", limit=1000)
    redis = connect(app.onward.settings.ledger)
    for part in (page.items, page.items[:2], page.items[-2:]):
        # As after a crash: nothing is remembered but what stands in Redis.
        fresh = SeedViews(
            app.onward.dispatcher, ViewWriter(redis, "", beside_ledger=True), whole=True
        )

        async def projected(fresh: SeedViews = fresh, part: Any = part) -> bool:
            with suppress(Superseded):  # the server writes, too, and may have come in between
                await fresh.project(part)
                return True
            return False

        await wait_until(projected)
    await redis.aclose()
    assert seed.ids("tasks:pending:primary") == waiting
    assert seed.ids("dlq:tasks") == [gone]


@pytest.mark.contract("S3-3")
async def test_a_deleted_task_is_gone_from_the_archive_too(app: App) -> None:
    worker = await summarizer(app)
    task = await submitted(app)
    await worker.answer((await worker.task())["taskId"], "short")
    await see(task, "COMPLETED")
    deleted = await app.http.delete(f"/api/v1/tasks/{task}")
    assert deleted.json() == {"task_id": task, "state": "COMPLETED"}
    assert (await app.get(f"/api/v1/tasks/{task}")).status_code == 404
    assert (await app.get("/api/v1/tasks/")).json() == []
    assert (await app.get(f"/api/v2/tasks/{task}")).status_code == 404
    await wait_until(lambda: not seed.task(task))


@pytest.mark.contract("S3-3")
async def test_a_task_that_only_the_archive_has_can_be_read_and_deleted(app: App) -> None:
    worker = await summarizer(app)
    task = await submitted(app)
    await worker.answer((await worker.task())["taskId"], "short")
    await see(task, "COMPLETED")

    async def departed() -> bool:
        await app.advance(24 * 3_600_000)
        return not await app.onward.backend.tasks.counts()

    await wait_until(departed)
    assert (await read(app, task))["result"] == "short"
    deleted = await app.http.delete(f"/api/v1/tasks/{task}")
    assert deleted.json() == {"task_id": task, "state": "COMPLETED"}
    assert (await app.get(f"/api/v1/tasks/{task}")).status_code == 404


@pytest.mark.contract("S3-7")
async def test_health_tells_of_the_redis_that_is_the_ledger(tmp_path: Path) -> None:
    server = RedisServer("valkey")
    try:
        async with running_app(ledger=server.url, archive="", builtin_worker=True) as app:
            well = await app.get("/health")
            assert (well.status_code, well.json()["status"]) == (200, "healthy")
            assert well.json()["components"]["redis"] is True
            server.kill()
            ill = await app.get("/health")
            assert (ill.status_code, ill.json()["status"]) == (503, "unhealthy")
            assert ill.json()["components"]["redis"] is False
            assert ill.json()["components"]["ledger"] is False
            refused = await app.post("/api/v1/tasks/summarize/", {"content": "x"})
            assert (refused.status_code, list(refused.json())) == (503, ["detail"])
            assert "try again" in refused.json()["detail"]
        # And it can be stopped without its ledger.
    finally:
        server.close()


@pytest.mark.contract("S3-7")
async def test_without_the_redis_of_its_stream_workers_a_server_is_unwell_and_works() -> None:
    server = RedisServer("valkey")
    try:
        async with running_app(redis=server.url, builtin_worker=True) as app:
            assert (await app.get("/health")).json()["status"] == "healthy"
            server.kill()
            ill = await app.get("/health")
            assert (ill.status_code, ill.json()["status"]) == (503, "unhealthy")
            assert ill.json()["components"]["redis"] is False
            assert ill.json()["components"]["ledger"] is True
            assert (await app.get("/ready")).status_code == 200, "submissions are taken"
            assert (await app.post("/api/v1/tasks/summarize/", {"content": "x"})).is_success
            server.start()
    finally:
        server.close()
