"""Partitions and limits from outside: declared, changed while they hold, and explained."""

from __future__ import annotations

from typing import Any

import pytest

from tests.running_app import App, running_app

PER_PARTITION = {"concurrency": {"per_partition": 1}, "partition_by": "who"}


async def declare(app: App, **fields: Any) -> dict[str, Any]:
    body = {"name": "mail", "task_types": ["mail"], **fields}
    response = await app.post("/api/v2/services", body)
    assert response.status_code == 201, response.text
    found: dict[str, Any] = response.json()
    return found


async def explained(app: App, task: str) -> dict[str, Any]:
    found: dict[str, Any] = (await app.get(f"/api/v2/tasks/{task}/explain")).json()
    return found


@pytest.mark.contract("L-1")
async def test_a_task_shows_its_partition_and_is_listed_by_it() -> None:
    async with running_app() as app:
        await declare(app, partition_by="customer.id")
        found = await app.submit("mail", payload={"customer": {"id": 7}})
        given = await app.submit("mail", payload={"customer": {"id": 7}}, partition="ada")
        none = await app.submit("mail")
        for task, partition in ((found, "7"), (given, "ada"), (none, None)):
            assert (await app.task(task))["partition"] == partition
        listed = (await app.get("/api/v2/tasks?partition=7")).json()["items"]
        assert [each["id"] for each in listed] == [found]
        long = await app.post("/api/v2/tasks", {"type": "mail", "partition": "x" * 129})
        assert long.status_code == 422


@pytest.mark.contract("L-2")
async def test_partitions_take_turns() -> None:
    async with running_app() as app:
        for n in range(5):
            await app.submit("mail", payload=["ada", n], partition="ada")
        for n in range(2):
            await app.submit("mail", payload=["bob", n], partition="bob")
        worker = await app.worker(services=["mail"])
        order = []
        for _ in range(7):
            task = await worker.task()
            order.append(task["payload"])
            await worker.send({"type": "taskResult", "taskId": task["taskId"], "result": 1})
            await app.settled()
        assert [n for who, n in order if who == "ada"] == [0, 1, 2, 3, 4]
        assert {who for who, _ in order[:2]} == {"ada", "bob"}
        assert [who for who, _ in order[:4]].count("bob") == 2


@pytest.mark.contract("L-3", "L-6")
async def test_no_more_run_at_once_than_a_service_lets() -> None:
    async with running_app() as app:
        await declare(app, concurrency={"total": 2})
        worker = await app.worker(services=["mail"], concurrency=5)
        tasks = [await app.submit("mail") for _ in range(4)]
        await app.settled()
        running = [await worker.task(), await worker.task()]
        assert worker.pending() == 0
        why = await explained(app, tasks[2])
        assert why["reason"] == "concurrency"
        assert {name: why["limit"][name] for name in ("name", "kind", "max", "used")} == {
            "name": "mail", "kind": "concurrency", "max": 2, "used": 2,
        }  # fmt: skip
        queue = (await app.get("/api/v2/queues/mail")).json()
        assert [(use["kind"], use["used"], use["max"]) for use in queue["limits"]] == [
            ("concurrency", 2, 2)
        ]
        done = running[0]["taskId"]
        await worker.send({"type": "taskResult", "taskId": done, "result": 1})
        await app.settled()
        assert (await worker.task())["taskId"] == tasks[2]
        assert worker.pending() == 0
        assert (await app.task(tasks[3]))["attempt"] == 0, "waiting burns no attempt"


@pytest.mark.contract("L-1", "L-3")
async def test_a_limit_holds_for_its_types_on_the_queue_of_another_service() -> None:
    async with running_app() as app:
        await declare(app, concurrency={"total": 2})
        await declare(app, name="report", task_types=["report"])
        worker = await app.worker(services=["mail", "report"], concurrency=9)
        tasks = [await app.submit("mail", queue=queue) for queue in ("report", "mail", "report")]
        await app.submit("report")
        await app.settled()
        given = [await worker.task() for _ in range(3)]
        assert {task["taskId"] for task in given} >= set(tasks[:2])
        assert worker.pending() == 0
        assert (await explained(app, tasks[2]))["reason"] == "concurrency"
        await worker.send({"type": "taskResult", "taskId": tasks[1], "result": 1})
        await app.settled()
        assert (await worker.task())["taskId"] == tasks[2]


@pytest.mark.contract("L-3")
async def test_none_at_once_is_a_pause() -> None:
    async with running_app() as app:
        await declare(app, concurrency={"total": 0})
        worker = await app.worker(services=["mail"])
        await app.submit("mail")
        await app.settled()
        assert worker.pending() == 0
        await declare(app, concurrency={"total": 1})
        await app.settled()
        assert worker.pending() == 1


@pytest.mark.contract("L-3")
async def test_a_retry_holds_its_partition_and_goes_first() -> None:
    async with running_app() as app:
        await declare(app, **PER_PARTITION)
        worker = await app.worker(services=["mail"], concurrency=5)
        first = await app.submit("mail", payload={"who": "ada"}, backoff_ms=[5_000])
        second = await app.submit("mail", payload={"who": "ada"}, priority="high")
        other = await app.submit("mail", payload={"who": "bob"})
        await app.settled()
        assert {(await worker.task())["taskId"], (await worker.task())["taskId"]} == {first, other}
        await worker.send({"type": "taskResult", "taskId": first, "error": "x", "retryable": True})
        await app.settled()
        assert (await app.task(first))["state"] == "scheduled"
        assert worker.pending() == 0, "its retry holds the partition"
        await app.advance(6_000)
        await app.settled()
        assert (await worker.task())["taskId"] == first
        assert worker.pending() == 0
        await worker.send({"type": "taskResult", "taskId": first, "result": 1})
        await app.settled()
        assert (await worker.task())["taskId"] == second


@pytest.mark.contract("L-4", "L-6")
async def test_a_rate_holds_back_what_it_does_not_let_start() -> None:
    async with running_app() as app:
        rate = {"count": 1, "per_ms": 60_000, "burst": 1}
        await declare(app, rate=[rate])
        worker = await app.worker(services=["mail"], concurrency=5)
        tasks = [await app.submit("mail") for _ in range(3)]
        await app.settled()
        started = worker.pending()
        assert started == 2, "count and burst"
        why = await explained(app, tasks[2])
        assert why["reason"] == "rate"
        assert (why["limit"]["kind"], why["limit"]["max"]) == ("rate", 1)
        assert app.clock.now() < why["eta"] <= app.clock.now() + 60_000
        app.clock.advance(why["eta"] - app.clock.now())
        await app.onward.dispatcher.reread()
        await app.settled()
        assert worker.pending() == 3


@pytest.mark.contract("L-4")
async def test_a_cost_above_count_and_burst_is_refused() -> None:
    async with running_app() as app:
        await declare(app, rate=[{"count": 10, "per_ms": 1_000, "cost": "tokens"}])
        refused = await app.post("/api/v2/tasks", {"type": "mail", "payload": {"tokens": 12}})
        assert refused.status_code == 422
        assert refused.json()["errors"][0]["pointer"] == "/payload/tokens"
        await app.submit("mail", payload={"tokens": 11})


@pytest.mark.contract("L-5")
async def test_a_shared_limit_is_changed_while_it_holds() -> None:
    async with running_app() as app:
        unknown = await app.post(
            "/api/v2/services", {"name": "sms", "task_types": ["sms"], "limits": ["smtp"]}
        )
        assert unknown.status_code == 422
        assert unknown.json()["errors"][0]["pointer"] == "/limits/0"
        put = await app.http.put("/api/v2/limits/smtp", json={"concurrency": {"total": 1}})
        assert put.status_code == 200, put.text
        for name in ("mail", "sms"):
            await declare(app, name=name, task_types=[name], limits=["smtp"])
        worker = await app.worker(services=["mail", "sms"], concurrency=5)
        await app.submit("mail")
        await app.submit("sms")
        await app.settled()
        assert worker.pending() == 1
        limit = (await app.get("/api/v2/limits/smtp")).json()
        assert limit == {
            "name": "smtp",
            "concurrency": {"total": 1},
            "rate": [],
            "services": ["mail", "sms"],
            "in_use": 1,
            "next_at": None,
        }
        await app.http.put("/api/v2/limits/smtp", json={"concurrency": {"total": 2}})
        await app.settled()
        assert worker.pending() == 2
        listed = (await app.get("/api/v2/limits")).json()["items"]
        assert [each["name"] for each in listed] == ["smtp"]
        assert (await app.http.delete("/api/v2/limits/smtp")).status_code in (200, 204)
        assert (await app.get("/api/v2/limits/smtp")).status_code == 404
        await app.submit("mail")
        await app.settled()
        assert worker.pending() == 3


@pytest.mark.contract("L-6")
async def test_metrics_show_how_far_a_limit_is_used_up() -> None:
    async with running_app() as app:
        await declare(app, concurrency={"total": 2, "per_partition": 1})
        await app.worker(services=["mail"], concurrency=5)
        await app.submit("mail")
        await app.settled()
        lines = (await app.get("/metrics")).text.splitlines()
        of_limit = [line for line in lines if line.startswith("onward_limit_")]
        assert of_limit == [
            'onward_limit_used{kind="concurrency",limit="mail",window_seconds=""} 1.0',
            'onward_limit_max{kind="concurrency",limit="mail",window_seconds=""} 2.0',
        ]


@pytest.mark.parametrize(
    "fields",
    [
        {"concurrency": {"total": -1}},
        {"concurrency": {"many": 1}},
        {"rate": [{"count": 0, "per_ms": 1}]},
        {"rate": [{"count": 1}]},
        {"rate": [{"count": 1, "per_ms": 1, "cost": 9}]},
        {"rate": [{"count": 1, "per_ms": 1, "cost": "a..b"}]},
        {"partition_by": "people.*.name"},
    ],
)
async def test_a_limit_that_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    async with running_app() as app:
        body = {"name": "mail", "task_types": ["mail"], **fields}
        assert (await app.post("/api/v2/services", body)).status_code == 422
