"""`onward up` and `onward serve`: start a server."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from onward import __version__
from onward.cli.commands import Options, option
from onward.cli.processes import Child, end_with_parent, this_child
from onward.cli.tables import welcome
from onward.cli.terminal import REFUSED, USAGE, fail
from onward.urls import shown

if TYPE_CHECKING:
    from onward.settings import Settings

OPTIONS: Options = {
    "host": option("--host", "Address to listen on.", show_default="ONWARD_HOST, 127.0.0.1"),
    "port": option("--port", "Port to listen on.", int | None, show_default="ONWARD_PORT, 8070"),
    "processes": option(
        "--processes",
        "How many server processes share the port; on Redis and Postgres.",
        int | None,
        show_default="ONWARD_PROCESSES, 1",
    ),
    "ledger": option(
        "--ledger", "Where tasks are stored.", show_default="ONWARD_LEDGER, sqlite:///onward.db"
    ),
    "redis": option("--redis", "Redis for the stream doors.", show_default="ONWARD_REDIS, none"),
    "tls_cert": option(
        "--tls-cert", "Certificate for TLS, a PEM file.", show_default="ONWARD_TLS_CERT, none"
    ),
    "tls_key": option(
        "--tls-key", "Its private key, a PEM file.", show_default="ONWARD_TLS_KEY, none"
    ),
    "encryption_keys_file": option(
        "--encryption-keys-file",
        "Keys for encryption at rest, a line id:base64 for each; the first encrypts.",
        show_default="ONWARD_ENCRYPTION_KEYS_FILE, none",
    ),
}


def up(**given: Any) -> None:
    """Start everything on this machine: server, built-in worker and page.

    $ onward up
    $ onward up --port 9000 --ledger sqlite:////var/lib/onward/tasks.db
    """
    _start(read_settings(**given), builtin_worker=True)


def serve(**given: Any) -> None:
    """Start the server alone; workers connect to it.

    $ onward serve --port 8070
    $ ONWARD_LEDGER=sqlite:////data/onward.db onward serve
    $ onward serve --processes 4 --ledger postgresql://onward@127.0.0.1/onward
    """
    _start(read_settings(**given), builtin_worker=False)


def read_settings(**given: Any) -> Settings:
    from pydantic import ValidationError

    from onward.core.errors import our_words
    from onward.settings import Settings, as_given

    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        why = our_words(first["msg"])
        name = str(first["loc"][0]) if first["loc"] else "the settings"
        # A setting is named as it was given: as a variable of the environment, or as an option.
        name = f"--{name.replace('_', '-')}" if name in given else as_given(name)
        fail(
            USAGE,
            f"{name} cannot be read",
            f"{shown(repr(first['input']))}: {why}" if first["loc"] else why,
            "correct it and start again; `onward up --help` shows the options",
        )


def check_shared(settings: Settings, what: str, instead: str) -> None:
    if settings.ledger.startswith("sqlite"):
        fail(
            USAGE,
            f"{what} needs a ledger that processes can share",
            f"{shown(settings.ledger)} is its server's alone",
            f"--ledger redis://127.0.0.1:6379/0, if that is the servers'; or {instead}",
        )


def _start(settings: Settings, *, builtin_worker: bool) -> None:
    child = this_child()
    if child is not None:
        _run_child(settings, child, builtin_worker=builtin_worker)
        return
    if settings.processes > 1:
        check_shared(settings, f"--processes {settings.processes}", "--processes 1")
    sockets = _bind(settings.host, settings.port)
    first = settings.process_port
    own = [
        [] if first is None else _bind(settings.host, first + number)
        for number in range(settings.processes)
    ]
    if settings.processes == 1:
        welcome = partial(_welcome, settings, _port(sockets)) if builtin_worker else None
        _run(settings, [*sockets, *own[0]], builtin_worker=builtin_worker, started=welcome)
        return
    if builtin_worker:
        _welcome(settings, _port(sockets))
    from onward import logs
    from onward.cli.server_processes import ServerProcesses

    logs.configure(settings)
    raise typer.Exit(ServerProcesses(sockets, own).run())


def _run_child(settings: Settings, child: Child, *, builtin_worker: bool) -> None:
    import structlog

    end_with_parent(child)
    structlog.contextvars.bind_contextvars(process=child.number)
    sockets = [socket.socket(fileno=number) for number in child.sockets]

    def started() -> None:
        if child.started is not None:
            os.write(child.started, b".")

    _run(settings, sockets, builtin_worker=builtin_worker, started=started)


def _bind(host: str, port: int) -> Sequence[socket.socket]:
    """Bound before the server starts, and listened to once it is ready: a port that is taken costs
    three lines here instead of a traceback in the log.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return [_bound(family, address) for family, _, _, _, address in dict.fromkeys(found)]
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        fail(
            REFUSED,
            f"cannot listen on {host}:{port}",
            "something already listens there" if taken else error.strerror or str(error),
            "onward doctor   or choose another with --port",
        )


def _bound(family: int, address: Any) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:  # 0.0.0.0 is another address
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    made.bind(address)
    return made


def _run(
    settings: Settings,
    sockets: Sequence[socket.socket],
    *,
    builtin_worker: bool,
    started: Callable[[], None] | None = None,
) -> None:
    from onward.core.errors import Invalid, LedgerUnavailable
    from onward.errors import OnwardError
    from onward.server import run

    try:
        run(settings, sockets, builtin_worker=builtin_worker, started=started)
    except OnwardError as error:
        # The hint of the whole class is meant for callers who have submitted a task.
        hint = None if error.hint == LedgerUnavailable.hint else error.hint
        then = hint or "onward doctor looks at the ledger; --ledger names another"
        code = USAGE if isinstance(error, Invalid) else REFUSED
        fail(code, "the server could not start", shown(str(error)), then)


def _port(sockets: Sequence[socket.socket]) -> int:
    """The one that was got, if any would do."""
    return int(sockets[0].getsockname()[1])


def _welcome(settings: Settings, port: int) -> None:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"{'http' if settings.tls_cert is None else 'https'}://{host}:{port}"
    server = "" if port == 8070 else f" --server {url}"
    curl = (
        f"curl -s {url}/api/openai -H 'content-type: application/json'"
        """ -d '{"data": {"hello": "world"}}'"""
    )
    rows = [
        ("page", f"{url}/ui"),
        ("API", f"{url}/openapi.json"),
        ("ledger", shown(settings.ledger)),
        ("try", f"""onward submit countdown '{{"seconds": 3}}' --wait{server}"""),
        ("or", curl),
    ]
    title = f"{__version__}   hand off work and move on"
    welcome(title, rows, "Ctrl-C stops it; what is queued stays in the ledger.")
