"""What `onward doctor` looks at: is everything there that a server needs, and who has what."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import re
import shutil
import socket
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from datetime import datetime
from importlib import metadata
from itertools import takewhile
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from onward.cli.terminal import plain
from onward.urls import shown

if TYPE_CHECKING:
    from onward.settings import Settings

Mark = Literal["✓", "!", "✗"]
GOOD: Mark = "✓"
ODD: Mark = "!"
BAD: Mark = "✗"

LOW_DISK, NO_DISK = 1 << 30, 100 << 20
ANSWER_S = 5.0
CHECK_S = 20
SKEW_ODD_S, SKEW_BAD_S = 1.0, 5.0
SILENT_H = 1
REDIS, POSTGRES = ("redis", "rediss", "unix"), ("postgresql", "postgres")  # schemes of URLs


class Finding:
    def __init__(self, mark: Mark, about: str, found: str, todo: str = "") -> None:
        self.mark = mark
        self.about = about
        self.found = found
        self.todo = todo


def examine(ledger: str | None, server: str | None, *, repair: bool = False) -> Iterator[Finding]:
    from pydantic import ValidationError

    from onward.core.errors import our_words
    from onward.settings import Settings, as_given

    yield _python()
    yield _packages()
    yield _sqlite()
    try:
        settings = Settings() if ledger is None else Settings(ledger=ledger)
    except ValidationError as error:
        for wrong in error.errors(include_url=False):
            first, *rest = [str(part) for part in wrong["loc"]] or ["settings"]
            name = ".".join([as_given(first), *rest])
            found = f"{shown(repr(wrong['input']))}: {our_words(wrong['msg'])}"
            yield Finding(BAD, name, found, f"correct {name}")
        return
    answer = _ask(server, settings)
    yield _encryption(settings)
    kind = settings.ledger.partition("://")[0]
    if repair and kind not in REDIS:
        yield Finding(ODD, "repair", "only tasks of a Redis ledger are repaired")
    if kind in REDIS:
        from onward.cli.redis_checkup import examine_redis

        yield from examine_redis(settings, repair=repair)
    elif kind in POSTGRES:
        from onward.cli.postgres_checkup import examine_postgres

        yield from examine_postgres(settings)
    else:
        yield from _ledger(settings.ledger, served=isinstance(answer, ServerReply))
    yield from _server(server, settings, answer)


def _python() -> Finding:
    return Finding(GOOD, "python", f"{platform.python_version()} at {sys.executable}")


def _packages() -> Finding:
    missing = []
    for requirement in metadata.requires("onward") or ():
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        if ";" in requirement:
            continue  # only on some platforms
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return Finding(BAD, "packages", f"missing: {', '.join(missing)}", "make install")
    shown = ("onward", "fastapi", "uvicorn", "websockets", "httpx2")
    return Finding(
        GOOD, "packages", ", ".join(f"{name} {metadata.version(name)}" for name in shown)
    )


def _sqlite() -> Finding:
    import apsw

    from onward.ledgers.sqlite.database import OLDEST

    version = apsw.sqlite_lib_version()
    if tuple(int(part) for part in version.split(".")) < OLDEST:
        needed = ".".join(str(part) for part in OLDEST)
        return Finding(BAD, "sqlite", f"{version}, {needed} is needed", "pip install -U apsw")
    return Finding(GOOD, "sqlite", version)


def _encryption(settings: Settings) -> Finding:
    from onward.core.errors import Invalid
    from onward.ledgers.sealed.keyring import Keyring

    try:
        given = settings.encryption()
        keyring = Keyring.read(given["keys"], given["keys_file"])
    except Invalid as error:
        return Finding(BAD, "encryption", str(error), error.hint or "")
    if keyring is None:
        return Finding(GOOD, "encryption", "off: whatever is stored can be read in its files")
    opens = f", {', '.join(keyring.ids[1:])} only open" if keyring.ids[1:] else ""
    found = f"on, {keyring.sealing} seals{opens}"
    file = settings.encryption_keys_file
    if file is not None and Path(file).stat().st_mode & 0o077:
        return Finding(ODD, "encryption", f"{found}; others may read {file}", f"chmod 600 {file}")
    return Finding(GOOD, "encryption", found)


def _ledger(url: str, *, served: bool) -> Iterator[Finding]:
    scheme, _, rest = url.partition("://")
    if scheme != "sqlite":
        yield Finding(
            BAD,
            "ledger",
            f"{shown(url)} is of no known kind",
            "use sqlite:///…, redis://… or postgresql://…",
        )
        return
    name = rest.removeprefix("/")
    if name in ("", ":memory:"):
        yield Finding(ODD, "ledger", "in memory: gone when the server stops")
        return
    path = Path(name).resolve()  # a link's lock is that of the file
    owner = _owner(path)
    if owner is not None:
        todo = "" if served else "no server answers: is it starting, or stuck?"
        yield Finding(GOOD if served else ODD, "ledger", f"{path} in use by {owner}", todo)
    else:
        yield _file(path)
    if path.exists():
        yield _sound(path)
        if path.stat().st_mode & 0o007:
            found = f"every user of this machine can open {path}"
            yield Finding(ODD, "mode", found, f"chmod o-rwx {path}*")
    yield from _readers(path)
    yield _disk(path)


def _sound(path: Path) -> Finding:
    """Whether its pages and indexes hang together; also while a server has it open."""
    import apsw

    until = monotonic() + CHECK_S
    todo = "stop the server, keep a copy of the file, then restore a backup (onward db restore)"
    try:
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
            # Not for ever: while this reads, the server's write-ahead log cannot be begun anew.
            connection.set_progress_handler(lambda: monotonic() > until, 10_000)
            faults = [str(row[0]) for row in connection.execute("PRAGMA quick_check(3)")]
    except apsw.InterruptError:
        found = f"not read to its end within {CHECK_S} s: no fault up to there"
        return Finding(GOOD, "integrity", found)
    except apsw.Error as error:
        return Finding(BAD, "integrity", str(error), todo)
    if faults != ["ok"]:
        return Finding(BAD, "integrity", "; ".join(faults), todo)
    return Finding(GOOD, "integrity", "quick_check finds no fault")


def _readers(path: Path) -> Iterator[Finding]:
    """A reader that is gone and still waited for keeps finished tasks in the file."""
    import apsw

    if not path.exists():
        return
    kept = "SELECT key, body FROM document WHERE kind = 'reader'"
    waited = "SELECT key FROM document WHERE kind = 'cursor'"
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        readers = connection.execute(kept).fetchall()
        names = [str(name) for (name,) in connection.execute(waited)]
    except apsw.Error:  # no ledger yet, or no ledger at all: that is reported elsewhere
        return
    finally:
        connection.close()
    yield from silent_readers(names, readers)


def silent_readers(names: Sequence[str], readers: Iterable[Sequence[Any]]) -> Iterator[Finding]:
    """Of those that are waited for; `readers`: each one's name, and when it was seen, as kept."""
    import msgspec

    silent = {name: msgspec.json.decode(body)["silent_ms"] for name, body in readers}
    for name in names:
        hours = silent.get(name, 0) / 3_600_000
        if hours >= SILENT_H:
            found = (
                f"{name} has not read the log for {hours:,.0f} h: finished tasks are kept for it"
            )
            todo = f"start it again; if it is gone for good: onward log forget {name}"
            yield Finding(ODD, "log", found, todo)


def _file(path: Path) -> Finding:
    import apsw

    if not path.exists():
        return _place(path)
    if not os.access(path, os.R_OK | os.W_OK):
        return Finding(BAD, "ledger", f"{path} cannot be written", f"chown or chmod {path}")
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        schema = connection.pragma("user_version")
        connection.close()
    except apsw.Error as error:
        todo = "name another file with --ledger, or restore a copy of this one"
        return Finding(BAD, "ledger", f"{path}: {error}", todo)
    return Finding(GOOD, "ledger", f"{path}, schema {schema}, {path.stat().st_size:,} bytes")


def _place(path: Path) -> Finding:
    above = _existing(path)
    if not os.access(above, os.W_OK):
        return Finding(BAD, "ledger", f"{above} cannot be written", f"chown or chmod {above}")
    return Finding(GOOD, "ledger", f"{path} will be made")


def _existing(path: Path) -> Path:
    return next(above for above in path.parents if above.exists())


def _owner(path: Path) -> str | None:
    """Who has the ledger open, by the lock that a server holds for as long as it lives."""
    name = "another process"
    try:
        with Path(f"{path}.lock").open() as lock:
            name = lock.read().strip() or name
            # Shared: two doctors do not take each other for a server.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
    except BlockingIOError:
        number = re.search(r"\d+", name)
        command = _command(number[0]) if number is not None else ""
        return f"{name} ({command})" if command else name
    except OSError:  # there is no lock: no server has ever opened it
        return None


def _command(process: str) -> str:
    try:
        line = Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return ""
    words = line.decode(errors="replace").split("\0")
    # Up to its options: they may hold passwords.
    return plain(" ".join(map(shown, takewhile(lambda word: word[:2] != "--", words))))[:80]


def _disk(path: Path) -> Finding:
    free = shutil.disk_usage(_existing(path)).free
    found = f"{free / (1 << 30):.1f} GiB free at {_existing(path)}"
    if free < NO_DISK:
        return Finding(BAD, "disk", found, "free some space: a full disk stops the ledger")
    if free < LOW_DISK:
        return Finding(ODD, "disk", found, "free some space soon")
    return Finding(GOOD, "disk", found)


class ServerReply:
    def __init__(self, body: dict[str, Any], skew_s: float | None) -> None:
        self.body = body
        self.skew_s = skew_s


def _url(server: str | None, settings: Settings) -> str:
    from onward.client.address import server_url

    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return server_url(server or f"http://{host}:{settings.port}")


def _ask(server: str | None, settings: Settings) -> ServerReply | Finding | None:
    """None: no server answers."""
    import asyncio

    from onward.client.errors import Unreachable
    from onward.client.http import Client
    from onward.errors import OnwardError

    async def ask() -> ServerReply:
        async with Client(_url(server, settings)) as client, asyncio.timeout(ANSWER_S):
            await client.health()  # the first answer pays for the connection
            asked = time()
            body = await client.health()
            return ServerReply(body, _skew(body, (asked + time()) / 2))

    try:
        return asyncio.run(ask())
    except Unreachable as error:
        return Finding(BAD, "server", error.what, error.hint or "") if error.tls else None
    except (OnwardError, TimeoutError):
        return None


def _skew(body: dict[str, Any], now: float) -> float | None:
    try:
        return datetime.fromisoformat(body["timestamp"]).timestamp() - now
    except (KeyError, TypeError, ValueError):
        return None


def _server(
    server: str | None, settings: Settings, answer: ServerReply | Finding | None
) -> Iterator[Finding]:
    url = _url(server, settings)
    if isinstance(answer, Finding):
        yield answer
        return
    if answer is None:
        yield _no_server(url, named=server is not None)
        return
    served = f"{shown(url)} is served by Onward {answer.body.get('version', '?')}"
    status = str(answer.body.get("status"))
    if status == "healthy":
        yield Finding(GOOD, "server", f"{served}, {status}")
    else:
        found = "; ".join([f"{served}, {status}", *_ill(answer.body.get("details") or {})])
        mark = ODD if status == "degraded" else BAD
        yield Finding(mark, "server", found, f"curl {shown(url)}/health")
    if answer.skew_s is not None:
        yield _clock(answer.skew_s)


def _ill(details: dict[str, dict[str, Any]]) -> Iterator[str]:
    for name, part in details.items():
        why = part.get("error") or part.get("warnings") or part.get("failing")
        if why is None and part.get("status") in ("open", "half_open"):
            why = f"{part['status']} for {', '.join(part['services'])}"
        if isinstance(why, dict):
            why = [f"{job} {how}" for job, how in why.items()]
        if why:
            yield f"{name}: {why if isinstance(why, str) else ', '.join(why)}"


def _no_server(url: str, *, named: bool) -> Finding:
    absent = Finding(BAD, "server", f"no server answers at {shown(url)}", "look at --server")
    if named:
        return absent
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                found = f"port {port} is taken, and no Onward answers there"
                return Finding(BAD, "server", found, "stop it, or choose another with --port")
            return absent
    return Finding(GOOD, "server", f"port {port} is free", "onward up")


def clock(about: str, whose: str, skew_s: float) -> Finding:
    """A ledger's own, next to this machine's."""
    found = f"{whose} is {abs(skew_s):.3f} s {'ahead of' if skew_s > 0 else 'behind'} ours"
    todo = "synchronise the clocks (NTP): leases are measured by them"
    if abs(skew_s) > SKEW_BAD_S:
        return Finding(BAD, about, found, todo)
    odd = abs(skew_s) > SKEW_ODD_S
    return Finding(ODD if odd else GOOD, about, found, todo if odd else "")


def _clock(skew_s: float) -> Finding:
    found = f"the server's is {abs(skew_s):.1f} s {'ahead' if skew_s > 0 else 'behind'}"
    if abs(skew_s) > SKEW_BAD_S:
        return Finding(BAD, "clock", found, "synchronise the clocks (NTP)")
    return Finding(ODD if abs(skew_s) > SKEW_ODD_S else GOOD, "clock", found)
