"""`onward run …`: look at runs of flows, signal them, stop them, begin again in the middle."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import typer

from onward.cli.commands import REQUIRED, Resource, Verb, argument, flag, option
from onward.cli.flow import RUN_OPTIONS, read_object
from onward.cli.submit import read_payload
from onward.cli.tables import cell, hint, listing, since
from onward.cli.task import EVENTS
from onward.cli.terminal import (
    NOT_FOUND,
    console,
    fail,
    format_duration,
    plain,
    print_json,
    state_mark,
)
from onward.cli.unknown import Runs

if TYPE_CHECKING:
    from rich.table import Table

    from onward.cli.following import Following
    from onward.cli.run_renderer import RunRenderer
    from onward.client.http import Client
    from onward.wire.runs import RunView

MOST_ROWS = 40  # node runs that are printed without --all
LONGEST = 100
LONGEST_VALUE = 500  # of a shared value; --json has it whole
ID = argument("ID", "The run's id.")
ID_OR_NEWEST = argument("[ID]", "The run's id; by default the newest run.", None)


def _changed(run: RunView, *, word: str = "") -> None:
    """`word` names its state until it is over."""
    state = f"– {word}" if word and not run.over else state_mark(run.state)
    console().print(f"{state}  [bright_black]{plain(run.id)}[/]")
    if not run.over:
        hint(f"onward run watch {run.id}")


RUN = Resource(
    "run",
    "Look at runs of flows, and intervene.",
    group=Runs,
    key=ID,
    example="01990000-…",
    columns={
        "id": "id",
        "flow": lambda run: cell(f"{run.flow} v{run.version}"),
        "state": lambda run: state_mark(run.state),
        "at": lambda run: "" if run.over else cell(run.current_node or ""),
        "created": since("created_at"),
        "took": lambda run: (
            format_duration(run.finished_at - run.created_at) if run.finished_at else ""
        ),
        "about": lambda run: cell(run.reason, LONGEST) if run.error is not None else "",
    },
    verbs=(
        Verb(
            "list",
            """List runs, newest first.

            $ onward run list --flow review --state waiting
            $ onward run list --json | jq -r '.items[].id'""",
            lambda client, flow, state, cursor, limit: client.runs.list(
                flow=flow, state=state, cursor=cursor, limit=limit
            ),
            options={
                "flow": option("--flow", "Only of this flow."),
                "state": option("--state", "Only in this state, such as waiting."),
            },
            none="no such runs; onward flow run NAME starts one",
        ),
        Verb(
            "signal",
            """Send a run the signal that it waits for. One that comes early is kept for it.

            $ onward run signal 01990000-… payment
            $ onward run signal 01990000-… payment '{"sum": 12.5}'""",
            lambda client, key, name, value: client.runs.signal(
                key, name, read_payload(value, "the value")
            ),
            options={
                "name": argument("NODE|KEY", "The node that waits, or its shared key."),
                "value": argument(
                    "[VALUE|-|@FILE]", "JSON text, - to read stdin, or @file.", "true"
                ),
            },
            show=_changed,
            after_conflict="onward run show {key}",
        ),
        Verb(
            "cancel",
            "Cancel a run: its workers are asked to stop, and compensations undo what was done.",
            lambda client, key: client.runs.cancel(key),
            show=partial(_changed, word="canceling"),
            after_conflict="onward run show {key}",
        ),
    ),
)


@RUN.command("show run {id}", id=ID_OR_NEWEST, every=flag("--all", "Print every node run."))
async def show(client: Client, id: str | None, every: bool, as_json: bool) -> None:
    """Show a run: its graph, each attempt of each node, and the shared state.

    $ onward run show
    $ onward run show 01990000-… --json | jq .shared
    """
    from onward.cli import following

    renderer = await following.read(client, id or await _newest(client))
    if as_json:
        print_json(renderer.run)
    else:
        _card(renderer, MOST_ROWS if not every else len(renderer.run.node_runs))


@RUN.command("watch run {id}", id=ID_OR_NEWEST, as_json=EVENTS)
async def watch(client: Client, id: str | None, timeout: int | None, as_json: bool) -> None:
    """Follow a run until it is over. Exit codes: 0 succeeded, 1 failed, 124 not over in time.

    Ctrl-C leaves the run alone.

    $ onward run watch
    $ onward run watch 01990000-… --json | jq -c 'select(.type == "node.finished")'
    """
    from onward.cli import following, watching

    found = id or await _newest(client)
    if as_json:
        task = await client.get(found)
        ended = await watching.print_events(client, task, timeout_ms=timeout)
        raise typer.Exit(watching.exit_code(ended))
    run = await following.until_over(client, found, timeout_ms=timeout, quiet=False)
    await following.report(client, run, as_json=False, seen=sys.stderr.isatty())


@RUN.command(
    "fork run {id}",
    id=ID,
    from_node=option("--from", "The node to begin with.", str, REQUIRED, metavar="NODE"),
    anyway=flag("--anyway", "Even if nodes before it were undone, or not approved."),
    **RUN_OPTIONS,
)
async def fork(
    client: Client,
    id: str,
    from_node: str,
    shared: str | None,
    anyway: bool,
    **follow: Unpack[Following],
) -> None:
    """Start a new run at a node of an old one, with the state from before that node, or --shared.

    $ onward run fork 01990000-… --from publish --watch
    $ onward run fork 01990000-… --from subflow/publish --shared @mended.json --wait
    $ onward run fork 01990000-… --from publish --anyway
    """
    from onward.cli import following

    state = None if shared is None else read_object("--shared", shared)
    run = await client.runs.fork(id, from_node, state, anyway=anyway)
    await following.report_on(client, run, **follow)


async def _newest(client: Client) -> str:
    page = await client.runs.list(limit=1)
    if not page.items:
        fail(NOT_FOUND, "there is no run yet", "", "onward flow run NAME   or   onward demo flow")
    return page.items[0].id


def _card(renderer: RunRenderer, most: int) -> None:
    import msgspec

    run, out = renderer.run, console()
    out.print(renderer.header())
    for name, value in (
        ("params", run.params),
        ("forked from", run.forked_from),
        ("error", run.reason if run.error is not None else None),
    ):
        if value:
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            out.print(f"{name}  {plain(text)}", markup=False)
    out.print()
    out.print(renderer.graph())
    if run.node_runs:
        out.print()
        out.print(attempts(renderer, most))
        if len(run.node_runs) > most:
            hint(f"the last {most} of {len(run.node_runs)}; --all shows every one")
    shared = {key: value for key, value in run.shared.items() if key != "_rt"}
    if shared:
        out.print()
        out.print(_shared(shared))
    for step in renderer.hints():
        console(stderr=True).print(step)


def _shared(shared: Mapping[str, Any]) -> Table:
    import msgspec

    table = listing("shared", "", folds=("",))
    for key, value in shared.items():
        text = plain(msgspec.json.encode(value).decode())
        cut = text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]} …"
        table.add_row(cell(key), cell(cut))
    return table


def attempts(renderer: RunRenderer, most: int = MOST_ROWS) -> Table:
    from rich.text import Text

    from onward.cli.run_renderer import SHOWN

    names = ("node", "attempt", "status", "took", "worker", "action", "output")
    table = listing(*names, folds=("output",))
    for row in renderer.run.node_runs[-most:]:
        mark, colour = SHOWN.get(row.status, SHOWN[""])
        took = None if row.finished_at is None else row.finished_at - (row.started_at or 0)
        table.add_row(
            cell(("undo " if renderer.undoes(row) else "") + row.node_key),
            str(row.attempt_no),
            Text(f"{mark} {row.status}", style=colour),
            format_duration(took),
            cell(row.worker_id or "–"),
            cell(row.action or "–"),
            cell(row.error_text or row.exec_output_json, LONGEST),
        )
    return table
