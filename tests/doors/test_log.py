"""Readers of the log over HTTP and in /metrics, retention by profile, and the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from onward.cli.__main__ import app as cli
from onward.core.outcome import Failed, Succeeded
from onward.core.policy import profiles
from onward.core.task import State
from onward.faults import Fault
from onward.settings import Settings
from tests.contract.driver import Driver
from tests.doors.summarizing import submitted
from tests.running_app import App, running_app
from tests.support import NOW


async def test_readers_are_listed_measured_and_forgotten() -> None:
    async with running_app() as app:
        documents = app.onward.backend.documents
        await documents.put("cursor", "archive:gone", '"0"', now=app.clock.now())
        await app.post("/api/v2/tasks", {"type": "greet"})
        app.clock.advance(7_000)
        (found,) = (await app.get("/api/v2/log/readers")).json()["items"]
        assert found == {
            "name": "archive:gone",
            "cursor": "0",
            "behind_ms": 7_000,
            "seen_at": None,
            "silent_ms": 0,
            "retired": False,
        }
        metrics = (await app.get("/metrics")).text
        assert 'onward_log_behind_seconds{reader="archive:gone"} 7.0' in metrics
        gone = await app.http.delete("/api/v2/log/readers/archive%3Agone")
        assert gone.status_code == 204
        assert (await app.get("/api/v2/log/readers")).json()["items"] == []
        again = await app.http.delete("/api/v2/log/readers/archive%3Agone")
        assert (again.status_code, again.json()["code"]) == (404, "not_found")


async def test_a_finished_task_can_be_deleted_once_its_slow_reader_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("onward.doors.tasks.router.ERASING_PAUSE_S", 0)
    async with running_app() as app:
        await app.onward.backend.documents.put("cursor", "slow", '"0"', now=0)
        id = await _canceled(app)
        refused = await app.http.delete(f"/api/v1/tasks/{id}")
        assert refused.status_code == 503
        assert (await app.http.delete("/api/v2/log/readers/slow")).status_code == 204
        assert (await app.http.delete(f"/api/v1/tasks/{id}")).status_code == 200


async def _canceled(app: App) -> str:
    id = await submitted(app)
    await app.onward.dispatcher.cancel(id)
    return id


def test_readers_are_listed_and_forgotten_without_a_server(tmp_path: Path) -> None:
    import asyncio

    from onward.ledgers import open_backend

    url = f"sqlite:///{tmp_path}/ledger.db"

    async def prepare() -> None:
        backend = open_backend(url)
        await backend.documents.put("cursor", "gone", '"0"', now=NOW)
        await backend.close()

    asyncio.run(prepare())
    listed = CliRunner().invoke(cli, ["log", "readers", "--ledger", url, "--json"])
    assert [item["name"] for item in json.loads(listed.output)["items"]] == ["gone"]
    shown = CliRunner().invoke(cli, ["log", "readers", "--ledger", url])
    assert "gone" in shown.output
    forgot = CliRunner().invoke(cli, ["log", "forget", "gone", "--ledger", url])
    assert (forgot.exit_code, forgot.output.strip()) == (0, "gone is forgotten")
    assert CliRunner().invoke(cli, ["log", "forget", "gone", "--ledger", url]).exit_code == 1


def test_who_names_a_file_that_a_server_has_is_told_to_ask_the_server(tmp_path: Path) -> None:
    import asyncio

    from onward.ledgers import open_backend

    url = f"sqlite:///{tmp_path}/ledger.db"
    server = open_backend(url)
    refused = CliRunner().invoke(cli, ["log", "readers", "--ledger", url])
    asyncio.run(server.close())
    assert refused.exit_code == 1
    assert "is in use by process" in refused.output
    assert "→ leave out --ledger" in refused.output


# Retention.


def test_retention_is_set_by_profile() -> None:
    settings = Settings(ONWARD_RETENTION='{"console": "7d", "sync": "90s", "dead": "12h"}')  # type: ignore[call-arg]
    rules = profiles(lease_ms=1, retention_ms=settings.retention)
    day = 86_400_000
    assert rules["console"].retention_ms == 7 * day
    assert rules["sync"].retention_ms == 90_000
    assert rules["flow"].retention_ms == 30 * day, "what is not named stays"
    assert {rule.dead_ms for rule in rules.values()} == {day // 2}
    assert {rule.dead_ms for rule in profiles(lease_ms=1).values()} == {None}


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ('{"task": "30d"}', "'task' is no profile: one of sync, console"),
        ('{"console": "a month"}', "'console' is kept for 'a month'"),
        ('{"console": "0d"}', "'console' is kept for '0d'"),
        ('{"console": 30}', "console"),
        ("thirty days", "ONWARD_RETENTION"),
    ],
)
def test_a_retention_that_makes_no_sense_is_refused_and_named(value: str, named: str) -> None:
    with pytest.raises(ValidationError, match="ONWARD_RETENTION") as refused:
        Settings(ONWARD_RETENTION=value)  # type: ignore[call-arg]
    assert named in str(refused.value)


@pytest.mark.parametrize("ledger", ["sqlite:///:memory:", "redis7"])
async def test_dead_letters_are_forgotten_when_their_time_is_over_if_so_set(ledger: str) -> None:
    from onward.core.alarm import Alarm
    from onward.core.clock import ManualClock
    from onward.core.dispatch import Dispatcher
    from onward.ledgers import open_backend
    from tests.servers import fresh_url

    clock = ManualClock()
    backend = open_backend(fresh_url(ledger) if ledger == "redis7" else ledger)
    rules = profiles(lease_ms=30_000, retention_ms={"dead": 5_000})
    dispatcher = Dispatcher(backend, rules, clock)
    driver = Driver(backend)
    await backend.documents.put("cursor", "slow", '""', now=NOW)
    held = await driver.running()
    await dispatcher.settle(held, Failed(Fault(kind="InvalidInput", message="no")))
    found = await driver.task(held.id)
    assert (found.state, found.due_at) == (State.DEAD, NOW + 5_000)
    clock.advance(5_000)
    await Alarm(dispatcher).sweep()
    found = await driver.task(held.id)
    assert found.due_at == NOW + 5_000 + 60_000, "not read yet: out of the sweep's way"
    await backend.documents.delete("cursor", "slow")
    clock.advance(60_000)
    await Alarm(dispatcher).sweep()
    assert await backend.tasks.get([held.id]) == [None]
    await backend.close()


async def test_what_a_slow_reader_holds_is_not_written_anew_each_minute() -> None:
    async with running_app() as app:
        await app.onward.backend.documents.put("cursor", "slow", '"0"', now=0)
        driver = Driver(app.onward.backend)
        over = await driver.running()
        await driver.settle(over, Succeeded("1"))
        month = 30 * 86_400_000
        await app.advance(month)
        waits = []
        for _ in range(9):
            found = await driver.task(over.id)
            assert found.due_at is not None
            waits.append((found.due_at - app.clock.now()) // 60_000)
            await app.advance(found.due_at - app.clock.now())
        assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_doctor_sees_a_reader_of_a_file_that_is_gone(tmp_path: Path) -> None:
    import asyncio

    from onward.cli.checkup import ODD, examine
    from onward.core.clock import ManualClock
    from onward.core.readers import RENEW_MS, Readers
    from onward.ledgers import open_backend

    url = f"sqlite:///{tmp_path}/ledger.db"

    async def silent(rounds: int) -> None:
        backend = open_backend(url)
        clock = ManualClock()
        await backend.documents.put("cursor", "stream-dead-letters", '"0"', now=NOW)
        readers = Readers(backend, clock)
        for _ in range(rounds):
            await readers.retire_silent()
            clock.advance(5 * RENEW_MS)
        await backend.close()

    asyncio.run(silent(1))
    assert not [finding for finding in examine(url, None) if finding.about == "log"]
    asyncio.run(silent(14))
    (found,) = [finding for finding in examine(url, None) if finding.about == "log"]
    assert found.mark == ODD
    assert found.todo.endswith("onward log forget stream-dead-letters")
