"""`onward up` and `onward serve`: start a server."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING, Any

from onward import __version__
from onward.cli.commands import Options, option
from onward.cli.tables import welcome
from onward.cli.terminal import REFUSED, USAGE, fail
from onward.core.urls import shown

if TYPE_CHECKING:
    from onward.settings import Settings

OPTIONS: Options = {
    "host": option("--host", "Address to listen on.", show_default="ONWARD_HOST, 127.0.0.1"),
    "port": option("--port", "Port to listen on.", int | None, show_default="ONWARD_PORT, 8070"),
    "ledger": option(
        "--ledger", "Where tasks are stored.", show_default="ONWARD_LEDGER, sqlite:///onward.db"
    ),
    "redis": option("--redis", "Redis for the stream doors.", show_default="ONWARD_REDIS, none"),
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
    settings = read_settings(**given)
    _check_port(settings)
    _welcome(settings)
    _run(settings, builtin_worker=True)


def serve(**given: Any) -> None:
    """Start the server alone; workers connect to it.

    $ onward serve --port 8070
    $ ONWARD_LEDGER=sqlite:////data/onward.db onward serve
    """
    settings = read_settings(**given)
    _check_port(settings)
    _run(settings, builtin_worker=False)


def read_settings(**given: Any) -> Settings:
    from pydantic import ValidationError

    from onward.core.errors import our_words
    from onward.settings import Settings

    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        why = our_words(first["msg"])
        name = str(first["loc"][0]) if first["loc"] else "the settings"
        # A setting is named as it was given: as a variable of the environment, or as an option.
        name = f"--{name.replace('_', '-')}" if name in given else name
        fail(
            USAGE,
            f"{name} cannot be read",
            f"{shown(repr(first['input']))}: {why}" if first["loc"] else why,
            "correct it and start again; `onward up --help` shows the options",
        )


def _check_port(settings: Settings) -> None:
    """Checked first: three lines here instead of a traceback in the log."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            fail(
                REFUSED,
                f"cannot listen on {settings.host}:{settings.port}",
                "something listens there already" if taken else error.strerror or str(error),
                "onward doctor   or choose another with --port",
            )


def _run(settings: Settings, *, builtin_worker: bool) -> None:
    from onward.core.errors import LedgerUnavailable, OnwardError
    from onward.server import run

    try:
        run(settings, builtin_worker=builtin_worker)
    except OnwardError as error:
        # The hint of the whole class is meant for callers who have submitted a task.
        hint = None if error.hint == LedgerUnavailable.hint else error.hint
        then = hint or "onward doctor looks at the ledger; --ledger names another"
        fail(REFUSED, "the server could not start", shown(str(error)), then)


def _welcome(settings: Settings) -> None:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{host}:{settings.port}"
    server = "" if settings.port == 8070 else f" --server {url}"
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
