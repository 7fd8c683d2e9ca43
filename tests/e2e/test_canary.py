"""The text of a token, and its secret alone, are with its caller and nowhere else: in no log, no
ledger, dump, backup, metric, error, trace, process title, audit, page or document.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from websockets import Subprotocol
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from onward import Client, Worker
from onward.client.errors import ProblemError
from tests.client.conftest import served
from tests.processes import HTTP, Process, Server, serving
from tests.push.conftest import PlainWorker
from tests.servers import RedisServer, shared_postgres
from tests.support import poll_until, wait_until
from tests.tracing.collector import collecting

UNKNOWN = "onward_0123456789ab_" + "5eed" * 16
WORKER = """
from onward import Worker
worker = Worker()

@worker.service
async def greet(name: str) -> str:
    if name == "nobody":
        raise ValueError("no such name")
    return f"hello {name}"
"""


def secrets_of(*tokens: str) -> list[str]:
    """Each token, its secret, and halves of that: a text that is cut short is a leak as well."""
    found = []
    for token in tokens:
        secret = token.rpartition("_")[2]
        found += [token, secret[:24], secret[-24:]]
    return found


class Ledger:
    """A ledger, and everything that is on its disk."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self._folder = kind, folder
        self._redis = RedisServer("valkey", "--appendonly", "yes") if kind == "redis" else None
        if self._redis is not None:
            self.url = self._redis.url
        elif kind == "postgres":
            self.url = shared_postgres("postgres18").fresh_url()
        else:
            self.url = f"sqlite:///{folder}/ledger.db"

    def dump(self) -> bytes:
        if self._redis is not None:
            self._redis.client.save()
            files = [path for path in self._redis.folder.rglob("*") if path.is_file()]
            return b"".join(path.read_bytes() for path in files)
        if self.kind == "postgres":
            with psycopg.connect(self.url) as connection:
                tables = connection.execute(
                    "SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables"
                    " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
                ).fetchall()
                rows = [
                    connection.execute(f"SELECT t::text FROM {table} t").fetchall()  # noqa: S608
                    for (table,) in tables
                ]
            return repr(rows).encode()
        return b"".join(path.read_bytes() for path in self._folder.glob("ledger.db*"))

    def close(self) -> None:
        if self._redis is not None:
            self._redis.close()


def onward(folder: Path, *arguments: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "onward.cli", *arguments],
        cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, timeout=100,
        check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def call_every_way(server: Server, tokens: dict[str, str]) -> str:
    """What a server answers to good and bad tokens, at each door and in each place for a token."""
    said = []
    paths = ("/api/v2/me", "/api/v1/tasks/", "/v1/models", "/tasks", "/api/task/x", "/metrics")
    documents = ("/openapi.json", "/ui", "/health", "/api/v2/audit", "/api/v2/keys", "/api/v2/log")
    for token in (*tokens.values(), UNKNOWN):
        for path in (*paths, *documents):
            for headers in (bearer(token), {"x-api-key": token}, {"cookie": f"onward_key={token}"}):
                answer = HTTP.get(f"{server.url}{path}", headers=headers)
                said.append(f"{answer.headers} {answer.text}")
        said.append(HTTP.get(f"{server.url}/api/v2/me?token={token}").text)
        said.append(HTTP.get(f"{server.url}/api/v2/{token}").text.replace(token, "…"))
        said.append(HTTP.post(f"{server.url}/api/v2/login", json={"token": token}).text)
        HTTP.cookies.clear()
        said.append(HTTP.post(f"{server.url}/api/v2/logout", headers=bearer(token)).text)
        said.append(HTTP.post(f"{server.url}/mcp", json={}, headers=bearer(token)).text)
        for path in ("/ws/worker", "/ws/notifications/s"):
            url = f"{server.url.replace('http', 'ws')}{path}"
            offered = [Subprotocol("onward"), Subprotocol(f"bearer.{token}")]
            try:
                with connect(url, subprotocols=offered) as socket:
                    socket.send(json.dumps({"type": "nonsense", "token": 1}))
                    said.append(str(socket.recv(timeout=30)))
            except (InvalidStatus, ConnectionError, EOFError, TimeoutError) as error:
                said.append(str(error))
    return "".join(said)


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(request.param, tmp_path)
    yield ledger
    ledger.close()


@contextmanager
def working(folder: Path, env: dict[str, str]) -> Iterator[list[Process]]:
    """A worker over a socket and one over HTTP."""
    (folder / "jobs.py").write_text(WORKER)
    command = (sys.executable, "-m", "onward.cli", "worker", str(folder / "jobs.py:worker"))
    workers: list[Process] = []
    try:
        for via in ("socket", "http"):
            log = folder / f"{via}.log"
            workers.append(Process(*command, "--via", via, env=env, log=log))
            poll_until(log.read_text, holds=lambda lines: "greet" in lines)
        yield workers
    finally:
        for worker in workers:
            worker.kill()


def make_keys(server: Server, root: str) -> dict[str, str]:
    tokens, url = {"root": root}, f"{server.url}/api/v2/keys"
    for name, scope in {"web": "submit", "box": "work", "gone": "read"}.items():
        made = HTTP.post(url, json={"name": name, "scopes": [scope]}, headers=bearer(root))
        tokens[name] = made.json()["token"]
    HTTP.delete(f"{url}/{tokens['gone'].split('_')[1]}", headers=bearer(root))
    return tokens


def called_back(server: Server, token: str) -> str:
    """All that a callback carries: its headers and its body."""
    hook = PlainWorker(lambda _: None)
    try:
        body = {"type": "greet", "payload": {"name": "Bob"}, "callback_url": f"{hook.url}/done"}
        HTTP.post(f"{server.url}/api/v2/tasks", json=body, headers=bearer(token))
        poll_until(lambda: hook.calls)
    finally:
        hook.stop()
    return "".join(f"{call.headers} {call.body}" for call in hook.calls)


def backed_up(folder: Path, ledger: str) -> bool:
    onward(folder, "db", "backup", "backup.gz", "--ledger", ledger)
    return (folder / "backup.gz").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.contract("K-1", "K-3", "K-8")
def test_a_token_is_nowhere_but_with_its_caller(tmp_path: Path, ledger: Ledger) -> None:
    directly = ("--ledger", ledger.url)
    root = onward(tmp_path, "keys", "create", "root", "--scope", "admin", *directly).split()[0]
    with (
        collecting() as collector,
        serving(
            tmp_path,
            ledger=ledger.url,
            ONWARD_LOG_LEVEL="debug",
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        ) as server,
    ):
        env, tokens = {"ONWARD_URL": server.url}, make_keys(server, root)
        with working(tmp_path, {**env, "ONWARD_KEY": tokens["box"]}) as workers:
            web, kept = {**env, "ONWARD_KEY": tokens["web"]}, []
            for name in ("Ada", "nobody"):
                options = (json.dumps({"name": name}), "--wait", "--max-retries", "0")
                kept.append(onward(tmp_path, "submit", "greet", *options, **web))
            assert "hello Ada" in kept[0]
            kept.append(called_back(server, tokens["web"]))
            assert "hello Bob" in kept[-1]
            kept.append(call_every_way(server, tokens))
            commands = [("task", "list"), ("keys", "list"), ("doctor",)]
            for key in (UNKNOWN, tokens["gone"], tokens["web"]):
                kept += [onward(tmp_path, *one, "--key", key, **env) for one in commands]
            kept.append(onward(tmp_path, "doctor", *directly, ONWARD_KEY=root, **env))
            running = [server.popen.pid, *(worker.popen.pid for worker in workers)]
            kept += [Path(f"/proc/{pid}/cmdline").read_text() for pid in running]
            poll_until(lambda: collector.spans)
            kept.append(repr([vars(span) for span in collector.spans]))
    # A Redis is backed up while no server writes to it: this one's lease ends first.
    poll_until(lambda: backed_up(tmp_path, ledger.url))
    kept.append(gzip.decompress((tmp_path / "backup.gz").read_bytes()).decode())
    everything = ledger.dump() + "".join(kept).encode()
    everything += b"".join(path.read_bytes() for path in tmp_path.glob("*.log"))
    for there in (b"key.create", b'"refused"', b"onward_refused_total", b'"listening"'):
        assert there in everything, "what could hold a token is among what is looked at"
    found = [text for text in secrets_of(*tokens.values(), UNKNOWN) if text.encode() in everything]
    assert found == []


async def test_no_log_of_the_sdk_at_its_most_talkative_has_a_token(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in list(logging.root.manager.loggerDict):
        if not name.startswith("onward"):
            caplog.set_level(logging.DEBUG, name)
    async with served(admin_key=UNKNOWN) as url:
        worker = Worker(url, key=UNKNOWN)

        @worker.service
        async def greet(name: str) -> str:
            return name

        serving = asyncio.create_task(worker.serve())
        await wait_until(lambda: worker.connected)
        async with Client(url, key=UNKNOWN) as client:
            task = await client.submit("greet", {"name": "Ada"})
            assert (await client.wait(task.id, timeout_ms=30_000)).result == "Ada"
        async with Client(url, key=UNKNOWN[:-1]) as client:
            with pytest.raises(ProblemError) as refused:
                await client.get("a")
        serving.cancel()
        await asyncio.wait([serving])
    assert "greet" in caplog.text
    said = caplog.text + "".join(traceback.format_exception(refused.value)) + repr(refused.value)
    assert [text for text in secrets_of(UNKNOWN) if text in said] == []
    for shown in (worker, client):
        assert UNKNOWN not in f"{shown!r} {shown}"
