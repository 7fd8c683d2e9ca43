"""`onward queue …`: what waits where, and letting a queue rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from onward.cli.tables import cell, listing, show_page
from onward.cli.terminal import AsJson, By, Server, ago, console, converse, print_json, user

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from onward.wire.queues import QueueView

app = typer.Typer(help="See what waits where; pause a queue and resume it.", no_args_is_help=True)

LOOK = "onward queue list"

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The queue's name.")]


@app.command("list")
def list_(as_json: AsJson = False, server: Server = None) -> None:
    """List queues by name: what is in them, and who serves them.

    Examples:

    [cyan]onward queue list[/]

    [cyan]onward queue list --json | jq -r '.items[] | select(.paused).name'[/]
    """
    page = converse(server, "list queues", lambda client: client.queues.list())
    none = "no queues; onward submit TYPE puts a task into one"
    show_page(page, _rows, none=none, as_json=as_json)


@app.command()
def pause(
    name: NameArgument,
    reason: Annotated[str | None, typer.Option("--reason", "-m", help="Why.")] = None,
    by: By = None,
    as_json: AsJson = False,
    server: Server = None,
) -> None:
    """Let a queue rest: work is still accepted, what runs goes on, nothing more is handed out.

    Example: [cyan]onward queue pause summarize -m 'the model is being replaced'[/]
    """
    found = converse(
        server,
        f"pause queue {name}",
        lambda client: client.queues.pause(name, by=by or user(), reason=reason),
        look=LOOK,
    )
    _shown(found, as_json=as_json)


@app.command()
def resume(name: NameArgument, as_json: AsJson = False, server: Server = None) -> None:
    """Let a queue go on.

    Example: [cyan]onward queue resume summarize[/]
    """
    found = converse(
        server, f"resume queue {name}", lambda client: client.queues.resume(name), look=LOOK
    )
    _shown(found, as_json=as_json)


def _shown(found: QueueView, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        console().print(f"{cell(found.name)}  {_pace(found)}, {found.queued} queued")


def _pace(found: QueueView) -> str:
    """Whether anything is handed out, and if not, why."""
    if found.paused is not None:
        said = ", ".join(filter(None, (found.paused.by, found.paused.reason)))
        return f"[yellow]paused[/] {ago(found.paused.since)}{cell(f', {said}' if said else '')}"
    if found.breaker is not None and found.breaker.state != "closed":
        return f"[red]breaker {found.breaker.state}[/]"
    return (
        "[green]open[/]"  # who serves it is in its own column; streams' workers are not known here
    )


def _rows(queues: Sequence[QueueView]) -> Table:
    names = ("name", "queued", "retries", "running", "dead", "workers", "slots", "")
    table = listing(*names, folds=("name", ""))
    for found in queues:
        states = found.states
        counts = (found.queued, found.retrying, states.get("running", 0), states.get("dead", 0))
        figures = [str(count) for count in (*counts, found.workers, found.slots)]
        table.add_row(cell(found.name), *figures, _pace(found))
    return table
