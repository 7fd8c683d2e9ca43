"""What all commands share: exit codes, three-line errors, JSON for scripts, common options.

Results go to stdout and everything else to stderr, so that a pipe carries only the result.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from onward.urls import shown

if TYPE_CHECKING:
    from rich.console import Console

    from onward.client.errors import ProblemError
    from onward.client.http import Client

T = TypeVar("T")

OK, FAILED, USAGE, NOT_FOUND, REFUSED, UNREACHABLE = range(6)
TIMED_OUT = 124
INTERRUPTED = 130

Server = Annotated[
    str | None,
    typer.Option(
        "--server", help="URL of the server.", envvar="ONWARD_URL", show_default="this machine"
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--key",
        help="Token of a key; better as a variable, where no process list shows it.",
        envvar="ONWARD_KEY",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.", metavar="")]
MARKS = {
    "scheduled": "◷",
    "queued": "○",
    "running": "●",
    "waiting": "‖",
    "succeeded": "✓",
    "failed": "✗",
    "dead": "✗",
    "canceled": "–",
}
COLOURS = {
    "running": "cyan",
    "waiting": "yellow",
    "succeeded": "green",
    "failed": "red",
    "dead": "red",
    "canceled": "bright_black",
}

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_STEPS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"))


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    # A pipe has no width: a table folded at 80 columns would break ids in two.
    width = None if stream.isatty() else 240
    return Console(
        file=stream, width=width, highlight=False, soft_wrap=not stream.isatty(), quiet=quiet
    )


def fail(code: int, what: str, why: str = "", then: str = "") -> NoReturn:
    """Print what failed, why, and the next step; then exit."""
    from rich.text import Text

    out = console(stderr=True)
    out.print(Text.assemble(("✗ ", "bold red"), (plain(what), "bold")))
    if why:
        out.print(Text(f"  {plain(why)}"))
    if then:
        out.print(Text.assemble(("  → ", "cyan"), plain(then)))
    raise typer.Exit(code)


def silence_log() -> None:
    """For commands that open a ledger themselves: what it logs they print in their own words."""
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def plain(text: str) -> str:
    """One line without control characters: text from a task must not steer a terminal."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", text).strip()


def print_json(value: Any) -> None:
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    if sys.stdout.isatty():
        console().print_json(text)
    else:
        print(text)


def print_json_line(value: Any) -> None:
    import msgspec

    print(msgspec.json.encode(value).decode(), flush=True)


def use_token(token: str | None) -> None:
    """For every client of this process."""
    if token is not None:
        os.environ["ONWARD_KEY"] = token


def with_client(
    server: str | None,
    doing: str,
    call: Callable[[Client], Awaitable[T]],
    *,
    see_also: str = "onward task list",
    after_conflict: str = "",
    after_refusal: str = "",
) -> T:
    """What `call` returns; an error ends the command with an exit code and the next step.

    `see_also` is the command that lists what exists, for a caller who named what does not;
    `after_conflict` the one for a caller whose item is in another state than this needs,
    `after_refusal` what to do about a wrong argument, where the server has no hint.
    """
    import asyncio

    from onward.client.errors import ProblemError, StillRunning, Unreachable
    from onward.client.http import Client

    async def connected() -> T:
        async with Client(server) as client:
            return await call(client)

    try:
        return asyncio.run(connected())
    except Unreachable as error:
        fail(UNREACHABLE, f"cannot {doing}", error.what, error.hint or "")
    except StillRunning as error:
        fail(TIMED_OUT, str(error), "the time to wait is over; the task goes on", error.hint or "")
    except ProblemError as error:
        why = error.detail or error.title
        see_also = (after_conflict if error.status == 409 else "") or see_also
        then = after_refusal if error.status == 422 and not error.hint else ""
        fail(_code_of(error), f"cannot {doing}", why, then or _next_step(error, see_also))
    except ValueError as error:
        fail(USAGE, f"cannot {doing}", shown(str(error)), "check --server and ONWARD_URL")


def _code_of(error: ProblemError) -> int:
    if error.code == "idempotency_key_reused":
        return REFUSED
    if error.status in (400, 413, 422):
        return USAGE
    return {404: NOT_FOUND, 504: TIMED_OUT, 500: FAILED}.get(error.status, REFUSED)


def _next_step(error: ProblemError, see_also: str) -> str:
    """The server words its hints as requests; here they become commands."""
    hint = error.hint or ""
    if error.code == "unauthorized":
        return "name your key: --key TOKEN, or ONWARD_KEY in the environment"
    if error.code == "forbidden" and not hint:
        return "use a key that may; onward keys list shows what each is for, to an admin"
    if error.status != 404 and (found := re.match(r"GET /api/v2/services/(\S+)", hint)):
        return f"onward service show {found[1]}"
    if error.status == 404 or re.match(r"[A-Z]+ /", hint) or (error.status == 409 and not hint):
        return see_also
    return hint or ("onward doctor" if error.status >= 500 else "onward --help")


@contextmanager
def interruptible() -> Iterator[None]:
    """While a person is waited for: the event loop's own handler of Ctrl-C would wait for this
    very function before it stops anything.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def user() -> str | None:
    """The name of the user who runs the command, if it has one."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):  # as in a container that runs under a bare number
        return None


def duration_ms(text: str) -> int:
    """`500ms`, `30s`, `5m`, `1h`, `2d`; a bare number is seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?", text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a duration; write 500ms, 30s, 5m, 1h or 90d")
    return int(float(found[1]) * _UNITS_MS[found[2] or "s"])


def count_per_ms(text: str) -> tuple[int, int]:
    """A rate: `100/s`, `1000/m`, `10000/h`."""
    found = re.fullmatch(r"(\d{1,6})/(s|m|h|d)", text.strip())
    if found is None or not int(found[1]):
        raise typer.BadParameter(f"{text!r} is no rate; write 100/s, 1000/m or 10000/h")
    return int(found[1]), _UNITS_MS[found[2]]


def format_duration(ms: int | None) -> str:
    """A duration for people."""
    if ms is None:
        return "–"
    for size, unit in _STEPS:
        if ms >= size:
            return f"{ms / size:.1f} {unit}"
    return f"{ms / 1000:.1f} s" if ms >= 1_000 else f"{ms} ms"


def ago(at: int | None) -> str:
    return "–" if at is None else f"{format_duration(max(0, int(time.time() * 1000) - at))} ago"


def state_mark(state: str) -> str:
    colour = COLOURS.get(state, "default")
    return f"[{colour}]{MARKS.get(state, '?')} {state}[/]"
