"""`onward submit`: hand off a task, and wait for it if asked."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onward.cli.commands import Options, argument, duration, flag, option
from onward.cli.terminal import USAGE, fail, interruptible

if TYPE_CHECKING:
    from onward.client.http import Client


class PriorityWord(StrEnum):
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


PAYLOAD = argument("[PAYLOAD|-|@FILE]", "JSON text, - to read stdin, or @file.", "{}")
TASK_OPTIONS: Options = {
    "queue": option("--queue", "Instead of the type's own queue; a worker must claim it."),
    "priority": option("--priority", "Which tasks start first.", PriorityWord | None),
    "max_retries": option("--max-retries", "How often to retry a failure.", int | None, min=0),
    "timeout_ms": duration("--task-timeout", "How long one attempt may run."),
    "session_id": option("--session", "The session that the task belongs to."),
    "requires_approval": flag("--approval", "Wait for a person's approval before it runs."),
}
OPTIONS: Options = {
    "rows": option(
        "--from", "Submit a task for each line of this file of JSON, as one batch.", metavar="FILE"
    ),
    "name": option("--batch-name", "What the batch is called; with --from."),
    "type": argument("TYPE", "The type of the task."),
    "payload": PAYLOAD,
    "delay_ms": duration("--delay", "Start no earlier than this long from now."),
    "partition": option("--partition", "The partition of its queue; partitions take turns."),
    **TASK_OPTIONS,
    "idempotency_key": option(
        "--idempotency-key", "Submitted twice with it, it is still one task."
    ),
    "tags": option("--tag", "A word to find it by; may be given again.", list[str] | None),
    "callback_url": option("--callback-url", "Post the task there, signed, when it is over."),
}


async def submit(
    client: Client,
    type: str,
    payload: str,
    wait: bool,
    timeout: int | None,
    as_json: bool,
    rows: str | None,
    name: str | None,
    **options: Any,
) -> None:
    """Hand off a task. Exit codes with --wait: 0 succeeded, 1 failed, 124 not over in time.

    $ onward submit countdown '{"seconds": 3}' --wait
    $ onward submit report @report.json --delay 10m --idempotency-key monday
    $ echo '"hello"' | onward submit echo - --wait --json
    $ onward submit report --from rows.jsonl --wait

    With --from, broken lines are named and the others submitted; exit code 1.
    """
    if rows is not None:
        from onward.cli import rows as many

        await many.submit(
            client, type, rows, given({**options, "name": name}), wait, timeout, as_json
        )
        return
    from onward.cli import watching

    task = await client.submit(type, read_payload(payload), **given(options))
    await watching.print_task(client, task, wait=wait, timeout_ms=timeout, as_json=as_json)


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Only those that were used: for the others the server has defaults."""
    return {name: each for name, each in options.items() if each is not None and each is not False}


def read_payload(text: str, what: str = "the payload") -> Any:
    import msgspec

    try:
        if text == "-":
            with interruptible():
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
