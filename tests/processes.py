"""Real processes for the tests that kill them. Each ends with its test."""

from __future__ import annotations

import fcntl
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import httpx2

# One for all: each client that is made reads every certificate first, and we ask often.
HTTP = httpx2.Client(trust_env=False, verify=False, timeout=30)


def _block_of_ports() -> tuple[range, IO[str]]:
    """Below those that the system gives to callers, and of this test process alone.

    A port is asked for, let go, and bound again a second later: another suite beside this one must
    not take it meanwhile. The lock ends with the process.
    """
    for turn in range(100):
        block = (os.getpid() + turn) % 100
        lock = (Path(tempfile.gettempdir()) / f"onward-tests-ports-{block}").open("w")
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return range(10_000 + block * 200, 10_200 + block * 200), lock
        lock.close()
    raise AssertionError("a hundred test processes run already")


_PORTS, _LOCK = _block_of_ports()
_ports = itertools.cycle(_PORTS)


def free_port() -> int:
    while True:
        port = next(_ports)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Process:
    def __init__(self, *command: str, env: dict[str, str] | None = None, log: Path) -> None:
        with log.open("ab") as out:
            self.popen = subprocess.Popen(
                command,
                env={**os.environ, **(env or {})},
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.popen.wait()

    def stop(self, timeout: float = 60) -> int:
        self.signal(signal.SIGTERM)
        return self.popen.wait(timeout)


class Server(Process):
    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        up: bool = False,
        ledger: str | None = None,
        **env: Any,
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.file = folder / "ledger.db"
        self.log = folder / "server.log"
        super().__init__(
            *(sys.executable, "-m", "onward.cli", "up" if up else "serve"),
            *("--port", str(self.port), "--ledger", ledger or f"sqlite:///{self.file}"),
            env={name: str(value) for name, value in env.items()},
            log=self.log,
        )

    def wait_ready(self, timeout: float = 60) -> Server:
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            with suppress(httpx2.TransportError):
                if HTTP.get(f"{self.url}/ready", timeout=2).status_code == 200:
                    return self
            if self.popen.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"the server did not start:\n{self.log.read_text()[-3000:]}")


@contextmanager
def serving(folder: Path, **options: Any) -> Iterator[Server]:
    server = Server(folder, **options)
    try:
        yield server.wait_ready()
    finally:
        server.kill()
