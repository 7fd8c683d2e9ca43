"""`onward task …`: look at tasks, and intervene."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from onward.cli.tables import Cursor, Limit, card, cell, hint, listing, show_page
from onward.cli.terminal import (
    MARKS,
    AsJson,
    Server,
    TaskIdArgument,
    ago,
    console,
    converse,
    duration_ms,
    humane,
    plain,
    print_json,
    state_mark,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from onward.client.http import Client
    from onward.wire.tasks import TaskView

app = typer.Typer(help="Look at tasks, and intervene.", no_args_is_help=True)


@app.command()
def get(id: TaskIdArgument, as_json: AsJson = False, server: Server = None) -> None:
    """Show a task.

    Example: [cyan]onward task get 01990000-… --json | jq .result[/]
    """
    task = converse(server, f"show task {id}", lambda client: client.get(id))
    if as_json:
        print_json(task)
    else:
        _card(task)


@app.command("list")
def list_(
    state: Annotated[str | None, typer.Option("--state", help="Such as queued or dead.")] = None,
    type: Annotated[str | None, typer.Option("--type")] = None,
    queue: Annotated[str | None, typer.Option("--queue")] = None,
    session: Annotated[str | None, typer.Option("--session")] = None,
    q: Annotated[str | None, typer.Option("--search", "-q", help="Text to look for.")] = None,
    cursor: Cursor = None,
    limit: Limit = 20,
    as_json: AsJson = False,
    server: Server = None,
) -> None:
    """List tasks, newest first.

    Examples:

    [cyan]onward task list --state dead --type report[/]

    [cyan]onward task list --json --limit 1000 | jq -r '.items[].id'[/]
    """
    page = converse(
        server,
        "list tasks",
        lambda client: client.list(
            state=state, type=type, queue=queue, session=session, q=q, cursor=cursor, limit=limit
        ),
    )
    show_page(page, _rows, none="no such tasks; onward submit makes one", as_json=as_json)


@app.command()
def cancel(id: TaskIdArgument, as_json: AsJson = False, server: Server = None) -> None:
    """Cancel a task: at once if it waits; if it runs, its worker is asked to stop.

    Example: [cyan]onward task cancel 01990000-…[/]
    """
    task = converse(server, f"cancel task {id}", lambda client: client.cancel(id))
    if task.state == "running" and not as_json:
        console().print(f"{MARKS['canceled']} canceling  [bright_black]{plain(task.id)}[/]")
        hint(f"its worker was asked to stop: onward task watch {task.id}")
    else:
        _changed(task, as_json=as_json)


@app.command()
def retry(id: TaskIdArgument, as_json: AsJson = False, server: Server = None) -> None:
    """Run a task again that failed, died or was canceled.

    Example: [cyan]onward task retry 01990000-…[/]
    """
    _changed(converse(server, f"retry task {id}", lambda client: client.retry(id)), as_json=as_json)


@app.command()
def explain(id: TaskIdArgument, as_json: AsJson = False, server: Server = None) -> None:
    """Say why a task is where it is.

    Example: [cyan]onward task explain 01990000-…[/]
    """
    found = converse(server, f"explain task {id}", lambda client: client.explain(id))
    if as_json:
        print_json(found)
        return
    out = console()
    out.print(plain(found.sentence), markup=False)
    if found.hint:
        out.print(f"→ {plain(found.hint)}", markup=False)


@app.command()
def events(id: TaskIdArgument, as_json: AsJson = False, server: Server = None) -> None:
    """Show what has happened to a task.

    Example: [cyan]onward task events 01990000-…[/]
    """
    page = converse(server, f"show task {id}", lambda client: client.events(id))
    if as_json:
        print_json(page)
        return
    import msgspec

    began = page.items[0].at if page.items else 0
    table = listing("n", "after", "event", "data", folds=("data",))
    for event in page.items:
        data = msgspec.json.encode(event.data).decode() if event.data else ""
        table.add_row(str(event.n), humane(event.at - began), event.type, cell(data))
    console().print(table)


@app.command()
def watch(
    id: TaskIdArgument,
    timeout: Annotated[
        int | None,
        typer.Option("--timeout", parser=duration_ms, metavar="30s|5m", help="At most so long."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a line.")] = False,
    server: Server = None,
) -> None:
    """Follow a task until it is over. Exit codes: 0 succeeded, 1 failed, 124 not over in time.

    Examples:

    [cyan]onward task watch 01990000-…[/]

    [cyan]onward task watch 01990000-… --json | jq -c 'select(.type == "task.chunk")'[/]
    """
    from onward.cli import watching

    async def talk(client: Client) -> TaskView:
        task = await client.get(id)
        follow = watching.until_over if not as_json else watching.spoken
        return await follow(client, task, timeout_ms=timeout)

    task = converse(server, f"watch task {id}", talk)
    if as_json:
        raise typer.Exit(watching.exit_code(task))
    watching.report(task, as_json=False)


def _changed(task: TaskView, *, as_json: bool) -> None:
    if as_json:
        print_json(task)
    else:
        console().print(f"{state_mark(task.state)}  [bright_black]{plain(task.id)}[/]")


def _card(task: TaskView) -> None:
    import msgspec

    rows = [
        ("type", task.type),
        ("queue", task.queue),
        ("attempt", f"{task.attempt}, generation {task.generation}"),
        ("created", ago(task.created_at)),
        ("started", ago(task.started_at)),
        ("finished", ago(task.finished_at)),
    ]
    if task.progress is not None:
        rows.append(("progress", f"{task.progress:.0%} {task.progress_message or ''}"))
    if task.error is not None:
        rows.append(("error", task.reason))
    rows.append(("payload", msgspec.json.encode(task.payload).decode()))
    if task.state == "succeeded":
        rows.append(("result", msgspec.json.encode(task.result).decode()))
    out = console()
    out.print(f"{state_mark(task.state)}  [bright_black]{plain(task.id)}[/]")
    out.print(card(rows))


def _rows(tasks: Sequence[TaskView]) -> Table:
    table = listing("id", "type", "state", "created", "about")
    for task in tasks:
        about = task.reason if task.error is not None else task.progress_message or ""
        table.add_row(
            task.id,
            cell(task.type),
            state_mark(task.state),
            ago(task.created_at),
            cell(about, 100),
        )
    return table
