"""`onward batch …`: tasks that were handed in together."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import typer

from onward.cli.commands import Resource, Verb, argument
from onward.cli.tables import cell, hint, progress_bar, since
from onward.cli.terminal import FAILED, MARKS, TIMED_OUT, plain, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onward.client.http import Client
    from onward.wire.base import State
    from onward.wire.batches import BatchView

BAD: Sequence[State] = ("failed", "dead", "canceled")
SHOWN_EVERY = timedelta(seconds=1)


def _counts(batch: BatchView) -> str:
    return ", ".join(f"{count} {state}" for state, count in batch.states.items())


def _title(batch: BatchView) -> str:
    tasks = "1 task" if batch.total == 1 else f"{batch.total} tasks"
    mark = MARKS["succeeded" if batch.over else "queued"]
    return f"{mark} {tasks}  [bright_black]{plain(batch.id)}[/]  {_counts(batch)}"


BATCH = Resource(
    "batch",
    "See how far tasks are that were handed in together.",
    key=argument("ID", "The batch's id."),
    example="01990000-…",
    see_also="onward submit TYPE --from rows.jsonl",
    columns={},
    title=_title,
    card={
        "name": lambda batch: cell(batch.name or ""),
        "done": lambda batch: f"{batch.done} of {batch.total}",
        "handed in": since("created_at"),
        "over": lambda batch: since("finished_at")(batch) if batch.over else "",
        "then": lambda batch: cell(batch.on_complete or ""),
    },
    next_steps=lambda batch: (
        f"onward task list --batch {batch.id}"
        + ("" if batch.over else f"   or   onward batch watch {batch.id}")
    ),
    verbs=(
        Verb(
            "show",
            "Show how many tasks of a batch are in which state.",
            lambda client, key: client.batches.get(key),
        ),
    ),
)


@BATCH.command("watch batch {id}", id=argument("ID", "The batch's id."))
async def watch(client: Client, id: str, timeout: int | None, as_json: bool) -> None:
    """Show how far a batch is until all its tasks are over.

    Exit codes: 0 all succeeded, 1 some did not, 124 not over in time.

    $ onward batch watch 01990000-…
    """
    ended = await until_over(client, await client.batches.get(id), timeout)
    print_json(ended) if as_json else BATCH.print_line(ended)
    if has_failures(ended):
        raise typer.Exit(FAILED)


async def until_over(client: Client, batch: BatchView, timeout_ms: int | None) -> BatchView:
    from onward.client.errors import StillRunning

    left = timeout_ms
    with progress_bar() as progress:
        row = progress.add_task("done", total=batch.total, completed=batch.done)
        while True:
            try:
                return await client.batches.wait(batch.id, SHOWN_EVERY)
            except StillRunning:
                batch = await client.batches.get(batch.id)
                progress.update(row, total=batch.total, completed=batch.done)
            if left is not None:
                left -= int(SHOWN_EVERY.total_seconds() * 1000)
                if left <= 0:
                    hint(f"it goes on: onward batch watch {batch.id}")
                    raise typer.Exit(TIMED_OUT)


def has_failures(batch: BatchView) -> bool:
    return any(batch.states.get(state) for state in BAD)
