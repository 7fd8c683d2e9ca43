"""`onward schedule …`: work that runs once, at intervals, or by cron."""

from __future__ import annotations

import time
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from onward.cli.commands import Options, Resource, Verb, argument, duration, flag, option
from onward.cli.flow import read_object
from onward.cli.submit import PAYLOAD, TASK_OPTIONS, given, read_payload
from onward.cli.tables import Fields, as_text, card_of, cell, since, span
from onward.cli.terminal import USAGE, ago, console, fail, format_duration

if TYPE_CHECKING:
    from onward.client.http import Client
    from onward.wire.schedules import ScheduleDetail, ScheduleView

COLOURS = {"submitted": "green", "triggered": "green", "overlapped": "yellow", "missed": "yellow"}


class MissedWord(StrEnum):
    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class OverlapWord(StrEnum):
    ALLOW = "allow"
    SKIP = "skip"


def _instant(text: str, zone: str) -> int:
    """A time with an offset of its own, or else in that time zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        fail(USAGE, f"--at {text} is not a time", str(error), "write 2030-01-31T09:00")
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
    return f"{clock} {moment:%Z}, {f'in {format_duration(left)}' if left >= 0 else ago(at)}"


def _next(found: ScheduleView) -> str:
    if found.paused:
        return "[yellow]paused[/]"
    return "[bright_black]over[/]" if found.over else _when(found.next_run_at, found.timezone)


def _what(found: ScheduleView) -> str:
    return cell(found.type or f"flow {found.flow}")


def _rule(found: ScheduleView) -> str:
    every = f"every {format_duration(found.every_ms)}" if found.every_ms else "once"
    return cell(f"{found.cron or every} ({found.timezone})")


def _outcome(outcome: str | None) -> str:
    return "" if outcome is None else f"[{COLOURS.get(outcome, 'red')}]{cell(outcome)}[/]"


def _card(found: ScheduleDetail) -> None:
    table = card_of(found, CARD)
    for n, at in enumerate(found.upcoming):
        table.add_row("" if n else "next", _when(at, found.timezone))
    for n, entry in enumerate(found.history):
        about = cell(entry.task_id or entry.reason or "")
        line = f"{_when(entry.at, found.timezone)}  {_outcome(entry.outcome)}  {about}"
        table.add_row("" if n else "last", line)
    out = console()
    out.print(SCHEDULE.line(found) if found.paused or found.over else cell(found.name))
    out.print(f"[bright_black]{cell(found.description)}[/]")
    out.print(table)


async def _add(
    client: Client,
    key: str,
    payload: str,
    params: str | None,
    at: str | None,
    replace: bool,
    **fields: Any,
) -> ScheduleView:
    definition = given(fields)
    if "type" in definition:
        definition["payload"] = read_payload(payload)
    if params is not None:
        definition["params"] = read_object("--params", params)
    if at is not None:
        definition["run_at"] = _instant(at, fields["timezone"])
    publish = client.schedules.put if replace else client.schedules.create
    return await publish(key, **definition)


NEW: Options = {
    "type": argument("[TYPE]", "The type of the tasks; or use --flow.", None),
    "payload": PAYLOAD,
    "cron": option("--cron", "Run by this rule, as in '30 9 * * MON-FRI'.", metavar="RULE"),
    "every_ms": duration("--every", "Run at intervals."),
    "at": option("--at", "Run once, at a time such as 2030-01-31T09:00.", metavar="TIME"),
    "timezone": option("--tz", "The time zone of --cron and --at.", str, "UTC", metavar="ZONE"),
    "flow": option("--flow", "Run this flow instead of a task.", metavar="NAME"),
    "params": option("--params", "The parameters of the flow.", metavar="JSON|@FILE|-"),
    "missed": option("--missed", "Which missed runs to make up for.", MissedWord, MissedWord.ONCE),
    "overlap": option(
        "--overlap", "What to do while the last run is not over.", OverlapWord, OverlapWord.ALLOW
    ),
    **TASK_OPTIONS,
    "paused": flag("--paused", "Run nothing before it is resumed."),
    "replace": flag("--replace", "Replace the schedule of this name, if there is one."),
}
NAME = argument("NAME", "The schedule's name.")
CARD: Fields = {
    "runs": _what,
    "payload": lambda found: "" if found.flow else as_text("payload")(found),
    "params": lambda found: as_text("params")(found) if found.flow else "",
    "queue": "queue",
    "priority": "priority",
    "max retries": "max_retries",
    "timeout": span("timeout_ms"),
    "session": "session_id",
    "approval": lambda found: "each run" if found.requires_approval else "",
    "rule": _rule,
    "missed": "missed",
    "overlap": "overlap",
    "created": since("created_at"),
}
SCHEDULE = Resource(
    "schedule",
    "Run work once, at intervals, or by cron.",
    key=NAME,
    example="report",
    columns={
        "name": "name",
        "runs": _what,
        "when": "description",
        "next": _next,
        "last": since("last_run_at"),
        "": lambda found: _outcome(found.last_outcome),
    },
    title=lambda found: f"{cell(found.name)}  {_next(found)}",
    folds=("name", "runs", "when", ""),
    verbs=(
        Verb(
            "list",
            """List schedules by name, each with its next run in its own time zone.

            $ onward schedule list
            $ onward schedule list --json | jq -r '.items[] | select(.paused).name'""",
            lambda client, cursor, limit: client.schedules.list(cursor=cursor, limit=limit),
            options={"limit": option("--limit", "How many to list.", int, 100, min=1, max=1000)},
            none="no schedules; onward schedule add NAME TYPE --every 5m makes one",
        ),
        Verb(
            "add",
            """Make a schedule. Exit code 4: another schedule has this name.

            $ onward schedule add report mail @mail.json --cron '30 9 * * MON-FRI' --tz Asia/Tokyo
            $ onward schedule add heartbeat echo '"hello"' --every 30s --overlap skip
            $ onward schedule add launch --flow release --at 2030-01-31T09:00""",
            _add,
            options=NEW,
            after_conflict="onward schedule show {key}, or add --replace",
        ),
        Verb(
            "show",
            "Show a schedule: what it runs, its next runs, and what became of the last ones.",
            lambda client, key: client.schedules.get(key),
            show=_card,
        ),
        Verb(
            "pause",
            "Pause a schedule. Runs that fall into the pause are not made up for.",
            lambda client, key: client.schedules.pause(key),
        ),
        Verb(
            "resume",
            "Continue a paused schedule, from now on.",
            lambda client, key: client.schedules.resume(key),
        ),
        Verb(
            "remove",
            "Remove a schedule. Tasks that it made stay as they are.",
            lambda client, key: client.schedules.remove(key),
            done="removed",
        ),
    ),
)


@SCHEDULE.command("trigger schedule {name}", name=NAME)
async def trigger(
    client: Client, name: str, wait: bool, timeout: int | None, as_json: bool
) -> None:
    """Run a schedule now, in addition to its times, even while it is paused. Prints the task's id.

    $ onward schedule trigger report
    $ onward schedule trigger report --wait --timeout 5m
    """
    from onward.cli import watching

    task = await client.schedules.trigger(name)
    await watching.print_task(client, task, wait=wait, timeout_ms=timeout, as_json=as_json)
