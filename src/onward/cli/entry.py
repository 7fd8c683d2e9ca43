"""The `onward` command. What is not installed is answered with the line that installs it."""

from __future__ import annotations

import sys

USAGE = 2
COMMAND = frozenset({"rich", "shellingham", "typer"})
SERVER = frozenset(
    {
        "apsw", "cronsim", "fastapi", "httptools", "jsonschema_rs", "prometheus_client",
        "pydantic_settings", "starlette", "structlog", "uvicorn",
    }
)  # fmt: skip


def main() -> None:
    try:
        from onward.cli.__main__ import app

        app()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in COMMAND | SERVER:
            raise
        client = package in COMMAND and sys.argv[1:2] not in (["up"], ["serve"], ["demo"])
        extra = "cli" if client else "server"
        what = "the command line" if client else "this command"
        print(
            f"{what} needs packages that are not installed ({package})\n"
            f"→ pip install 'onward[{extra}]'",
            file=sys.stderr,
        )
        sys.exit(USAGE)
