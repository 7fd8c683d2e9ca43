"""`onward dlq …`: look at tasks that failed permanently, replay or abandon them."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from onward.cli.commands import Option, Options, Resource, Verb, command, flag, option
from onward.cli.submit import given, read_payload
from onward.cli.tables import (
    Fields,
    HasItems,
    as_text,
    card,
    card_of,
    cell,
    confirm,
    hint,
    print_page,
    progress_bar,
    since,
)
from onward.cli.task import FILTERS, ID, TASK
from onward.cli.terminal import (
    NOT_FOUND,
    REFUSED,
    USAGE,
    ago,
    console,
    fail,
    format_duration,
    plain,
    print_json,
)

if TYPE_CHECKING:
    from onward.client.http import Client, TaskEvent, TaskView

CHUNK = 256  # ids a call: few enough that a bar moves
MOST_IDS = 10_000  # that one call takes
NONE = "no dead letters"
MOST_REFUSALS = 10  # that are printed

FILTER: Options = {
    "fingerprint": option("--fingerprint", "Only those that failed in this way; see dlq list."),
    **FILTERS,
}
IDS = typer.Argument(metavar="[ID]...", help="The ids of dead letters.")
CHOICE: Options = {
    "ids": Option(Annotated[list[str] | None, IDS], None),
    **FILTER,
    "every": flag("--all", "Every dead letter."),
    "dry_run": flag("--dry-run", "Change nothing; print how many would be changed."),
    "yes": flag("--yes -y", "Do not ask for confirmation."),
}
CHANGES: Options = {
    "payload": option("--payload", "Run all with this payload.", metavar="JSON|@FILE|-"),
    "patch": option("--patch", "A JSON merge patch for each payload.", metavar="JSON|@FILE|-"),
    "rate": option("--rate", "How many start per second.", float | None, min=0.001),
}
TASK_COLUMNS: Fields = {
    "id": "id",
    "type": "type",
    "died": since("finished_at"),
    "attempts": "attempt",
    "about": lambda task: cell(task.reason, 100),
}


def _list(client: Client, cursor: str | None, limit: int, **filter: Any) -> Awaitable[Any]:
    if filter["fingerprint"] is None:
        return client.dead_letters(**given(filter))
    return client.dead_tasks(cursor=cursor, limit=limit, **given(filter))


def _print_list(page: HasItems) -> None:
    if page.items and hasattr(page.items[0], "fingerprint"):
        DLQ.print_page(page, none=NONE)
    else:
        print_page(page, TASK_COLUMNS, none=NONE)


DLQ = Resource(
    "dlq",
    "Look at tasks that failed permanently (dead letters); replay or abandon them.",
    noun="dead letter",
    columns={
        "fingerprint": "fingerprint",
        "count": "count",
        "last": since("last_at"),
        "types": "types",
        "about": lambda group: cell(group.message, 100),
    },
    verbs=(
        Verb(
            "list",
            """List dead letters, grouped by how they failed; or, with --fingerprint, one group.

            $ onward dlq list
            $ onward dlq list --fingerprint InvalidInput:0a1b2c3d --json | jq -r '.items[].id'""",
            _list,
            options=FILTER,
            show=_print_list,
        ),
    ),
)


@command(DLQ.app, {"id": ID}, "show dead letter {id}")
async def show(client: Client, id: str, as_json: bool) -> None:
    """Show a dead letter: its payload, and the error of each attempt.

    $ onward dlq show 01990000-…
    """
    task, events = await client.get(id), (await client.events(id)).items
    if task.state != "dead":
        why, then = f"it is {task.state}", f"onward task get {id}"
        fail(NOT_FOUND, f"{id} is not a dead letter", why, then)
    if as_json:
        print_json(task)
    else:
        _print_card(task, events)


@command(DLQ.app, {**CHOICE, **CHANGES}, "replay dead letters")
async def replay(
    client: Client,
    payload: str | None,
    patch: str | None,
    rate: float | None,
    as_json: bool,
    **choice: Any,
) -> None:
    """Run dead letters again from the beginning, with their old ids. Exit code 4: some refused.

    $ onward dlq replay 01990000-… --payload @mended.json
    $ onward dlq replay --fingerprint InvalidInput:0a1b2c3d --rate 5 --yes
    $ onward dlq replay --type mail --patch '{"from": "us@example.org"}' --dry-run
    """
    which = _choice(**choice)
    if payload is not None and patch is not None:
        fail(USAGE, "both --payload and --patch are given", "", "give one of them")
    texts = {"payload": payload, "patch": patch}
    changes = {name: read_payload(text, f"the {name}") for name, text in given(texts).items()}
    call: Callable[..., Awaitable[Any]] = partial(client.replay, **changes)
    if rate is None or which.dry_run:
        done = await _change(client, which, "Replay", "replayed", call)
    else:
        ids = await _chosen(client, which, "Replay")
        many = len(ids) > MOST_IDS
        done = await (call(filter=which.filter, rate=rate) if many else call(ids, rate=rate))
        await _watch_starts(client, ids, rate)
    _report(done, "replayed", dry_run=which.dry_run, as_json=as_json)


@command(DLQ.app, CHOICE, "abandon dead letters")
async def abandon(client: Client, as_json: bool, **choice: Any) -> None:
    """Give dead letters up: they count as failed from then on. Exit code 4: some refused.

    $ onward dlq abandon --type report --yes
    """
    which = _choice(**choice)
    done = await _change(client, which, "Abandon", "abandoned", client.abandon)
    _report(done, "abandoned", dry_run=which.dry_run, as_json=as_json)


class DeadLetterChoice(NamedTuple):
    """Which dead letters are changed."""

    ids: list[str] | None
    filter: Any  # None: ids are given
    dry_run: bool
    yes: bool


def _choice(
    *, ids: list[str] | None, every: bool, dry_run: bool, yes: bool, **filter: Any
) -> DeadLetterChoice:
    wanted = given(filter)
    then = "name ids, or filter with --fingerprint, --type, --queue or --search, or take --all"
    if not (ids or wanted or every):
        fail(USAGE, "no dead letters are chosen", "only what is named is changed", then)
    if ids and (wanted or every):
        fail(USAGE, "both ids and a filter are given", "only one of them can be used", then)
    return DeadLetterChoice(ids, None if ids else wanted, dry_run, yes)


async def _chosen(client: Client, which: DeadLetterChoice, verb: str) -> list[str]:
    """The oldest first, once the user has confirmed."""
    if which.ids:
        return which.ids
    ids: list[str] = []
    cursor: str | None = None
    while True:
        page = await client.dead_tasks(cursor=cursor, limit=1000, **which.filter)
        ids += [task.id for task in page.items]
        cursor = page.next
        if cursor is None:
            break
    if ids and not which.yes:
        confirm(f"{verb} {_letters(len(ids))}?")
    return ids[::-1]


async def _change(
    client: Client,
    which: DeadLetterChoice,
    verb: str,
    did: str,
    call: Callable[..., Awaitable[Any]],
) -> Any:
    """One call for each chunk of ids, their answers as one; a dry run is one call."""
    import msgspec

    if which.dry_run:
        return await call(which.ids, filter=which.filter, dry_run=True)
    ids = await _chosen(client, which, verb)
    parts: list[Any] = []
    with progress_bar() as progress:
        row = progress.add_task(did, total=len(ids))
        for at in range(0, max(1, len(ids)), CHUNK):
            parts.append(await call(ids[at : at + CHUNK]))
            progress.update(row, completed=min(at + CHUNK, len(ids)))
    counts = ("matched", "refused_count", did)
    return msgspec.structs.replace(
        parts[0],
        refused=tuple(refusal for part in parts for refusal in part.refused),
        **{count: sum(getattr(part, count) for part in parts) for count in counts},
    )


async def _watch_starts(client: Client, ids: Sequence[str], rate: float) -> None:
    """The server keeps the pace by itself: this only shows it on a terminal."""
    if not sys.stderr.isatty():
        return
    started = 0
    try:
        with progress_bar() as progress:
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


def _report(done: Any, did: str, *, dry_run: bool, as_json: bool) -> None:
    """What a replay or an abandonment of many did, or would do."""
    if as_json:
        print_json(done)
    elif dry_run:
        console().print(f"{_letters(done.matched - done.refused_count)} would be {did}")
        before, after = as_text("before"), as_text("after")
        for one in getattr(done, "sample", ()):
            console().print(card_of(one, {"task": "id", "before": before, "after": after}))
    else:
        console().print(f"{_letters(getattr(done, did) or 0)} {did}")
        left = (getattr(done, "until", None) or 0) - int(time.time() * 1000)
        if left > 0:
            hint(f"the last one starts in {format_duration(left)}")
    errors = console(stderr=True)
    for refusal in done.refused[:MOST_REFUSALS]:
        errors.print(f"✗ {plain(refusal.id)}: {plain(refusal.reason)}", markup=False, style="red")
    if done.refused_count > MOST_REFUSALS:
        errors.print(f"… and {done.refused_count - MOST_REFUSALS} more", style="red")
    if done.refused:
        raise typer.Exit(REFUSED)


def main() -> None:
    """`dlq_replay`, as the protocol of the streams names the tool."""
    DLQ.app(prog_name="dlq_replay")


def _letters(count: int) -> str:
    return "1 dead letter" if count == 1 else f"{count} dead letters"


def _print_card(task: TaskView, events: Sequence[TaskEvent]) -> None:
    rows = [
        ("type", cell(task.type)),
        ("queue", cell(task.queue)),
        ("died", f"{ago(task.finished_at)}, in generation {task.generation}"),
        ("payload", as_text("payload")(task)),
    ]
    replays = 0
    for event in events:
        replays += event.type == "task.replayed"
        error = event.data.get("error") if isinstance(event.data, dict) else None
        if isinstance(error, dict):
            attempt = f"attempt {event.data.get('attempt', '?')}"
            if replays:
                attempt += f", replay {replays}"
            rows.append((attempt, cell(f"{error.get('kind')}: {error.get('message')}")))
    console().print(TASK.line(task))
    console().print(card(rows))
    hint(f"onward dlq replay {task.id}   or   onward dlq abandon {task.id}")
