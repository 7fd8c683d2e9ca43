"""Encryption at rest with every door open: callers notice nothing, and the files say nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from onward.core.contract import Query
from onward.core.errors import Unreadable
from onward.core.outcome import Outcome, Succeeded
from onward.core.task import Claimed
from onward.ledgers.sealed import unwrap
from onward.ledgers.sealed.store import AGAIN_MS
from onward.workers.runner import Runner
from tests.contract.sealed_ledger import BOTH, NEW, OLD, SECRET, file_bytes, redis_bytes
from tests.running_app import App, running_app
from tests.runs.flow_app import call, chain
from tests.servers import fresh_url, shared
from tests.support import wait_until

Opened = Callable[[str], Any]
WAITS = "a task waits for its key"


@pytest.fixture(params=["sqlite", "redis"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    on_redis = request.param == "redis"
    ledger = fresh_url("valkey") if on_redis else f"sqlite:///{tmp_path}/ledger.db"

    def open_(keys: str) -> Any:
        archive = f"sqlite:///{tmp_path}/archive.db"
        return running_app(ledger=ledger, archive=archive, encryption_keys=keys)

    return open_


@pytest.fixture
def raw(opened: Opened, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], bytes]:
    on_redis = request.node.callspec.params["opened"] == "redis"
    # Dead letters on a stream are for whoever reads it: transport, and clear.
    return lambda: (
        file_bytes(tmp_path) + (redis_bytes("valkey", but=[b"stream:dlq"]) if on_redis else b"")
    )


async def live(app: App) -> str:
    """One task with a secret at every step, one that dies of it, one that waits, a run."""
    service = {"name": "pay", "task_types": ["pay"]}
    assert (await app.post("/api/v2/services", service)).status_code == 201
    body = {"type": "pay", "payload": {"card": SECRET}, "idempotency_key": "once"}
    task = str(await app.submit(**body))
    worker = await app.worker(group=None, services=["pay"])
    frame = await worker.task()
    assert frame["payload"] == {"card": SECRET}
    path = f"/api/v2/tasks/{task}"
    await worker.send({"type": "chunk", "taskId": task, "data": SECRET})
    await worker.send({"type": "progress", "taskId": task, "progress": 0.5, "message": SECRET})

    async def is_told() -> bool:
        return bool((await app.task(task))["progress_message"] == SECRET)

    await wait_until(is_told)
    fence = (await app.onward.backend.tasks.get([task]))[0].fence  # type: ignore[union-attr]
    assert (await app.post(f"{path}/effects/charge", {"fence": fence})).json()["state"] == "begun"
    done = {"fence": fence, "value": SECRET}
    assert (await app.http.put(f"{path}/effects/charge", json=done)).status_code == 200
    again = (await app.post(f"{path}/effects/charge", {"fence": fence})).json()
    assert again == {"state": "done", "value": SECRET}
    await worker.answer(task, {"receipt": SECRET})
    await app.get(path, params={"wait_ms": 5000})
    dies = {"type": "pay", "payload": SECRET, "max_retries": 0}
    dead = await app.submit(**dies)
    await worker.task()
    await worker.answer(dead, error=f"no such card {SECRET}", status=400)
    await app.get(f"/api/v2/tasks/{dead}", params={"wait_ms": 5000})
    asks = {"type": "pay", "payload": SECRET, "approval": {"reason": f"is {SECRET} yours?"}}
    await app.post("/api/v2/tasks", asks)
    schedule = {"name": "rent", "type": "pay", "payload": SECRET, "every_ms": 3_600_000}
    assert (await app.post("/api/v2/schedules", schedule)).status_code == 201
    definition = chain(("a", call("pay", "$params", "out")))
    await app.post("/api/v2/flows", {"name": "order", "definition": definition})
    run = await app.post("/api/v2/runs", {"flow": "order", "params": {"card": SECRET}})
    await worker.answer((await worker.task())["taskId"], {"receipt": SECRET})
    over = await app.get(f"/api/v2/runs/{run.json()['id']}", params={"wait_ms": 5000})
    assert over.json()["shared"]["out"] == {"receipt": SECRET}
    await worker.close()
    return task


@pytest.mark.contract("S2-9")
@pytest.mark.parametrize(("keys", "found"), [("", True), (BOTH, False)])
async def test_the_files_alone_reveal_nothing(
    opened: Opened, raw: Callable[[], bytes], keys: str, found: bool
) -> None:
    async with opened(keys) as app:
        task = await live(app)
        read = await app.task(task)
        assert (read["payload"], read["result"]) == ({"card": SECRET}, {"receipt": SECRET})
        (approval,) = (await app.get("/api/v2/approvals")).json()["items"]
        assert approval["reason"] == f"is {SECRET} yours?"
        (group,) = (await app.get("/api/v2/dead-letters")).json()["items"]
        assert group["message"] == f"no such card {SECRET}"
        assert (SECRET.encode() in raw()) is found
    assert (SECRET.encode() in raw()) is found, "nor afterwards"


@pytest.mark.contract("S2-9", "N-3")
async def test_an_idempotency_key_still_tells_bodies_apart(opened: Opened) -> None:
    async with opened(BOTH) as app:
        body = {"type": "pay", "payload": {"n": 1}, "idempotency_key": "once"}
        first = await app.submit(**body)
        assert await app.submit(**body) == first
        other = await app.post("/api/v2/tasks", {**body, "payload": {"n": 2}})
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")


async def test_a_task_survives_a_restart_with_another_key_first(opened: Opened) -> None:
    async with opened(OLD) as app:
        task = await app.submit("pay", payload=SECRET)
    async with opened(BOTH) as app:
        worker = await app.worker(group=None, services=["pay"])
        assert (await worker.task())["payload"] == SECRET
        await worker.answer(task, SECRET)
        over = await app.get(f"/api/v2/tasks/{task}", params={"wait_ms": 5000})
        assert over.json()["result"] == SECRET


async def test_without_its_key_a_task_is_refused_and_the_server_lives(opened: Opened) -> None:
    async with opened(OLD) as app:
        task = await app.submit("pay", payload=SECRET)
    async with opened(NEW) as app:
        with capture_logs() as logs:
            worker = await app.worker(group=None, services=["pay"])
            await wait_until(lambda: WAITS in [line["event"] for line in logs], timeout=30)
        assert {line["task"] for line in logs if line["event"] == WAITS} == {task}
        refused = await app.get(f"/api/v2/tasks/{task}")
        assert (refused.status_code, refused.json()["code"]) == (503, "unreadable")
        assert "the key 'k1'" in refused.json()["detail"]
        assert "ONWARD_ENCRYPTION_KEYS" in refused.json()["hint"]
        listed = (await app.get("/api/v2/tasks")).json()["items"]
        assert [(one["id"], one["phase"]) for one in listed] == [(task, "parked")]
        assert listed[0]["payload"]["sealed"] == "k1"
        fresh = await app.submit("pay", payload=1)
        assert (await worker.task())["taskId"] == fresh, "everybody else is served"
        await app.advance(2 * AGAIN_MS)
        await app.settled()
        (raw,) = await unwrap(app.onward.backend).tasks.get([task])
        assert raw is not None
        assert raw.attempt == raw.lost == raw.failures == 0, "nothing is held against it"
    async with opened(BOTH) as app:
        app.clock.advance(4 * AGAIN_MS)
        await app.advance(0)
        worker = await app.worker(group=None, services=["pay"])
        seen = {(await worker.task())["taskId"]}
        await worker.answer(seen.copy().pop(), 1)
        seen.add((await worker.task())["taskId"])
        assert task in seen


@pytest.mark.contract("S2-9")
async def test_rotation_by_the_api(opened: Opened) -> None:
    async with opened(OLD) as app:
        await live(app)
        said = (await app.get("/api/v2/encryption")).json()
        assert said == {"sealing": "k1", "keys": ["k1"]}
    async with opened(BOTH) as app:
        said = (await app.get("/api/v2/encryption")).json()
        assert said == {"sealing": "k2", "keys": ["k2", "k1"]}
        resealed = 0
        after: str | None = ""
        while after is not None:
            answer = await app.post("/api/v2/encryption/rotate", {"after": after})
            assert answer.status_code == 200, answer.text
            resealed += answer.json()["resealed"]
            after = answer.json()["next"]
        assert resealed > 20
        for raw in (await unwrap(app.onward.backend).tasks.find(Query())).items:
            assert raw.payload.startswith("sealed:k2:")
    async with opened(NEW) as app:
        texts = [one["payload"] for one in (await app.get("/api/v2/tasks")).json()["items"]]
        assert {"card": SECRET} in texts


@pytest.mark.parametrize("after", ["x", "9|", "0|nonsense:1", "0|task:[", "-1|", "1|events:x\ny"])
async def test_a_rotation_begins_nowhere_else(opened: Opened, after: str) -> None:
    async with opened(NEW) as app:
        answer = await app.post("/api/v2/encryption/rotate", {"after": after})
        assert answer.status_code == 422, answer.text
        assert answer.json()["errors"][0]["pointer"] == "/after"


async def test_without_keys_there_is_nothing_to_rotate() -> None:
    async with running_app() as app:
        said = (await app.get("/api/v2/encryption")).json()
        assert said == {"sealing": None, "keys": []}
        refused = await app.post("/api/v2/encryption/rotate", None)
        assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
        assert "onward keys encryption new" in refused.json()["hint"]


class Torn:
    """Finds, the first time, that something it needs does not open."""

    calls = 0

    async def execute(self, task: Claimed) -> Outcome:
        self.calls += 1
        if self.calls == 1:
            raise Unreadable("result of task c is sealed under the key 'k1', which ...")
        return Succeeded(task.payload)

    def cancel(self, task: Claimed) -> None:
        pass


async def test_a_part_that_does_not_open_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.workers.runner.KEY_S", 0)
    async with running_app() as app:
        body = {"type": "torn", "payload": 1, "max_retries": 0}
        task = await app.submit(**body)
        runner = Runner(app.onward.dispatcher, Torn(), worker="w", queues=["torn"], slots=1)
        runner.start()
        over = (await app.get(f"/api/v2/tasks/{task}", params={"wait_ms": 30_000})).json()
        assert (over["state"], over["attempt"], over["failures"]) == ("succeeded", 1, 0)
        runner.stop_claiming()


@pytest.fixture
async def agents(tmp_path: Path) -> AsyncIterator[App]:
    """A SQLite ledger, with the agents' keys on a Redis."""
    async with running_app(
        ledger=f"sqlite:///{tmp_path}/ledger.db", redis=fresh_url("valkey"), encryption_keys=NEW
    ) as app:
        yield app


@pytest.mark.contract("S2-5", "S2-9")
async def test_the_agents_keys_show_what_is_sealed(agents: App) -> None:
    app = agents
    body = {"type": "pay", "payload": {"card": SECRET}, "session_id": "s1"}
    task = await app.submit(**body)
    worker = await app.worker(group=None, services=["pay"])
    await worker.task()
    await worker.answer(task, {"receipt": SECRET})
    client: Any = shared("valkey").client
    await wait_until(lambda: client.get(f"task:{task}:result"), timeout=60)
    cached = json.loads(client.get(f"task:{task}:result"))
    assert cached["result"].startswith("sealed:k2:")
    hash_ = client.hgetall(f"task:{task}")
    assert hash_[b"status"] == b"completed"
    for field in (b"params", b"result", b"error"):
        assert hash_[field].startswith(b"sealed:k2:"), field
    assert SECRET.encode() not in b"".join([*hash_.values(), client.get(f"task:{task}:result")])

    async def told() -> Any:
        return (await app.get("/api/v2/sessions/s1/notifications")).json()["items"]

    assert [notice["task_id"] for notice in await wait_until(told)] == [task]


@pytest.mark.contract("N-5")
async def test_a_dead_letter_without_its_key_does_not_stop_the_patch_of_the_others(
    opened: Opened,
) -> None:
    async def died(app: App) -> str:
        worker = await app.worker(group=None, services=["pay"])
        task = (await app.post("/api/v2/tasks", {"type": "pay", "payload": {"n": 1}})).json()
        await worker.answer((await worker.task())["taskId"], error="no", errorType="InvalidInput")
        await app.get(f"/api/v2/tasks/{task['id']}", params={"wait_ms": 5000})
        return str(task["id"])

    async with opened(OLD) as app:
        sealed = await died(app)
    async with opened(NEW) as app:
        readable = await died(app)
        patch = {"ids": [sealed, readable], "patch": {"n": 2}}
        done = (await app.post("/api/v2/dead-letters/replay", patch)).json()
        assert (done["replayed"], done["refused_count"]) == (1, 1)
        assert done["refused"][0]["id"] == sealed
        assert (await app.task(readable))["payload"] == {"n": 2}
