"""One private Postgres for a measurement: on a disk, synced, an empty database for every round."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from tests.servers import PostgresServer

from bench.processes import ContenderFailed


class Postgres:
    look_s = 0.05
    used = None  # pages of a database say little about a task

    def __init__(self, server: PostgresServer) -> None:
        self._admin = server.admin
        self.url = server.url("bench")

    def empty(self) -> None:
        self._admin.execute("DROP DATABASE IF EXISTS bench WITH (FORCE)")
        self._admin.execute("CREATE DATABASE bench TEMPLATE template0")
        self._admin.execute("CHECKPOINT")  # what the last one wrote is not paid for by the next

    def count(self, what: str) -> int:
        with psycopg.connect(self.url, autocommit=True) as connection:
            found = connection.execute(f"SELECT count(*) FROM {what}").fetchone()  # noqa: S608
        assert found is not None
        return int(found[0])


@contextmanager
def serving(folder: Path) -> Iterator[Postgres]:
    folder.parent.chmod(0o711)  # if it runs as nobody, it must get there
    folder.mkdir()
    try:
        server = PostgresServer("postgres15", durable=True, folder=folder)
    except (AssertionError, pytest.skip.Exception) as missing:
        raise ContenderFailed(str(missing)) from None
    try:
        yield Postgres(server)
    finally:
        server.close()
