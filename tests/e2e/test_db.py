"""`onward db …` as a user runs it: beside a server, and without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import apsw
import pytest

from onward.cli.terminal import FAILED, OK, REFUSED
from tests.e2e.shell import run
from tests.processes import HTTP, Server, serving
from tests.servers import fresh_postgres_url, fresh_url

pytestmark = pytest.mark.slow


def submit(server: Server, count: int) -> list[str]:
    bodies = [{"type": "chore", "payload": {"n": n}} for n in range(count)]
    return [HTTP.post(f"{server.url}/api/v2/tasks", json=body).json()["id"] for body in bodies]


def found(server: Server, ids: list[str]) -> set[Any]:
    return {HTTP.get(f"{server.url}/api/v2/tasks/{id}").json()["state"] for id in ids}


def test_a_backup_is_taken_beside_a_server_and_restored_elsewhere(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        ids = submit(server, 20)
        ledger = f"sqlite:///{server.file}"
        done = run("db", "backup", "a.gz", "--ledger", ledger, cwd=tmp_path)
        assert done.returncode == OK, done.stderr
        refused = run("db", "copy", ledger, "sqlite:///other.db", cwd=tmp_path)
        assert refused.returncode == REFUSED
        assert "servers run on it" in refused.stderr
    elsewhere = fresh_postgres_url("postgres15")
    done = run("db", "restore", "a.gz", "--ledger", elsewhere, "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["task"] == 20, done.stderr
    with serving(tmp_path, ledger=elsewhere) as server:
        assert found(server, ids) == {"queued"}


def test_a_ledger_moves_from_redis_to_postgres(tmp_path: Path) -> None:
    redis, postgres = fresh_url("redis7"), fresh_postgres_url("postgres18")
    with serving(tmp_path, ledger=redis) as server:
        ids = submit(server, 20)
        backup = run("db", "backup", "a.gz", "--ledger", redis, cwd=tmp_path)
        assert "servers run on it" in backup.stderr
        server.stop()
    done = run("db", "copy", redis, postgres, cwd=tmp_path)
    assert done.returncode == OK, done.stderr
    assert run("db", "check", "--ledger", postgres, cwd=tmp_path).returncode == OK
    with serving(tmp_path, ledger=postgres) as server:
        assert found(server, ids) == {"queued"}


def test_what_is_broken_is_reported(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        submit(server, 3)
        server.stop()
    with apsw.Connection(str(server.file)) as connection:
        connection.execute("DELETE FROM event WHERE seq = 2")
    checked = run("db", "check", "--ledger", f"sqlite:///{server.file}", cwd=tmp_path)
    assert checked.returncode == FAILED
    assert "has 1 events, and 0 are there" in checked.stdout


@pytest.mark.parametrize("ledger", ["redis://127.0.0.1:1/0", "postgresql://127.0.0.1:1/x"])
def test_a_ledger_that_does_not_answer_is_named(ledger: str, tmp_path: Path) -> None:
    done = run("db", "backup", "a.gz", "--ledger", ledger, cwd=tmp_path)
    assert done.returncode == REFUSED
    assert "does not answer" in done.stderr
    assert list(tmp_path.iterdir()) == []
