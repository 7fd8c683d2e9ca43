"""Follow a task on a terminal until it is over, and print how it ended."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, NoReturn

import typer

from onward.cli.tables import hint
from onward.cli.terminal import (
    FAILED,
    INTERRUPTED,
    OK,
    UNREACHABLE,
    console,
    fail,
    format_duration,
    plain,
    print_json,
    print_json_line,
    state_mark,
)

if TYPE_CHECKING:
    from onward.client.http import Client
    from onward.wire.tasks import TaskEvent, TaskView

UNAVAILABLE = 503


async def until_over(client: Client, task: TaskView, *, timeout_ms: int | None) -> TaskView:
    from onward.client.errors import ProblemError, Unreachable

    try:
        if not sys.stderr.isatty():
            return await client.wait(task.id, timeout_ms)
        with _display(task) as show:
            return await _follow(client, task, timeout_ms, show)
    except asyncio.CancelledError:
        hint(f"the task goes on; onward task watch {task.id}")
        raise typer.Exit(INTERRUPTED) from None
    except Unreachable as error:
        _lost(task, error.what)
    except ProblemError as error:
        if error.status != UNAVAILABLE:
            raise
        _lost(task, error.detail or error.title)


def _lost(task: TaskView, why: str) -> NoReturn:
    then = f"the task was accepted, and goes on; onward task watch {task.id}"
    fail(UNREACHABLE, f"lost the connection while waiting for {task.type}", why, then)


async def print_events(client: Client, task: TaskView, *, timeout_ms: int | None) -> TaskView:
    """Each event as a line of JSON."""
    return await _follow(client, task, timeout_ms, print_json_line)


async def _follow(
    client: Client, task: TaskView, timeout_ms: int | None, show: Callable[[TaskEvent], None]
) -> TaskView:
    from onward.client.errors import StillRunning

    seconds = None if timeout_ms is None else timeout_ms / 1000
    try:
        async with asyncio.timeout(seconds), aclosing(client.stream(task.id)) as events:
            async for event in events:
                show(event)
    except TimeoutError:
        raise StillRunning(await client.get(task.id)) from None
    return await client.wait(task.id)


@contextmanager
def _display(task: TaskView) -> Iterator[Callable[[TaskEvent], None]]:
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    progress = Progress(
        SpinnerColumn(),
        TextColumn("[bold]{task.fields[type]}[/]"),
        BarColumn(bar_width=30),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console(stderr=True),
        transient=True,
    )
    row = progress.add_task(task.state, total=None, type=escape(plain(task.type)))

    def show(event: TaskEvent) -> None:
        data = event.data if isinstance(event.data, dict) else {}
        if event.type == "task.progress":
            message = escape(plain(str(data.get("message") or "")))
            done = data.get("progress")
            progress.update(row, total=1.0, completed=done, description=message)
        elif event.type != "task.chunk":
            progress.update(row, description=event.type.removeprefix("task."))

    with progress:
        yield show


def exit_code(task: TaskView) -> int:
    return OK if task.state == "succeeded" else FAILED


async def print_task(
    client: Client, task: TaskView, *, wait: bool, timeout_ms: int | None, as_json: bool
) -> None:
    """Its id; or wait for its end, and print how it ended."""
    if wait:
        report(await until_over(client, task, timeout_ms=timeout_ms), as_json=as_json)
    else:
        begun(task, "onward task watch", as_json=as_json)


def begun(task: TaskView, watch: str, *, as_json: bool) -> None:
    """Its id, alone on stdout; on stderr, how to follow it."""
    if as_json:
        print_json(task)
        return
    print(task.id)
    hint(f"{task.state}; {watch} {task.id}")


def report(
    task: TaskView, *, as_json: bool, name: str = "", then: str = "", seen: bool = False
) -> None:
    """How it ended, in the exit code too; `seen`: that is on the screen already."""
    if as_json:
        print_json(task)
        raise typer.Exit(exit_code(task))
    took = format_duration((task.finished_at or task.created_at) - task.created_at)
    if task.state != "succeeded":
        why = task.reason if task.state != "canceled" else "it was canceled"
        then = then or f"onward task explain {task.id}   or   onward task retry {task.id}"
        fail(FAILED, f"{name or task.type} {task.state} after {took}", why, then)
    if not seen:
        line = f"{state_mark(task.state)} in {took}  [bright_black]{plain(task.id)}[/]"
        console(stderr=True).print(line)
    print_json(task.result)
