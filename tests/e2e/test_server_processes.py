"""`onward serve --processes N`: several servers on one port, replaced and ended by their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from tests.processes import HTTP, Server, free_port
from tests.servers import fresh_postgres_url, fresh_url
from tests.support import poll_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LEDGERS = ("valkey", "postgres15")


def fresh(kind: str) -> str:
    return fresh_postgres_url(kind) if kind.startswith("postgres") else fresh_url(kind)


def two_ports() -> int:
    """The first of two that follow each other."""
    first = free_port()
    while free_port() != first + 1:
        first = free_port()
    return first


def children(of: int) -> Mapping[int, str]:
    """By process id, the state; one that ended and is not yet reaped is no child any more."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == of and state != "Z":
                found[int(path.parent.name)] = state
    return found


def lives(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def server_at(port: int) -> str | None:
    """Which process answers: its request ids begin with a number of its own."""
    with suppress(httpx2.TransportError):
        response = HTTP.get(f"http://127.0.0.1:{port}/ready")
        return response.headers["x-request-id"][:8] if response.status_code == 200 else None
    return None


class Two:
    """Two processes on one port, and on one port each; with the built-in worker in both."""

    def __init__(self, folder: Path, ledger: str) -> None:
        self.first = two_ports()
        self.server = Server(
            folder,
            up=True,
            ledger=ledger,
            ONWARD_PROCESSES=2,
            ONWARD_PROCESS_PORT=self.first,
            ONWARD_LEASE_MS=2_000,
            ONWARD_ARCHIVE="",
        )

    def names(self) -> tuple[str | None, str | None]:
        return server_at(self.first), server_at(self.first + 1)

    def wait_ready(self) -> tuple[str | None, str | None]:
        self.server.wait_ready(120)
        return poll_until(self.names, 120, holds=all)

    def children(self) -> Mapping[int, str]:
        return children(self.server.popen.pid)

    def submit(self, key: str) -> str:
        """Sent again where the connection breaks, as a careful caller does it."""

        def once() -> str | None:
            with suppress(httpx2.TransportError):
                response = HTTP.post(
                    f"{self.server.url}/api/v2/tasks",
                    json={"type": "echo", "payload": {"key": key}},
                    headers={"idempotency-key": key},
                )
                assert response.status_code in (200, 201, 202), response.text
                return str(response.json()["id"])
            return None

        return poll_until(once)

    def ended(self, task: str) -> str:
        def state() -> str | None:
            with suppress(httpx2.TransportError):
                return str(HTTP.get(f"{self.server.url}/api/v2/tasks/{task}").json()["state"])
            return None

        return poll_until(state, holds=("succeeded", "failed", "dead").__contains__)


@contextmanager
def two(folder: Path, ledger: str) -> Iterator[Two]:
    made = Two(folder, ledger)
    pids: set[int] = set()
    try:
        made.wait_ready()
        yield made
        pids = {*made.children()}
    finally:
        pids |= {*made.children()}
        made.server.kill()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("kind", LEDGERS)
def test_a_process_that_is_killed_is_replaced_and_submissions_go_on(
    tmp_path: Path, kind: str
) -> None:
    with two(tmp_path, fresh(kind)) as pair:
        names, before = pair.names(), {*pair.children()}
        assert len({*names}) == len(before) == 2
        tasks = [pair.submit(f"before-{number}") for number in range(10)]
        os.kill(max(before), signal.SIGKILL)
        tasks += [pair.submit(f"after-{number}") for number in range(10)]
        now = poll_until(pair.names, 120, holds=lambda now: all(now) and now != names)
        assert len({*now} & {*names}) == 1, "one is another process, one has stayed"
        assert {pair.ended(task) for task in tasks} == {"succeeded"}
        assert len({*pair.children()} - before) == 1

        pids = {*pair.children()}
        pair.server.popen.send_signal(signal.SIGTERM)  # to the parent alone
        assert pair.server.popen.wait(120) == 0
        assert not [pid for pid in pids if lives(pid)]
        log = pair.server.log.read_text()
        assert log.count('"stopping"') == 2
        assert "Traceback" not in log


def test_a_parent_that_is_killed_leaves_no_server(tmp_path: Path) -> None:
    with two(tmp_path, fresh("valkey")) as pair:
        pids = {*pair.children()}
        pair.server.popen.kill()
        poll_until(lambda: not [pid for pid in pids if lives(pid)])
        assert server_at(pair.server.port) is None


def serve(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "onward.cli", "serve", "--port", str(free_port()), *options],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_file_is_one_servers(tmp_path: Path) -> None:
    refused = serve("--processes", "2", "--ledger", f"sqlite:///{tmp_path}/ledger.db")
    assert refused.returncode == 2
    assert "--processes 2 needs a ledger that processes can share" in refused.stderr
    assert "--processes 1" in refused.stderr


def test_what_keeps_all_from_starting_is_reported_once(tmp_path: Path) -> None:
    away = f"unix://{tmp_path}/nothing.sock"
    refused = serve("--processes", "3", "--ledger", away)
    assert refused.returncode == 4
    assert refused.stderr.count("the server could not start") == 1
