"""`onward schedule …`: work that runs once, at intervals, or by cron."""

from __future__ import annotations

import time
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onward.cli.flow import read_object
from onward.cli.submit import PriorityWord, read_payload
from onward.cli.tables import Cursor, Limit, Timeout, card, cell, listing, show_page
from onward.cli.terminal import (
    USAGE,
    AsJson,
    Server,
    ago,
    console,
    converse,
    duration_ms,
    fail,
    humane,
    plain,
    print_json,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from onward.client.http import Client
    from onward.wire.schedules import ScheduleDetail, ScheduleView
    from onward.wire.tasks import TaskView

app = typer.Typer(help="Run work once, at intervals, or by cron.", no_args_is_help=True)

LOOK = "onward schedule list"
COLOURS = {"submitted": "green", "triggered": "green", "overlapped": "yellow", "missed": "yellow"}

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]


class MissedWord(StrEnum):
    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class OverlapWord(StrEnum):
    ALLOW = "allow"
    SKIP = "skip"


@app.command("list")
def list_(
    cursor: Cursor = None,
    limit: Limit = 100,
    as_json: AsJson = False,
    server: Server = None,
) -> None:
    """List schedules by name, each with its next instant in its own time zone.

    Examples:

    [cyan]onward schedule list[/]

    [cyan]onward schedule list --json | jq -r '.items[] | select(.paused).name'[/]
    """
    page = converse(
        server, "list schedules", lambda client: client.schedules.list(cursor=cursor, limit=limit)
    )
    none = "no schedules; onward schedule add NAME TYPE --every 5m makes one"
    show_page(page, _rows, none=none, as_json=as_json)


@app.command()
def add(
    name: NameArgument,
    type: Annotated[
        str | None, typer.Argument(metavar="[TYPE]", help="What is to be done; or --flow.")
    ] = None,
    payload: Annotated[
        str, typer.Argument(metavar="[PAYLOAD|-|@FILE]", help="JSON, - for stdin, or @file.")
    ] = "{}",
    cron: Annotated[
        str | None, typer.Option("--cron", metavar="RULE", help="As in '30 9 * * MON-FRI'.")
    ] = None,
    every: Annotated[
        int | None,
        typer.Option("--every", parser=duration_ms, metavar="30s|5m|1d", help="At intervals."),
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="Once, as in 2030-01-31T09:00.")
    ] = None,
    zone: Annotated[
        str, typer.Option("--tz", metavar="ZONE", help="Time zone of --cron and --at.")
    ] = "UTC",
    flow: Annotated[
        str | None, typer.Option("--flow", metavar="NAME", help="Run a flow instead of a task.")
    ] = None,
    params: Annotated[
        str | None, typer.Option("--params", metavar="JSON|@FILE|-", help="Of the flow.")
    ] = None,
    missed: Annotated[
        MissedWord, typer.Option("--missed", help="Runs whose time went by without a server.")
    ] = MissedWord.ONCE,
    overlap: Annotated[
        OverlapWord, typer.Option("--overlap", help="While the last run is not over.")
    ] = OverlapWord.ALLOW,
    queue: Annotated[str | None, typer.Option("--queue", help="Instead of the type's own.")] = None,
    priority: Annotated[PriorityWord | None, typer.Option("--priority")] = None,
    max_retries: Annotated[int | None, typer.Option("--max-retries", min=0)] = None,
    task_timeout: Annotated[
        int | None,
        typer.Option("--task-timeout", parser=duration_ms, metavar="30s|5m", help="Of one run."),
    ] = None,
    session: Annotated[str | None, typer.Option("--session", help="Whose tasks they are.")] = None,
    approval: Annotated[
        bool, typer.Option("--approval", help="A person approves each run first.")
    ] = False,
    paused: Annotated[bool, typer.Option("--paused", help="It begins when resumed.")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="In the place of one of this name.")
    ] = False,
    as_json: AsJson = False,
    server: Server = None,
) -> None:
    """Make a schedule. Exit code 4: there is another one of this name.

    Examples:

    [cyan]onward schedule add report mail @mail.json --cron '30 9 * * MON-FRI' --tz Europe/Berlin[/]

    [cyan]onward schedule add heartbeat echo '"hello"' --every 30s --overlap skip[/]

    [cyan]onward schedule add launch --flow release --params '{"n": 1}' --at 2030-01-31T09:00[/]
    """
    fields: dict[str, Any] = {
        "timezone": zone,
        "missed": missed,
        "overlap": overlap,
        "type": type,
        "payload": None if type is None else read_payload(payload),
        "flow": flow,
        "params": None if params is None else read_object("--params", params),
        "cron": cron,
        "every_ms": every,
        "run_at": None if at is None else _instant(at, zone),
        "queue": queue,
        "priority": priority,
        "max_retries": max_retries,
        "timeout_ms": task_timeout,
        "session_id": session,
        "requires_approval": approval or None,
        "paused": paused or None,
    }

    async def talk(client: Client) -> ScheduleDetail:
        if replace:
            return await client.schedules.put(name, **fields)
        return await client.schedules.create(name, **fields)

    look = f"onward schedule show {name}, or add --replace"
    _shown(converse(server, f"add schedule {name}", talk, look=look), as_json=as_json)


@app.command()
def show(name: NameArgument, as_json: AsJson = False, server: Server = None) -> None:
    """Show a schedule: what it runs, its next instants, and what became of the last ones.

    Example: [cyan]onward schedule show report[/]
    """
    found = converse(
        server, f"show schedule {name}", lambda client: client.schedules.get(name), look=LOOK
    )
    if as_json:
        print_json(found)
    else:
        _card(found)


@app.command()
def pause(name: NameArgument, as_json: AsJson = False, server: Server = None) -> None:
    """Let a schedule rest. What falls into the pause is not made up for.

    Example: [cyan]onward schedule pause report[/]
    """
    found = converse(
        server, f"pause schedule {name}", lambda client: client.schedules.pause(name), look=LOOK
    )
    _shown(found, as_json=as_json)


@app.command()
def resume(name: NameArgument, as_json: AsJson = False, server: Server = None) -> None:
    """Let a schedule go on, from now.

    Example: [cyan]onward schedule resume report[/]
    """
    found = converse(
        server, f"resume schedule {name}", lambda client: client.schedules.resume(name), look=LOOK
    )
    _shown(found, as_json=as_json)


@app.command()
def trigger(
    name: NameArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the result, and show it.")] = False,
    timeout: Timeout = None,
    as_json: AsJson = False,
    server: Server = None,
) -> None:
    """Run a schedule now, beside its times, also while it is paused. Prints the task's id.

    Examples:

    [cyan]onward schedule trigger report[/]

    [cyan]onward schedule trigger report --wait --timeout 5m[/]
    """
    from onward.cli import watching

    async def talk(client: Client) -> TaskView:
        task = await client.schedules.trigger(name)
        return await watching.until_over(client, task, timeout_ms=timeout) if wait else task

    task = converse(server, f"trigger schedule {name}", talk, look=LOOK)
    watching.told(task, waited=wait, as_json=as_json)


@app.command()
def remove(name: NameArgument, as_json: AsJson = False, server: Server = None) -> None:
    """Remove a schedule. Tasks that it made stay as they are.

    Example: [cyan]onward schedule remove report[/]
    """
    converse(
        server, f"remove schedule {name}", lambda client: client.schedules.remove(name), look=LOOK
    )
    if as_json:
        print_json({"name": name, "removed": True})
    else:
        console().print(f"{plain(name)} removed", markup=False)


def _instant(text: str, zone: str) -> int:
    """A time as people write it: with an offset of its own, or in that zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        fail(USAGE, f"--at {text} is no time", str(error), "write 2030-01-31T09:00")
    if moment.tzinfo is None:
        known = _zone(zone)
        if known is None:
            fail(USAGE, f"no time zone {zone!r} is known here", "", "write --tz Europe/Berlin")
        moment = moment.replace(tzinfo=known)
    return int(moment.timestamp() * 1000)


def _zone(name: str) -> tzinfo | None:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def _when(at: int | None, zone: str) -> str:
    """An instant in the schedule's own zone, and how far away it is."""
    if at is None:
        return "–"
    moment = datetime.fromtimestamp(at // 1000, _zone(zone) or UTC)
    clock = f"{moment:%a %Y-%m-%d %H:%M:%S}".removesuffix(":00")
    left = at - int(time.time() * 1000)
    return f"{clock} {moment:%Z}, {f'in {humane(left)}' if left >= 0 else ago(at)}"


def _next(found: ScheduleView) -> str:
    if found.paused:
        return "[yellow]paused[/]"
    return "[bright_black]over[/]" if found.over else _when(found.next_run_at, found.timezone)


def _what(found: ScheduleView) -> str:
    return plain(found.type or f"flow {found.flow}")


def _outcome(outcome: str | None) -> str:
    return "" if outcome is None else f"[{COLOURS.get(outcome, 'red')}]{plain(outcome)}[/]"


def _shown(found: ScheduleDetail, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        console().print(f"{cell(found.name)}  {_next(found)}")


def _rows(schedules: Sequence[ScheduleView]) -> Table:
    names = ("name", "runs", "when", "next", "last", "")
    table = listing(*names, folds=("name", "runs", "when", ""))
    for found in schedules:
        table.add_row(
            cell(found.name),
            cell(_what(found)),
            cell(found.description),
            _next(found),
            ago(found.last_run_at),
            _outcome(found.last_outcome),
        )
    return table


def _card(found: ScheduleDetail) -> None:
    import msgspec

    rule = found.cron or (found.every_ms and f"every {humane(found.every_ms)}") or "once"
    body = found.payload if found.flow is None else found.params
    terms = {
        "queue": found.queue,
        "priority": found.priority,
        "max retries": found.max_retries,
        "timeout": None if found.timeout_ms is None else humane(found.timeout_ms),
        "session": found.session_id,
        "approval": "each run" if found.requires_approval else None,
    }
    rows = [
        ("runs", _what(found)),
        ("payload" if found.flow is None else "params", msgspec.json.encode(body).decode()),
        *((name, str(said)) for name, said in terms.items() if said is not None),
        ("rule", f"{rule} ({found.timezone})"),
        ("missed", found.missed),
        ("overlap", found.overlap),
        ("created", ago(found.created_at)),
    ]
    table = card(rows)
    for n, at in enumerate(found.upcoming):
        table.add_row("" if n else "next", _when(at, found.timezone))
    for n, entry in enumerate(found.history):
        about = cell(entry.task_id or entry.reason or "")
        line = f"{_when(entry.at, found.timezone)}  {_outcome(entry.outcome)}  {about}"
        table.add_row("" if n else "last", line)
    out = console()
    out.print(f"{cell(found.name)}  {_next(found) if found.paused or found.over else ''}".rstrip())
    out.print(f"[bright_black]{cell(found.description)}[/]")
    out.print(table)
