"""`onward operation …`, and `onward task cancel|retry|delete --filter`: many tasks at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from onward.cli.commands import Options, Resource, Verb, argument, flag, option
from onward.cli.tables import cell, confirm, hint, progress_bar, since
from onward.cli.terminal import USAGE, console, fail, plain, print_json, state_mark

if TYPE_CHECKING:
    from onward.client.http import Client
    from onward.wire.operations import OperationView

REFUSED = 4
NOT = ("not_type", "not_queue", "not_session", "not_tag", "not_batch", "not_partition")
LISTS = ("state", "tag", *NOT)
NUMBERS = ("created_after", "created_before", "finished_after", "finished_before")
WHERE = ("type", "queue", "partition", "batch", "session", "owner")
FIELDS = ("state", "tag", *WHERE, "q", *NUMBERS, *NOT, "all")
EVERY_S = 0.2

FILTER: Options = {
    "filter": option(
        "--filter",
        "Which tasks, as in state=queued; again for each further condition.",
        list[str] | None,
        metavar="FIELD=VALUE",
    ),
    "dry_run": flag("--dry-run", "Only count what would match."),
    "yes": flag("--yes -y", "Do not ask."),
    "rate": option("--rate", "How many a second.", float | None, min=0.001),
    "wait": flag("--wait", "Show how far it is until it is over."),
}

OPERATION = Resource(
    "operation",
    "Look at what was done to many tasks at once, and stop it.",
    key=argument("ID", "The operation's id."),
    example="01990000-…",
    columns={
        "id": "id",
        "action": "action",
        "state": lambda each: state_mark(each.state),
        "matched": lambda each: str(each.matched),
        "done": lambda each: str(each.done),
        "failed": lambda each: str(each.failed),
        "created": since("created_at"),
    },
    title=lambda each: (
        f"{state_mark(each.state)}  {each.action} {each.done}/{each.matched}"
        f"  [bright_black]{plain(each.id)}[/]"
    ),
    verbs=(
        Verb(
            "list",
            "List operations, newest first.",
            lambda client, cursor, limit: client.operations.list(cursor=cursor, limit=limit),
            none="no operations; onward task cancel --filter begins one",
        ),
        Verb(
            "show", "Show how far an operation is.", lambda client, key: client.operations.get(key)
        ),
        Verb(
            "cancel",
            "Stop an operation; what it has done stays done.",
            lambda client, key: client.operations.stop(key),
            after_conflict="onward operation show {key}",
        ),
    ),
)


async def operate(
    client: Client,
    verb: str,
    filter: Sequence[str],
    dry_run: bool,
    yes: bool,
    rate: float | None,
    wait: bool,
    as_json: bool,
) -> None:
    which, call = _which(filter), getattr(client.operations, verb)
    if dry_run or not yes:
        matched = (await call(**which, dry_run=True)).matched
        if dry_run:
            _print_dry(verb, matched, as_json)
            return
        confirm(f"{verb.capitalize()} {_tasks(matched)}?")
    begun: OperationView = await call(**which, **({} if rate is None else {"rate": rate}))
    if wait:
        begun = await _watched(client, begun)
    if as_json:
        print_json(begun)
    else:
        OPERATION.print_line(begun)
        if not begun.over:
            hint(f"onward operation show {begun.id}   or   onward operation cancel {begun.id}")
    for refused in begun.refused:
        text = f"✗ {plain(refused.id)}: {plain(refused.reason)}"
        console(stderr=True).print(text, markup=False, style="red")
    if wait and begun.failed:
        raise typer.Exit(REFUSED)


def _print_dry(verb: str, matched: int, as_json: bool) -> None:
    if as_json:
        print_json({"action": verb, "matched": matched})
    else:
        console().print(f"{_tasks(matched)} would match")


async def _watched(client: Client, begun: OperationView) -> OperationView:
    with progress_bar() as progress:
        row = progress.add_task(begun.action, total=begun.matched)
        while not begun.over:
            await asyncio.sleep(EVERY_S)
            begun = await client.operations.get(str(begun.id))
            progress.update(row, completed=begun.done + begun.failed)
    return begun


def _which(given: Sequence[str]) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or name not in FIELDS:
            then = f"write FIELD=VALUE; the fields are {', '.join(FIELDS)}"
            fail(USAGE, f"{cell(text)} is no condition", "", then)
        if name in LISTS:
            found.setdefault(name, []).append(value)
        elif name in NUMBERS:
            if not value.isdecimal():
                fail(USAGE, f"{cell(text)} is no instant", "", "write epoch milliseconds")
            found[name] = int(value)
        else:
            found[name] = value == "true" if name == "all" else value
    return found


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"
