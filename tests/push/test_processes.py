"""The shipped worker as a process of its own, killed, stopped and outlived (S4-5, N-1)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.processes import HTTP, Process, Server, free_port, serving
from tests.support import poll_until

pytestmark = pytest.mark.slow

EXEC_WORKER = (sys.executable, "-m", "onward.cli", "exec-worker", "--json")


class ExecWorker(Process):
    def __init__(self, folder: Path, server: str, url: str, *more: str) -> None:
        self.log = folder / f"worker-{time.monotonic_ns()}.log"
        env = {"REGISTRY_URL": server, "WORKER_URL": url}
        super().__init__(*EXEC_WORKER, *more, env=env, log=self.log)

    def registered(self) -> dict[str, Any]:
        """What it printed when it was registered."""
        lines: list[str] = []

        def said() -> bool:
            lines[:] = [line for line in self.log.read_text().splitlines() if line[:1] == "{"]
            return bool(lines) or self.popen.poll() is not None

        poll_until(said)
        assert lines, self.log.read_text()
        found: dict[str, Any] = json.loads(lines[-1])
        return found


@contextmanager
def working(folder: Path, server: Server, url: str, *more: str) -> Iterator[ExecWorker]:
    worker = ExecWorker(folder, server.url, url, *more)
    try:
        yield worker
    finally:
        worker.kill()


def run(server: Server, type: str, payload: Any) -> Any:
    body = {"type": type, "payload": payload}
    answer = HTTP.post(f"{server.url}/api/v2/tasks?wait_ms=20000", json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()["result"]


def listed(server: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = HTTP.get(f"{server.url}/workers/list").json()
    return found


@pytest.mark.contract("S4-4", "S4-5", "N-1", "R-9")
def test_the_shipped_worker_registers_the_port_it_really_has(tmp_path: Path) -> None:
    with serving(tmp_path) as server, socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = f"http://127.0.0.1:{other.getsockname()[1]}"
        with working(tmp_path, server, taken, "--id", "w1") as worker:
            said = worker.registered()
            assert said["url"] != taken
            assert [(one["id"], one["url"]) for one in listed(server)] == [("w1", said["url"])]
            assert run(server, "sum", {"input": [1, 2, 3], "params": {}}) == 6
            assert run(server, "transform", {"input": "ada", "params": {"op": "upper"}}) == "ADA"
            assert run(server, "transform", {"input": 2, "params": {"mul": 2.0}}) == 4
            assert run(server, "route", {"input": 0, "params": {"action": "goB"}}) == {
                "action": "goB"
            }
            direct = HTTP.post(f"{said['url']}/exec/sum", json={"input": [1], "params": {}})
            assert direct.json() == {"result": 1, "error": ""}

            assert worker.stop() == 0
            assert listed(server) == []


@pytest.mark.contract("S4-5", "S4-11")
def test_a_killed_worker_is_passed_over_and_a_killed_server_finds_its_workers_again(
    tmp_path: Path,
) -> None:
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    port = free_port()
    url = f"http://127.0.0.1:{free_port()}"
    other_url = f"http://127.0.0.1:{free_port()}"
    with (
        serving(tmp_path, port=port, ledger=ledger) as server,
        working(tmp_path, server, url, "--id", "one") as one,
        working(tmp_path, server, other_url, "--id", "two") as two,
    ):
        one.registered()
        two.registered()
        one.kill()
        assert [run(server, "sum", [number, 1]) for number in range(4)] == [1, 2, 3, 4]
        server.kill()
        with serving(tmp_path, port=port, ledger=ledger) as again:
            assert {worker["id"] for worker in listed(again)} == {"one", "two"}
            assert run(again, "sum", [2, 2]) == 4
            assert two.stop() == 0


@pytest.mark.contract("S4-5")
def test_a_worker_registers_anew_with_a_server_that_forgot_it(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{free_port()}"
    with (
        serving(tmp_path, port=port) as server,
        working(tmp_path, server, url, "--id", "w1") as worker,
    ):
        worker.registered()
        server.kill()
        for file in tmp_path.glob("ledger.db*"):
            file.unlink()
        with serving(tmp_path, port=port) as again:
            poll_until(lambda: bool(listed(again)))
            assert run(again, "sum", [1, 1]) == 2


@pytest.mark.contract("N-1")
def test_a_refused_url_ends_it_with_the_reason(tmp_path: Path) -> None:
    with serving(tmp_path, ONWARD_WORKER_HOSTS="10.0.0.0/8") as server:
        env = {**os.environ, "REGISTRY_URL": server.url, "WORKER_URL": "http://127.0.0.1:0"}
        done = subprocess.run(EXEC_WORKER, env=env, capture_output=True, text=True, timeout=30)
        assert done.returncode == 4
        assert "ONWARD_WORKER_HOSTS" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.contract("N-1", "R-9")
@pytest.mark.parametrize(
    ("name", "value"),
    [("WORKER_URL", "nonsense"), ("REGISTRY_URL", "ftp://x"), ("WORKER_TTL_MS", "soon")],
)
def test_a_setting_that_cannot_be_read_is_named(name: str, value: str) -> None:
    env = {**os.environ, name: value}
    done = subprocess.run(EXEC_WORKER, env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert name in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.contract("N-1", "N-7")
def test_services_of_an_own_module_are_called_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from onward import Worker\n\nworker = Worker(id='mine')\n\n\n"
        "@worker.service\nasync def greet(name: str) -> str:\n    return f'hello {name}'\n"
    )
    with serving(tmp_path) as server:
        log = tmp_path / "mine.log"
        worker = Process(
            *(sys.executable, "-m", "onward.cli", "worker", str(tmp_path / "mine.py")),
            *("--via", "http", "--listen", f"http://127.0.0.1:{free_port()}"),
            *("--server", server.url),
            log=log,
        )
        try:
            poll_until(lambda: bool(listed(server)) or worker.popen.poll() is not None)
            assert run(server, "greet", {"name": "Ada"}) == "hello Ada", log.read_text()
            worker.signal(signal.SIGTERM)
            assert worker.popen.wait(60) == 0
        finally:
            worker.kill()
