"""Work handed in inside a transaction of the caller's own, on a Postgres ledger (Y-6)."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from datetime import date, timedelta
from functools import partial
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from pydantic import BaseModel, Field
from sqlalchemy.ext.asyncio import create_async_engine

from onward import OnwardError, enqueue
from onward.core.errors import LedgerUnavailable
from onward.native import enqueued
from tests.running_app import App, running_app
from tests.servers import fresh_postgres_url
from tests.support import wait_until

pytestmark = pytest.mark.contract("Y-6")
BODY = '{"type": "report"}'


@pytest.fixture
def url() -> str:
    return fresh_postgres_url("postgres18")


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    async with running_app(ledger=url) as app:
        yield app


async def there(app: App, id: str) -> dict[str, Any]:
    """The task, once a server has taken it over."""
    await wait_until(lambda: _found(app, id))
    return await app.task(id)


async def _found(app: App, id: str) -> bool:
    return (await app.get(f"/api/v2/tasks/{id}")).status_code == 200


async def by_psycopg(url: str, ends: str) -> str:
    with psycopg.connect(url) as connection:
        id = enqueue(connection, "report", {"n": 1}, queue="reports")
        connection.rollback() if ends == "rolled back" else connection.commit()
    return str(id)


async def by_async_psycopg(url: str, ends: str) -> str:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        id = await enqueue(connection, "report", {"n": 1}, queue="reports")
        await (connection.rollback() if ends == "rolled back" else connection.commit())
    return str(id)


async def by_asyncpg(url: str, ends: str) -> str:
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    id = await enqueue(connection, "report", {"n": 1}, queue="reports")
    await (transaction.rollback() if ends == "rolled back" else transaction.commit())
    await connection.close()
    return str(id)


async def by_sqlalchemy(url: str, ends: str) -> str:
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        id = enqueue(connection, "report", {"n": 1}, queue="reports")
        connection.rollback() if ends == "rolled back" else connection.commit()
    engine.dispose()
    return str(id)


async def by_async_sqlalchemy(url: str, ends: str) -> str:
    engine = create_async_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    async with engine.connect() as connection:
        id = await enqueue(connection, "report", {"n": 1}, queue="reports")
        await (connection.rollback() if ends == "rolled back" else connection.commit())
    await engine.dispose()
    return str(id)


async def by_psycopg_with_dict_rows(url: str, ends: str) -> str:
    with psycopg.connect(url, row_factory=dict_row) as connection:
        id = enqueue(connection, "report", {"n": 1}, queue="reports")
        connection.rollback() if ends == "rolled back" else connection.commit()
    return str(id)


async def by_async_psycopg_with_dict_rows(url: str, ends: str) -> str:
    connect = psycopg.AsyncConnection.connect
    async with await connect(url, row_factory=dict_row) as connection:
        id = await enqueue(connection, "report", {"n": 1}, queue="reports")
        await (connection.rollback() if ends == "rolled back" else connection.commit())
    return str(id)


DRIVERS = [
    by_psycopg_with_dict_rows,
    by_async_psycopg_with_dict_rows,
    by_psycopg,
    by_async_psycopg,
    by_asyncpg,
    by_sqlalchemy,
    by_async_sqlalchemy,
]


@pytest.mark.parametrize("hand_in", DRIVERS)
async def test_what_is_committed_is_submitted(app: App, url: str, hand_in: Any) -> None:
    task = await there(app, await hand_in(url, "committed"))
    assert (task["type"], task["queue"], task["payload"]) == ("report", "reports", {"n": 1})
    assert task["state"] == "queued"


@pytest.mark.parametrize("hand_in", DRIVERS)
async def test_what_is_rolled_back_never_was(app: App, url: str, hand_in: Any) -> None:
    undone = await hand_in(url, "rolled back")
    await there(app, await hand_in(url, "committed"))
    assert not await _found(app, undone)


async def test_nothing_is_seen_before_the_commit(app: App, url: str) -> None:
    with psycopg.connect(url) as connection:
        id = enqueue(connection, "report", delay=timedelta(minutes=5))
        await there(app, await by_asyncpg(url, "committed"))
        assert not await _found(app, id)
        connection.commit()
    assert (await there(app, id))["state"] == "scheduled"


async def test_what_a_service_declares_holds(app: App, url: str) -> None:
    schema = {"report": {"type": "object", "required": ["n"]}}
    service = {"name": "report", "task_types": ["report"], "schema": schema}
    await app.post("/api/v2/services", {**service, "requires_approval": True})
    with psycopg.connect(url) as connection:
        fits, does_not = enqueue(connection, "report", {"n": 1}), enqueue(connection, "report", {})
        connection.commit()
    assert (await there(app, fits))["phase"] == "waiting_approval"
    await there(app, does_not)
    buried = await wait_until(lambda: _over(app, does_not))
    assert (buried["state"], buried["error"]["kind"]) == ("dead", "InvalidInput")
    assert "'n' is a required property" in buried["error"]["message"].replace('"n"', "'n'")


async def _over(app: App, id: str) -> dict[str, Any] | None:
    task = await app.task(id)
    return task if task["finished_at"] is not None else None


async def test_a_row_that_is_read_twice_is_one_task(app: App, url: str) -> None:
    id = await by_psycopg(url, "committed")
    await there(app, id)
    with psycopg.connect(url, autocommit=True) as connection:
        left = "SELECT count(*) FROM onward.enqueued"
        await wait_until(lambda: connection.execute(left).fetchone() == (0,))
        connection.execute(
            "INSERT INTO onward.enqueued VALUES (%s, %s)", (id, '{"type": "report"}')
        )
        await wait_until(lambda: connection.execute(left).fetchone() == (0,))
    assert (await app.task(id))["payload"] == {"n": 1}


async def test_a_database_without_a_ledger_is_refused_and_the_transaction_goes_on() -> None:
    with psycopg.connect(fresh_postgres_url("postgres15")) as connection:
        with pytest.raises(OnwardError, match="no Onward ledger"):
            enqueue(connection, "report")
        assert connection.execute("SELECT 1").fetchone() == (1,)


async def test_a_model_is_written_as_the_client_writes_it(app: App, url: str) -> None:
    class Report(BaseModel):
        of: date = Field(alias="day")

    with psycopg.connect(url) as connection:
        id = enqueue(connection, "report", Report(day=date(2026, 1, 2)))
    assert (await there(app, id))["payload"] == {"day": "2026-01-02"}


async def test_a_wrong_option_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        enqueue(object(), "report", None, colour="red")
    with pytest.raises(TypeError, match="idempotency_key"):
        enqueue(object(), "report", None, idempotency_key="k")


@pytest.mark.parametrize(
    ("type_", "options", "fault"),
    [
        ("", {}, "type: expected text that is not empty"),
        ("a\0b", {}, "type: expected text without control characters"),
        ("report", {"priority": "urgent"}, "priority: must be one of high, low, normal"),
        ("report", {"max_retries": -1}, "max_retries: expected a whole number >= 0"),
    ],
)
async def test_what_no_server_would_accept_is_refused_at_once(
    url: str, type_: str, options: dict[str, Any], fault: str
) -> None:
    with psycopg.connect(url) as connection, pytest.raises(ValueError, match=fault):
        enqueue(connection, type_, {}, **options)


async def test_an_unreadable_row_is_a_dead_letter_and_delays_no_other(app: App, url: str) -> None:
    bodies = {
        "00-nul": '{"type": "a\\u0000b", "payload": 1}',
        "01-text": "not JSON",
        "02-list": "[1]",
        "03-twins": '{"type": "report", "payload": {"a": 1, "a": 2}}',
        "04-nul-inside": '{"type": "report", "payload": "a\\u0000b"}',
    }
    with psycopg.connect(url) as connection:
        for id, body in bodies.items():
            connection.execute("INSERT INTO onward.enqueued (id, body) VALUES (%s, %s)", (id, body))
        fine = enqueue(connection, "report", {"n": 1})
    assert (await there(app, fine))["state"] == "queued"
    for id in bodies:
        await there(app, id)
        assert (await wait_until(partial(_over, app, id)))["state"] == "dead"
    assert (await app.task("00-nul"))["type"] == "ab"
    assert (await app.task("01-text"))["payload"] == "not JSON"
    await wait_until(partial(_none_left, url))


async def _none_left(url: str) -> bool:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        return await (await connection.execute("SELECT FROM onward.enqueued")).fetchone() is None


async def put(url: str, rows: dict[str, str]) -> None:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        for row in rows.items():
            await connection.execute("INSERT INTO onward.enqueued (id, body) VALUES (%s, %s)", row)


async def test_an_unreadable_row_under_the_id_of_a_running_task_ends_nothing(
    app: App, url: str
) -> None:
    worker = await app.worker(services=["report"])
    await put(url, {"x": '{"type": "report", "payload": 1}'})
    assert (await worker.task())["taskId"] == "x"
    await wait_until(partial(_none_left, url))
    await put(url, {"x": "not JSON"})
    await wait_until(partial(_none_left, url))
    task = await app.task("x")
    assert (task["state"], task["worker"], task["payload"]) == ("running", worker.id, 1)
    await worker.answer("x", "done")
    assert (await wait_until(partial(_over, app, "x")))["state"] == "succeeded"


async def test_a_burial_that_a_crash_cut_short_is_finished(
    app: App, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle, tries = app.onward.dispatcher.settle, []

    async def away_once(*settlement: Any) -> Any:
        tries.append(settlement)
        if len(tries) == 1:
            raise LedgerUnavailable("away")
        return await settle(*settlement)

    monkeypatch.setattr(app.onward.dispatcher, "settle", away_once)
    await put(url, {"x": "not JSON"})
    await there(app, "x")
    assert (await wait_until(partial(_over, app, "x")))["state"] == "dead"
    await wait_until(partial(_none_left, url))


async def test_a_callback_address_is_checked_without_a_lookup(url: str) -> None:
    async with running_app(ledger=url, worker_hosts=["known.invalid"]) as app:
        body = '{"type": "report", "callback_url": "http://%s.invalid/"}'
        await put(url, {"listed": body % "known", "other": body % "other"})
        await wait_until(partial(_none_left, url))
        assert (await app.task("listed"))["state"] == "queued"
        refused = await app.task("other")
        assert "not among the hosts" in refused["error"]["message"]


async def test_rows_that_fail_cost_their_neighbours_nothing(
    app: App, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueued, "BATCH", 2)
    monkeypatch.setattr(enqueued, "MOST_FAILED", 3)
    taken = [await app.submit("report") for _ in range(3)]  # at another door
    too_long = [f"{at}{secrets.token_hex(1_343)}" for at in range(2)]  # for the index of keys
    with psycopg.connect(url) as connection:
        for id in taken + too_long:
            connection.execute("INSERT INTO onward.enqueued VALUES (%s, %s)", (id, BODY))
        fine = [enqueue(connection, "report") for _ in range(3)]
    for id in fine:
        assert (await there(app, id))["state"] == "queued"
    await wait_until(partial(_left_are, url, {*taken, *too_long}))
    assert app.onward.dispatcher.troubles.in_trouble() == {}


async def test_a_row_that_failed_is_tried_again(
    app: App, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueued, "RETRY_S", 0)
    submit, tries = app.onward.dispatcher.submit, []

    async def fails_once(*given: Any, **more: Any) -> Any:
        tries.append(given)
        if len(tries) == 1:
            raise RuntimeError("a passing fault")
        return await submit(*given, **more)

    monkeypatch.setattr(app.onward.dispatcher, "submit", fails_once)
    await put(url, {"x": BODY})
    assert (await there(app, "x"))["state"] == "queued"


async def _left_are(url: str, ids: set[str]) -> bool:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        rows = await (await connection.execute("SELECT id FROM onward.enqueued")).fetchall()
    return {id for (id,) in rows} == ids


async def test_a_row_over_1_mib_is_a_dead_letter_and_its_body_is_never_read(
    app: App, url: str
) -> None:
    most = '{"type": "report", "payload": "%s"}'
    room = (1 << 20) - len(most % "")
    await put(url, {"fits": most % ("x" * room), "large": most % ("x" * (room + 1))})
    await wait_until(partial(_none_left, url))
    assert (await app.task("fits"))["state"] == "queued"
    large = await app.task("large")
    assert (large["state"], large["payload"]) == ("dead", None)
    assert "larger than 1 MiB" in large["error"]["message"]


async def test_a_payload_over_1_mib_is_refused_at_once(url: str) -> None:
    with psycopg.connect(url) as connection, pytest.raises(ValueError, match="larger than 1 MiB"):
        enqueue(connection, "report", "x" * (1 << 20))
