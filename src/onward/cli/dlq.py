"""`onward dlq …`: look at what died, replay it, or give it up."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from onward.cli.submit import read_payload
from onward.cli.tables import Cursor, Limit, card, cell, hint, listing, show_page
from onward.cli.terminal import (
    NOT_FOUND,
    REFUSED,
    USAGE,
    AsJson,
    Server,
    TaskIdArgument,
    ago,
    console,
    converse,
    fail,
    humane,
    plain,
    print_json,
    state_mark,
)

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

    from onward.client.http import Client, DeadFilter
    from onward.wire.dead_letters import Abandoned, Bulk, DeadGroup, Mended, Replayed
    from onward.wire.tasks import TaskEvent, TaskView

B = TypeVar("B", bound="Bulk")

app = typer.Typer(help="Look at what died, replay it, or give it up.", no_args_is_help=True)

CHUNK = 256  # ids a call: few enough that a bar moves
MOST_IDS = 10_000  # that one call takes
NONE = "no dead letters"
TOLD = 10  # refusals that are printed

Fingerprint = Annotated[
    str | None, typer.Option("--fingerprint", help="What died of this; see dlq list.")
]
Type = Annotated[str | None, typer.Option("--type")]
Queue = Annotated[str | None, typer.Option("--queue")]
Search = Annotated[str | None, typer.Option("--search", "-q", help="Text to look for.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Tasks that died.")]
Every = Annotated[bool, typer.Option("--all", help="Every dead letter.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Change nothing: show how many would be changed.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before many are changed.")]


@app.command("list")
def list_(
    fingerprint: Fingerprint = None,
    type: Type = None,
    queue: Queue = None,
    search: Search = None,
    cursor: Cursor = None,
    limit: Limit = 20,
    as_json: AsJson = False,
    server: Server = None,
) -> None:
    """List what died, grouped by what it died of; with --fingerprint, the tasks of one group.

    Examples:

    [cyan]onward dlq list[/]

    [cyan]onward dlq list --fingerprint InvalidInput:0a1b2c3d --json | jq -r '.items[].id'[/]
    """
    wanted = _filter(fingerprint, type, queue, search)
    if fingerprint is not None:
        page = converse(
            server,
            "list dead letters",
            lambda client: client.dead_tasks(cursor=cursor, limit=limit, **wanted),
        )
        show_page(page, _tasks, none=NONE, as_json=as_json)
        return
    groups = converse(server, "list dead letters", lambda client: client.dead_letters(**wanted))
    show_page(groups, _groups, none=NONE, as_json=as_json)


@app.command()
def show(id: TaskIdArgument, as_json: AsJson = False, server: Server = None) -> None:
    """Show a dead letter: what it was to do, and everything that went wrong.

    Example: [cyan]onward dlq show 01990000-…[/]
    """

    async def talk(client: Client) -> tuple[TaskView, tuple[TaskEvent, ...]]:
        return await client.get(id), (await client.events(id)).items

    task, events = converse(server, f"show dead letter {id}", talk)
    if task.state != "dead":
        fail(
            NOT_FOUND,
            f"{id} is no dead letter",
            f"it is {task.state}",
            f"onward task get {id}",
        )
    if as_json:
        print_json(task)
    else:
        _card(task, events)


@app.command()
def replay(
    ids: Ids = None,
    fingerprint: Fingerprint = None,
    type: Type = None,
    queue: Queue = None,
    search: Search = None,
    every: Every = False,
    payload: Annotated[
        str | None,
        typer.Option("--payload", metavar="JSON|@FILE|-", help="One payload for all of them."),
    ] = None,
    patch: Annotated[
        str | None,
        typer.Option("--patch", metavar="JSON|@FILE|-", help="JSON merge patch for each payload."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.001, help="So many start in a second.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    server: Server = None,
) -> None:
    """Run dead letters again, from the beginning, under their old ids. Exit code 4: some refused.

    Examples:

    [cyan]onward dlq replay 01990000-… --payload @mended.json[/]

    [cyan]onward dlq replay --fingerprint InvalidInput:0a1b2c3d --rate 5 --yes[/]

    [cyan]onward dlq replay --type mail --patch '{"from": "us@example.org"}' --dry-run[/]
    """
    wanted = _filter(fingerprint, type, queue, search)
    _check_choice(ids, wanted, every)
    if payload is not None and patch is not None:
        fail(USAGE, "both --payload and --patch are given", "", "give one of them")
    mended = {"payload": payload, "patch": patch}
    given = {
        name: read_payload(text, f"the {name}") for name, text in mended.items() if text is not None
    }

    async def talk(client: Client) -> Replayed:
        if dry_run:
            return await client.replay(ids, filter=None if ids else wanted, dry_run=True, **given)
        chosen = ids or await _chosen(client, wanted, "Replay", yes=yes)
        if rate is None:
            replay = partial(client.replay, **given)
            return await _in_chunks(chosen, "replaying", replay, "replayed")
        few = len(chosen) <= MOST_IDS
        done = await client.replay(
            chosen if few else None, filter=None if few else wanted, rate=rate, **given
        )
        await _watch_starts(client, chosen, rate)
        return done

    done = converse(server, "replay dead letters", talk)
    left_ms = max(0, (done.until or 0) - int(time.time() * 1000))
    _report(done, done.replayed, "replayed", done.sample, left_ms, dry_run=dry_run, as_json=as_json)


@app.command()
def abandon(
    ids: Ids = None,
    fingerprint: Fingerprint = None,
    type: Type = None,
    queue: Queue = None,
    search: Search = None,
    every: Every = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    server: Server = None,
) -> None:
    """Give dead letters up: nobody need look at them again. Exit code 4: some refused.

    Example: [cyan]onward dlq abandon --type report --yes[/]
    """
    wanted = _filter(fingerprint, type, queue, search)
    _check_choice(ids, wanted, every)

    async def talk(client: Client) -> Abandoned:
        if dry_run:
            return await client.abandon(ids, filter=None if ids else wanted, dry_run=True)
        chosen = ids or await _chosen(client, wanted, "Abandon", yes=yes)
        return await _in_chunks(chosen, "abandoning", client.abandon, "abandoned")

    done = converse(server, "abandon dead letters", talk)
    _report(done, done.abandoned, "abandoned", dry_run=dry_run, as_json=as_json)


def _filter(
    fingerprint: str | None, type: str | None, queue: str | None, search: str | None
) -> DeadFilter:
    wanted: DeadFilter = {}
    if fingerprint is not None:
        wanted["fingerprint"] = fingerprint
    if type is not None:
        wanted["type"] = type
    if queue is not None:
        wanted["queue"] = queue
    if search is not None:
        wanted["q"] = search
    return wanted


def _check_choice(ids: list[str] | None, wanted: DeadFilter, every: bool) -> None:
    then = "name ids, or say which with --fingerprint, --type, --queue or --search, or --all"
    if not (ids or wanted or every):
        fail(USAGE, "nothing is chosen", "this changes only what is named", then)
    if ids and (wanted or every):
        fail(USAGE, "both ids and a filter are given", "it must be one of them", then)


async def _chosen(client: Client, wanted: DeadFilter, verb: str, *, yes: bool) -> list[str]:
    """The oldest first, after a word with whoever sits there."""
    ids: list[str] = []
    cursor: str | None = None
    while True:
        page = await client.dead_tasks(cursor=cursor, limit=1000, **wanted)
        ids += [task.id for task in page.items]
        cursor = page.next
        if cursor is None:
            break
    if ids and not yes:
        _confirm(f"{verb} {_letters(len(ids))}?")
    return ids[::-1]


def _confirm(question: str) -> None:
    from rich.prompt import Confirm

    # The loop's own handler would wait for this very function before it stops anything.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        agreed = Confirm.ask(question, console=console(stderr=True), default=False)
    except EOFError:
        fail(USAGE, "nobody answered", question, "a script says --yes")
    finally:
        signal.signal(signal.SIGINT, before)
    if not agreed:
        raise typer.Abort


async def _in_chunks(
    ids: Sequence[str], doing: str, call: Callable[[Sequence[str]], Awaitable[B]], did: str
) -> B:
    parts: list[B] = []
    with _bar() as progress:
        row = progress.add_task(doing, total=len(ids))
        for at in range(0, max(1, len(ids)), CHUNK):
            parts.append(await call(ids[at : at + CHUNK]))
            progress.update(row, completed=min(at + CHUNK, len(ids)))
    return _together(parts, did)


def _together(parts: Sequence[B], did: str) -> B:
    import msgspec

    counts = ("matched", "refused_count", did)
    return msgspec.structs.replace(
        parts[0],
        refused=tuple(refusal for part in parts for refusal in part.refused),
        **{count: sum(getattr(part, count) for part in parts) for count in counts},
    )


async def _watch_starts(client: Client, ids: Sequence[str], rate: float) -> None:
    """The server keeps the pace by itself: this only shows it, to whoever has a terminal."""
    if not sys.stderr.isatty():
        return
    started = 0
    try:
        with _bar() as progress:
            row = progress.add_task("starting (Ctrl-C leaves it to the server)", total=len(ids))
            while started < len(ids):
                # By phase: what has failed again and waits for its next try has started.
                if (await client.get(ids[started])).phase == "scheduled":
                    await asyncio.sleep(min(1.0, 1 / rate))
                    continue
                started += 1
                progress.update(row, completed=started)
    except asyncio.CancelledError:
        return


def _bar() -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def _report(
    done: Bulk,
    count: int,
    did: str,
    sample: Sequence[Mended] = (),
    left_ms: int = 0,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    if as_json:
        print_json(done)
    elif dry_run:
        console().print(f"{_letters(done.matched - done.refused_count)} would be {did}")
        for one in sample:
            console().print(card([("task", one.id), *_both(one)]))
    else:
        console().print(f"{_letters(count)} {did}")
        if left_ms:
            hint(f"the last one starts in {humane(left_ms)}")
    for refusal in done.refused[:TOLD]:
        console(stderr=True).print(
            f"✗ {plain(refusal.id)}: {plain(refusal.reason)}", markup=False, style="red"
        )
    if done.refused_count > TOLD:
        console(stderr=True).print(f"… and {done.refused_count - TOLD} more", style="red")
    if done.refused:
        raise typer.Exit(REFUSED)


def _both(one: Mended) -> list[tuple[str, str]]:
    import msgspec

    both = (("before", one.before), ("after", one.after))
    return [(name, msgspec.json.encode(payload).decode()) for name, payload in both]


def _letters(count: int) -> str:
    return "1 dead letter" if count == 1 else f"{count} dead letters"


def _groups(groups: Sequence[DeadGroup]) -> Table:
    table = listing("fingerprint", "count", "last", "types", "about")
    for group in groups:
        table.add_row(
            cell(group.fingerprint),
            str(group.count),
            ago(group.last_at),
            cell(", ".join(group.types)),
            cell(group.message, 100),
        )
    return table


def _tasks(tasks: Sequence[TaskView]) -> Table:
    table = listing("id", "type", "died", "attempts", "about")
    for task in tasks:
        table.add_row(
            task.id,
            cell(task.type),
            ago(task.finished_at),
            str(task.attempt),
            cell(task.reason, 100),
        )
    return table


def _card(task: TaskView, events: Sequence[TaskEvent]) -> None:
    import msgspec

    rows = [
        ("type", task.type),
        ("queue", task.queue),
        ("died", f"{ago(task.finished_at)}, in generation {task.generation}"),
        ("payload", msgspec.json.encode(task.payload).decode()),
    ]
    replays = 0
    for event in events:
        replays += event.type == "task.replayed"
        error = event.data.get("error") if isinstance(event.data, dict) else None
        if isinstance(error, dict):
            attempt = f"attempt {event.data.get('attempt', '?')}"
            if replays:
                attempt += f", replay {replays}"
            rows.append((attempt, f"{error.get('kind')}: {error.get('message')}"))
    out = console()
    out.print(f"{state_mark(task.state)}  [bright_black]{plain(task.id)}[/]")
    out.print(card(rows))
    hint(f"onward dlq replay {task.id}   or   onward dlq abandon {task.id}")
