"""`onward run …`: look at runs of flows, signal them, stop them, begin again in the middle."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onward.cli.flow import Shared, Wait, Watch, read_object
from onward.cli.submit import read_payload
from onward.cli.tables import Cursor, Limit, Timeout, cell, hint, listing, show_page
from onward.cli.terminal import (
    NOT_FOUND,
    AsJson,
    Server,
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
    from rich.table import Table

    from onward.cli.portrait import Portrait
    from onward.client.http import Client
    from onward.wire.runs import RunView

app = typer.Typer(help="Look at runs of flows, and intervene.", no_args_is_help=True)

LOOK = "onward run list"
MOST_ROWS = 40  # node runs that are printed unless all are asked for
LONGEST = 100
LONGEST_VALUE = 500  # of a shared value; --json has it whole

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The run's id.")]
IdOrNewest = Annotated[
    str | None, typer.Argument(metavar="[ID]", help="The run's id.", show_default="the newest run")
]


@app.command("list")
def list_(
    flow: Annotated[str | None, typer.Option("--flow", help="Of this flow only.")] = None,
    state: Annotated[str | None, typer.Option("--state", help="Such as waiting.")] = None,
    cursor: Cursor = None,
    limit: Limit = 20,
    as_json: AsJson = False,
    server: Server = None,
) -> None:
    """List runs, newest first.

    Examples:

    [cyan]onward run list --flow review --state waiting[/]

    [cyan]onward run list --json | jq -r '.items[].id'[/]
    """
    page = converse(
        server,
        "list runs",
        lambda client: client.runs.list(flow=flow, state=state, cursor=cursor, limit=limit),
        look="onward flow list",
    )
    none = "no such runs; onward flow run NAME starts one"
    show_page(page, _rows, none=none, as_json=as_json)


@app.command()
def show(
    id: IdOrNewest = None,
    every: Annotated[
        bool, typer.Option("--all", help=f"Every node run, not only the last {MOST_ROWS}.")
    ] = False,
    as_json: AsJson = False,
    server: Server = None,
) -> None:
    """Show a run: its graph, each attempt of each node, and the shared state.

    Examples:

    [cyan]onward run show[/]

    [cyan]onward run show 01990000-… --json | jq .shared[/]
    """
    from onward.cli import following

    async def talk(client: Client) -> Portrait:
        return await following.read(client, id or await _newest(client))

    portrait = converse(server, f"show run {id or ''}".strip(), talk, look=LOOK)
    if as_json:
        print_json(portrait.run)
    else:
        _card(portrait, MOST_ROWS if not every else len(portrait.run.node_runs))


@app.command()
def watch(
    id: IdOrNewest = None,
    timeout: Timeout = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a line.")] = False,
    server: Server = None,
) -> None:
    """Follow a run until it is over. Exit codes: 0 succeeded, 1 failed, 124 not over in time.

    Ctrl-C leaves the run alone.

    Examples:

    [cyan]onward run watch[/]

    [cyan]onward run watch 01990000-… --json | jq -c 'select(.type == "node.finished")'[/]
    """
    from onward.cli import following, watching

    async def talk(client: Client) -> RunView:
        found = id or await _newest(client)
        if as_json:
            await watching.spoken(client, await client.get(found), timeout_ms=timeout)
            return await client.runs.get(found)
        return await following.until_over(client, found, timeout_ms=timeout, quiet=False)

    run = converse(server, f"watch run {id or ''}".strip(), talk, look=LOOK)
    if as_json:
        raise typer.Exit(watching.exit_code(run))
    following.report(run, as_json=False, seen=sys.stderr.isatty())


@app.command()
def signal(
    id: IdArgument,
    name: Annotated[
        str, typer.Argument(metavar="NODE|KEY", help="The node that waits, or its shared key.")
    ],
    value: Annotated[
        str, typer.Argument(metavar="[VALUE|-|@FILE]", help="JSON, - for stdin, or @file.")
    ] = "true",
    as_json: AsJson = False,
    server: Server = None,
) -> None:
    """Tell a run what it waits for. Kept for it, should it not be there yet.

    Examples:

    [cyan]onward run signal 01990000-… payment[/]

    [cyan]onward run signal 01990000-… payment '{"sum": 12.5}'[/]
    """
    said = read_payload(value, "the value")
    run = converse(
        server,
        f"signal run {id}",
        lambda client: client.runs.signal(id, name, said),
        look=f"onward run show {id}",
    )
    _changed(run, as_json=as_json)


@app.command()
def cancel(id: IdArgument, as_json: AsJson = False, server: Server = None) -> None:
    """Cancel a run: its workers are told, and what has a compensation is undone.

    Example: [cyan]onward run cancel 01990000-…[/]
    """
    run = converse(
        server,
        f"cancel run {id}",
        lambda client: client.runs.cancel(id),
        look=f"onward run show {id}",
    )
    _changed(run, as_json=as_json, word="canceling")


@app.command()
def fork(
    id: IdArgument,
    from_node: Annotated[
        str,
        typer.Option("--from", metavar="NODE", help="Begin here; subflow/node for an inner one."),
    ],
    shared: Shared = None,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway", help="Even if nodes before it were undone since, or never approved."
        ),
    ] = False,
    watch: Watch = False,
    wait: Wait = False,
    timeout: Timeout = None,
    as_json: AsJson = False,
    server: Server = None,
) -> None:
    """Begin a new run at a node of an old one, with the state from before that node or another.

    Examples:

    [cyan]onward run fork 01990000-… --from publish --watch[/]

    [cyan]onward run fork 01990000-… --from publish --shared @mended.json --wait[/]

    [cyan]onward run fork 01990000-… --from publish --anyway[/]
    """
    from onward.cli import following

    state = None if shared is None else read_object("--shared", shared)

    async def talk(client: Client) -> RunView:
        return await client.runs.fork(id, from_node, state, anyway=anyway)

    following.begun(
        server,
        f"fork run {id}",
        talk,
        look=LOOK,
        watch=watch,
        wait=wait,
        timeout=timeout,
        as_json=as_json,
    )


async def _newest(client: Client) -> str:
    page = await client.runs.list(limit=1)
    if not page.items:
        fail(NOT_FOUND, "there is no run yet", "", "onward flow run NAME   or   onward demo flow")
    return page.items[0].id


def _changed(run: RunView, *, as_json: bool, word: str = "") -> None:
    """`word` says how it stands until it is over."""
    if as_json:
        print_json(run)
        return
    state = f"– {word}" if word and not run.over else state_mark(run.state)
    console().print(f"{state}  [bright_black]{plain(run.id)}[/]")
    if not run.over:
        hint(f"onward run watch {run.id}")


def _rows(runs: Sequence[RunView]) -> Table:
    table = listing("id", "flow", "state", "at", "created", "took", "about")
    for run in runs:
        took = None if run.finished_at is None else run.finished_at - run.created_at
        table.add_row(
            run.id,
            cell(f"{run.flow} v{run.version}"),
            state_mark(run.state),
            "" if run.over else cell(run.current_node or ""),
            ago(run.created_at),
            humane(took),
            cell(run.reason if run.error is not None else "", LONGEST),
        )
    return table


def _card(portrait: Portrait, most: int) -> None:
    import msgspec

    run, out = portrait.run, console()
    out.print(portrait.header())
    for name, value in (
        ("params", run.params),
        ("forked from", run.forked_from),
        ("error", run.reason if run.error is not None else None),
    ):
        if value:
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            out.print(f"{name}  {plain(text)}", markup=False)
    out.print()
    out.print(portrait.graph())
    if run.node_runs:
        out.print()
        out.print(attempts(portrait, most))
        if len(run.node_runs) > most:
            hint(f"the last {most} of {len(run.node_runs)}; --all shows every one")
    shared = {key: value for key, value in run.shared.items() if key != "_rt"}
    if shared:
        out.print()
        out.print(_shared(shared))
    for step in portrait.hints():
        console(stderr=True).print(step)


def _shared(shared: Mapping[str, Any]) -> Table:
    import msgspec

    table = listing("shared", "", folds=("",))
    for key, value in shared.items():
        text = plain(msgspec.json.encode(value).decode())
        cut = text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]} …"
        table.add_row(cell(key), cell(cut))
    return table


def attempts(portrait: Portrait, most: int = MOST_ROWS) -> Table:
    from rich.text import Text

    from onward.cli.portrait import SHOWN

    names = ("node", "attempt", "status", "took", "worker", "action", "output")
    table = listing(*names, folds=("output",))
    for row in portrait.run.node_runs[-most:]:
        mark, colour = SHOWN.get(row.status, SHOWN[""])
        took = None if row.finished_at is None else row.finished_at - (row.started_at or 0)
        table.add_row(
            cell(("undo " if portrait.undoes(row) else "") + row.node_key),
            str(row.attempt_no),
            Text(f"{mark} {row.status}", style=colour),
            humane(took),
            cell(row.worker_id or "–"),
            cell(row.action or "–"),
            cell(row.error_text or row.exec_output_json, LONGEST),
        )
    return table
