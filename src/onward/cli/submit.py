"""`onward submit`: hand off a task, and wait for it if asked."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onward.cli.tables import Timeout
from onward.cli.terminal import (
    USAGE,
    AsJson,
    Server,
    converse,
    duration_ms,
    fail,
)

if TYPE_CHECKING:
    from onward.client.http import Client, Options
    from onward.wire.tasks import TaskView


class PriorityWord(StrEnum):
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


def submit(
    type: Annotated[str, typer.Argument(metavar="TYPE", help="What is to be done.")],
    payload: Annotated[
        str, typer.Argument(metavar="[PAYLOAD|-|@FILE]", help="JSON, - for stdin, or @file.")
    ] = "{}",
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the result, and show it.")] = False,
    timeout: Timeout = None,
    task_timeout: Annotated[
        int | None,
        typer.Option(
            "--task-timeout", parser=duration_ms, metavar="30s|5m", help="One run at most so long."
        ),
    ] = None,
    delay: Annotated[
        int | None,
        typer.Option("--delay", parser=duration_ms, metavar="30s|5m", help="Not before then."),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option("--queue", help="Instead of the type's own; a worker must claim it."),
    ] = None,
    priority: Annotated[PriorityWord, typer.Option("--priority")] = PriorityWord.NORMAL,
    key: Annotated[
        str | None, typer.Option("--key", help="Idempotency key: twice the same is one task.")
    ] = None,
    session: Annotated[str | None, typer.Option("--session", help="Whose task it is.")] = None,
    max_retries: Annotated[
        int | None, typer.Option("--max-retries", min=0, help="Instead of the type's own.")
    ] = None,
    approval: Annotated[
        bool, typer.Option("--approval", help="A person approves it first.")
    ] = False,
    as_json: AsJson = False,
    server: Server = None,
) -> None:
    """Hand off a task. Exit codes with --wait: 0 succeeded, 1 failed, 124 not over in time.

    Examples:

    [cyan]onward submit countdown '{"seconds": 3}' --wait[/]

    [cyan]onward submit report @report.json --delay 10m --key monday[/]

    [cyan]echo '"hello"' | onward submit echo - --wait --json[/]
    """
    from onward.cli import watching

    body = read_payload(payload)
    options: Options = {"priority": priority.value}
    given: dict[str, Any] = {
        "queue": queue,
        "delay_ms": delay,
        "idempotency_key": key,
        "session_id": session,
        "max_retries": max_retries,
        "timeout_ms": task_timeout,
        "requires_approval": approval or None,
    }
    options.update({name: value for name, value in given.items() if value is not None})  # type: ignore[typeddict-item]

    async def talk(client: Client) -> TaskView:
        task = await client.submit(type, body, **options)
        return await watching.until_over(client, task, timeout_ms=timeout) if wait else task

    task = converse(server, f"submit {type}", talk)
    watching.told(task, waited=wait, as_json=as_json)


def read_payload(text: str, what: str = "the payload") -> Any:
    import msgspec

    try:
        if text == "-":
            text = sys.stdin.read()
        elif text.startswith("@"):
            text = Path(text[1:]).read_text()
        return msgspec.json.decode(text)
    except OSError as error:
        fail(USAGE, f"{what} cannot be read", str(error), "name a file as in @payload.json")
    except UnicodeError as error:
        fail(USAGE, f"{what} is not text", str(error), "encode it as UTF-8, or in base64")
    except msgspec.DecodeError as error:
        fail(
            USAGE,
            f"{what} is not JSON",
            str(error),
            """quote it for the shell, as in '{"seconds": 3}'""",
        )
