"""`encrypt` of a service: its tasks alone rest sealed, where ONWARD_ENCRYPT=declared (S2-9)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onward.ledgers.sealed import unwrap
from onward.ledgers.sealed.keyring import key_of
from tests.contract.sealed_ledger import BOTH, NEW, OLD, SECRET, file_bytes, redis_bytes
from tests.running_app import App, running_app
from tests.runs.flow_app import call, chain
from tests.servers import fresh_url
from tests.support import wait_until

pytestmark = pytest.mark.contract("S2-9")

Opened = Callable[..., Any]
CLEAR = "anybody-may-read-this"


@pytest.fixture(params=["sqlite", "redis"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    on_redis = request.param == "redis"
    ledger = fresh_url("valkey") if on_redis else f"sqlite:///{tmp_path}/ledger.db"

    def open_(keys: str = BOTH, **settings: Any) -> Any:
        settings.setdefault("encrypt", "declared")
        archive = f"sqlite:///{tmp_path}/archive.db"
        return running_app(ledger=ledger, archive=archive, encryption_keys=keys, **settings)

    return open_


@pytest.fixture
def raw(opened: Opened, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], bytes]:
    on_redis = request.node.callspec.params["opened"] == "redis"
    return lambda: (
        file_bytes(tmp_path) + (redis_bytes("valkey", but=[b"stream:dlq"]) if on_redis else b"")
    )


async def live(app: App, type_: str, text: str) -> str:
    """A task whose payload, progress, output and result hold this text."""
    task = await app.submit(type_, payload={"text": text}, session_id="s")
    worker = await app.worker(group=None, services=[type_])
    assert (await worker.task())["payload"] == {"text": text}
    await worker.send({"type": "chunk", "taskId": task, "data": text})
    await worker.send({"type": "progress", "taskId": task, "progress": 0.5, "message": text})
    await worker.answer(task, {"said": text})
    await worker.close()
    await wait_until(lambda: app.task(task), holds=lambda found: found["state"] == "succeeded")
    return task


async def declared(app: App, name: str = "pay", **more: Any) -> Any:
    return await app.post("/api/v2/services", {"name": name, "task_types": [name], **more})


async def test_only_what_was_asked_for_is_sealed_and_all_can_be_read(
    opened: Opened, raw: Callable[[], bytes]
) -> None:
    async with opened() as app:
        assert (await declared(app, encrypt=True)).json()["encrypt"] is True
        secret = await live(app, "pay", SECRET)
        plain = await live(app, "say", CLEAR)
        for task, text in ((secret, SECRET), (plain, CLEAR)):
            read = await app.task(task)
            assert (read["payload"], read["result"]) == ({"text": text}, {"said": text})
            chunks = [one["data"] for one in await app.events(task) if one["type"] == "task.chunk"]
            assert chunks == [text]
        inner = unwrap(app.onward.backend).tasks
        kept = [one for one in await inner.get([secret, plain]) if one is not None]
        for one, sealed in zip(kept, (True, False), strict=True):
            for text in (one.payload, one.result or "", one.progress or ""):
                assert (key_of(text) is not None) is sealed
    assert SECRET.encode() not in raw()
    assert CLEAR.encode() in raw()


async def test_a_task_that_another_server_took_over_stays_as_it_was_born(opened: Opened) -> None:
    async with opened() as app:
        await declared(app, encrypt=True)
        tasks = [await app.submit(name, payload={"text": SECRET}) for name in ("pay", "say")]
    async with opened() as app:
        await declared(app)  # its new tasks are not sealed any more; the old one is
        worker = await app.worker(group=None, services=["pay", "say"], concurrency=2)
        for _ in tasks:
            frame = await worker.task()
            await worker.answer(frame["taskId"], {"said": SECRET})
        for task in tasks:
            await wait_until(
                lambda task=task: app.task(task),  # type: ignore[misc]
                holds=lambda found: found["state"] == "succeeded",
            )
        found = await unwrap(app.onward.backend).tasks.get(tasks)
        assert [key_of(task.result or "") is not None for task in found if task] == [True, False]


async def test_runs_are_sealed_whole(opened: Opened, raw: Callable[[], bytes]) -> None:
    async with opened() as app:
        worker = await app.worker(group=None, services=["say"])
        definition = chain(("a", call("say", "$params", "out")))
        await app.post("/api/v2/flows", {"name": "order", "definition": definition})
        run = await app.post("/api/v2/runs", {"flow": "order", "params": {"card": SECRET}})
        await worker.answer((await worker.task())["taskId"], {"receipt": SECRET})
        over = await app.get(f"/api/v2/runs/{run.json()['id']}", params={"wait_ms": 5000})
        assert over.json()["shared"]["out"] == {"receipt": SECRET}
        await worker.close()
    assert SECRET.encode() not in raw()


async def test_a_rotation_seals_anew_what_is_sealed_and_nothing_else(opened: Opened) -> None:
    async with opened(OLD) as app:
        await declared(app, encrypt=True)
        tasks = [await live(app, "pay", SECRET), await live(app, "say", CLEAR)]
    async with opened(f"{NEW},{OLD}") as app:
        after: str | None = ""
        while after is not None:
            after = (await app.onward.backend.rotation.step(after)).next
        found = await unwrap(app.onward.backend).tasks.get(tasks)
        assert [key_of(task.result or "") for task in found if task] == ["k2", None]


async def test_what_cannot_be_had_is_refused_and_not_missing_in_silence(opened: Opened) -> None:
    async with opened("") as app:
        refused = await declared(app, encrypt=True)
        assert refused.status_code == 422
        assert "no keys to encrypt with" in refused.json()["detail"]
        worker = await declared(app, name="other")
        assert worker.is_success


async def test_all_is_sealed_unless_it_is_said_otherwise(opened: Opened) -> None:
    async with opened(encrypt="all") as app:
        task = await live(app, "say", SECRET)
        (found,) = await unwrap(app.onward.backend).tasks.get([task])
        assert found is not None
        assert key_of(found.payload) is not None
