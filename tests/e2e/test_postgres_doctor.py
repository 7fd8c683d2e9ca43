"""`onward doctor` before a real Postgres: what it finds, and what to do about it."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from onward.cli import postgres_checkup
from onward.cli.checkup import BAD, GOOD, ODD, Finding
from onward.cli.postgres_checkup import examine_postgres
from onward.cli.terminal import FAILED
from onward.core.errors import LedgerUnavailable
from onward.ledgers.postgres import PostgresBackend, database
from onward.settings import Settings
from tests.contract.driver import Driver
from tests.e2e.shell import run
from tests.processes import free_port
from tests.servers import PostgresServer
from tests.support import poll_until

pytestmark = [pytest.mark.slow, pytest.mark.contract("N-1")]


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer("postgres15", durable=True)
    yield server
    server.close()


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.fresh_url()


def look(url: str) -> dict[str, Finding]:
    return {finding.about: finding for finding in examine_postgres(Settings(ledger=url))}


def execute(url: str, statement: str, *values: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement, values or None)


def make_ledger(url: str) -> None:
    async def use() -> None:
        backend = PostgresBackend(url)
        await Driver(backend).submit()
        await backend.close()

    asyncio.run(use())


def test_a_sound_postgres_has_nothing_to_mend(url: str) -> None:
    found = look(url)
    assert {finding.mark for finding in found.values()} == {GOOD}, {
        name: finding.found for name, finding in found.items()
    }
    assert found.keys() == {
        "ledger",
        "connection",
        "role",
        "encoding",
        "durability",
        "connections",
        "vacuum",
        "transactions",
        "postgres clock",
        "schema",
    }
    assert "Postgres 15" in found["ledger"].found
    assert found["schema"].found == "onward will be made"
    with psycopg.connect(url) as connection:
        made = connection.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'onward'")
        assert made.fetchone() == (0,), "a doctor leaves nothing behind"
    make_ledger(url)
    assert look(url)["schema"].found == "onward, version 1"


@pytest.mark.parametrize(
    ("setting", "value", "about", "mark", "says"),
    [
        ("fsync", "off", "durability", BAD, "may destroy the database"),
        ("full_page_writes", "off", "durability", BAD, "may destroy the database"),
        ("synchronous_commit", "off", "durability", ODD, "up to a second"),
        ("autovacuum", "off", "vacuum", BAD, "dead rows stay"),
    ],
)
def test_each_weakness_is_named_with_its_cure(
    postgres: PostgresServer, url: str, setting: str, value: str, about: str, mark: str, says: str
) -> None:
    with changed(postgres, setting, value):
        finding = look(url)[about]
    assert (finding.mark, says in finding.found) == (mark, True), finding.found
    assert finding.todo


@contextmanager
def changed(postgres: PostgresServer, setting: str, value: str) -> Iterator[None]:
    def shown() -> Any:
        with psycopg.connect(postgres.url("postgres")) as connection:
            row = connection.execute(f"SHOW {setting}").fetchone()
        return row and row[0]

    before = shown()
    postgres.admin.execute(f"ALTER SYSTEM SET {setting} = {value}")
    postgres.admin.execute("SELECT pg_reload_conf()")
    poll_until(lambda: shown() == value)
    try:
        yield
    finally:
        postgres.admin.execute(f"ALTER SYSTEM RESET {setting}")
        postgres.admin.execute("SELECT pg_reload_conf()")
        poll_until(lambda: shown() == before)


def test_a_transaction_that_stays_open_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_checkup, "OPEN_ODD_S", 0)
    with psycopg.connect(url, application_name="report") as lasting:
        lasting.execute("SELECT 1")
        finding = look(url)["transactions"]
        assert (finding.mark, "report" in finding.found) == (ODD, True), finding.found
        assert f"pg_terminate_backend({lasting.info.backend_pid})" in finding.todo


def test_dead_rows_that_stay_are_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_ledger(url)
    execute(url, "ALTER TABLE onward.document SET (autovacuum_enabled = off)")
    fill = "INSERT INTO onward.document SELECT 'x', n::text, '', 1 FROM generate_series(1, 50) n"
    execute(url, fill)
    execute(url, "DELETE FROM onward.document WHERE kind = 'x'")
    monkeypatch.setattr(postgres_checkup, "DEAD_ROWS", 10)
    finding = poll_until(lambda: look(url)["vacuum"] if look(url)["vacuum"].mark == ODD else None)
    assert "onward.document has 50 dead rows" in finding.found
    assert "VACUUM (ANALYZE) onward.document" in finding.todo


def test_too_few_connections_are_noticed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_checkup, "SERVERS", 50)
    assert look(url)["connections"].mark == ODD
    monkeypatch.setattr(database, "CONNECTIONS", 200)
    assert look(url)["connections"].mark == BAD


def test_a_user_who_may_not_make_the_schema_is_told(url: str) -> None:
    execute(url, "DROP ROLE IF EXISTS narrow; CREATE ROLE narrow LOGIN")
    finding = look(url.replace("onward@", "narrow@"))["schema"]
    assert (finding.mark, finding.todo) == (BAD, "GRANT CREATE ON DATABASE … TO narrow")


def test_a_newer_ledger_is_left_alone(url: str) -> None:
    make_ledger(url)
    execute(url, "UPDATE onward.ledger SET version = 99")
    assert look(url)["schema"].mark == BAD


def test_a_reader_that_fell_silent_is_named(url: str) -> None:
    make_ledger(url)
    seen = '{"seen_at":0,"checked_at":0,"silent_ms":36000000}'
    insert = "INSERT INTO onward.document VALUES (%s, 'lost', %s, 1)"
    execute(url, insert, "cursor", '""')
    execute(url, insert, "reader", seen)
    assert "onward log forget lost" in look(url)["log"].todo


async def pooler(url: str, folder: Path) -> asyncio.Server:
    """As a pooler does: another process's number in the greeting than that of who works."""
    behind = f"{parse_qs(urlsplit(url).query)['host'][0]}/.s.PGSQL.5432"

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_unix_connection(behind)

        async def forward(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
            while data := await source.read(65_536):
                at = data.find(b"K\0\0\0\x0c")
                if source is there_reader and at >= 0:
                    data = data[: at + 5] + b"\0\0\0\1" + data[at + 9 :]
                to.write(data)
            to.close()

        await asyncio.gather(forward(reader, there_writer), forward(there_reader, writer))

    return await asyncio.start_unix_server(meet, folder / ".s.PGSQL.5432")


async def test_a_pooler_is_refused_in_plain_words(url: str) -> None:
    # The socket's path must be short.
    with tempfile.TemporaryDirectory() as folder:
        async with await pooler(url, Path(folder)):
            through = f"postgresql://onward@/{urlsplit(url).path[1:]}?host={folder}"
            finding = (await asyncio.to_thread(look, through))["connection"]
            assert (finding.mark, "pgbouncer" in finding.found) == (BAD, True)
            backend = PostgresBackend(through)
            with pytest.raises(LedgerUnavailable, match="pgbouncer"):
                await Driver(backend).submit()
            await backend.close()


def test_one_that_does_not_answer_is_named_without_its_password(tmp_path: Path) -> None:
    ledger = f"postgresql://onward:secret@127.0.0.1:{free_port()}/onward"
    done = run("doctor", "--ledger", ledger, "--json", cwd=tmp_path)
    assert done.returncode == FAILED
    (finding,) = [each for each in json.loads(done.stdout) if each["about"] == "ledger"]
    assert "does not answer" in finding["found"]
    assert "start Postgres" in finding["todo"]
    assert "secret" not in done.stdout + done.stderr


def test_who_is_not_let_in_is_told(url: str) -> None:
    finding = look(url.replace("onward@", "nobody_known@"))["ledger"]
    assert (finding.mark, "refuses us" in finding.found) == (BAD, True), finding.found
