"""`onward flow …`: write flows, publish them, look at them, run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onward.cli.submit import read_payload
from onward.cli.tables import Timeout, cell, hint, listing, show_page
from onward.cli.terminal import (
    FAILED,
    USAGE,
    AsJson,
    Server,
    ago,
    console,
    converse,
    fail,
    plain,
    print_json,
)

if TYPE_CHECKING:
    from rich.table import Table

    from onward.cli.changes import Change
    from onward.cli.source import Source
    from onward.client.flows import RunOptions
    from onward.client.http import Client
    from onward.flow.parts import Definition
    from onward.wire.flows import FlowView
    from onward.wire.runs import RunView

app = typer.Typer(help="Write flows, publish them, look at them, run them.", no_args_is_help=True)

LOOK = "onward flow list"

SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE|-|MODULE:ATTR", help="A JSON file, - for stdin, or a flow of the builder."
    ),
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The flow's name, or its id.")]
VersionOption = Annotated[
    int | None, typer.Option("--version", min=1, help="This one.", show_default="the newest")
]
Watch = Annotated[bool, typer.Option("--watch", help="Show the graph as it runs.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the end, and show the result.")]
Shared = Annotated[
    str | None,
    typer.Option("--shared", metavar="JSON|@FILE|-", help="The shared state to begin with."),
]


@app.command()
def validate(source: SourceArgument, as_json: AsJson = False) -> None:
    """Say everything that is wrong with a definition. Needs no server. Exit code 1: something is.

    Examples:

    [cyan]onward flow validate review.json[/]

    [cyan]onward flow validate flows.py:review[/]
    """
    from onward.cli import faults
    from onward.cli.source import load

    found = load(source)
    if as_json:
        _verdict(found)
        return
    definition = faults.sound(found)
    faults.warn(found, definition.warnings)
    counts = f"{_counted(definition.nodes, 'node')}, {_counted(definition.edges, 'edge')}"
    console().print(f"[green]✓[/] {_named(found)}: {counts}")


@app.command()
def apply(
    source: SourceArgument,
    name: Annotated[
        str | None,
        typer.Option("--name", help="The flow's.", show_default="the definition's, the file's"),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="A new version even if nothing has changed.")
    ] = False,
    as_json: AsJson = False,
    server: Server = None,
) -> None:
    """Publish a definition as the next version of its flow, and say what has changed.

    Examples:

    [cyan]onward flow apply review.json[/]

    [cyan]onward flow apply flows.py:review --name review-test[/]
    """
    from onward.cli import faults
    from onward.cli.source import load

    found = load(source)
    definition = faults.sound(found)
    flow = name or found.flow
    if not flow:
        fail(USAGE, "the flow has no name", "neither here nor in the definition", "--name NAME")

    async def talk(client: Client) -> tuple[FlowView, list[Change] | None]:
        newest = await published(client, flow)
        changed = None if newest is None else _changes(newest, definition)
        if newest is not None and not changed and not force:
            return newest, changed
        return await client.flows.publish(flow, found.raw), changed

    view, changed = converse(server, f"publish {flow}", talk, look=LOOK)
    fresh = changed is None or bool(changed) or force
    if as_json:
        print_json(
            {
                "flow": view.name,
                "version": view.version,
                "version_id": view.version_id,
                "changed": fresh,
                "changes": changed or [],
                "warnings": faults.rows(found, definition.warnings),
            }
        )
        return
    faults.warn(found, definition.warnings)
    out = console()
    if not fresh:
        out.print(f"[bright_black]=[/] {_title(view)}: nothing has changed")
        return
    out.print(f"[green]✓[/] {_title(view)} is published")
    for change in changed or ():
        out.print(f"  {change}", markup=False)
    hint(f"onward flow run {view.name} --watch")


@app.command("list")
def list_(as_json: AsJson = False, server: Server = None) -> None:
    """List flows, newest first.

    Example: [cyan]onward flow list --json | jq -r '.items[].name'[/]
    """
    page = converse(server, "list flows", lambda client: client.flows.list())
    if as_json:
        print_json({"items": [_brief(flow) for flow in page.items], "next": page.next})
        return
    none = "no flows yet; onward flow apply FILE publishes one, onward demo flow shows one"
    show_page(page, _rows, none=none, as_json=False)


@app.command()
def show(
    name: NameArgument,
    version: VersionOption = None,
    definition: Annotated[
        bool, typer.Option("--definition", help="Only the definition, as JSON, to edit and apply.")
    ] = False,
    as_json: AsJson = False,
    server: Server = None,
) -> None:
    """Show a flow: its graph and its versions.

    Examples:

    [cyan]onward flow show review[/]

    [cyan]onward flow show review --version 2 --definition > review.json[/]
    """
    flow = converse(
        server, f"show flow {name}", lambda client: client.flows.get(name, version), look=LOOK
    )
    if definition:
        print_json(flow.definition)
    elif as_json:
        print_json(flow)
    else:
        _card(flow)


@app.command()
def graph(
    name: Annotated[
        str, typer.Argument(metavar="NAME|FILE|-|MODULE:ATTR", help="A flow, or a definition.")
    ],
    version: VersionOption = None,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="As Mermaid text.")] = False,
    server: Server = None,
) -> None:
    """Draw a flow's graph; of a file without a server.

    Examples:

    [cyan]onward flow graph review[/]

    [cyan]onward flow graph review.json --mermaid >> README.md[/]
    """
    from onward.cli.drawing import nodes_of, picture
    from onward.cli.source import is_source, load

    if is_source(name):
        from onward.cli import faults
        from onward.flow.graph import mermaid as as_mermaid

        definition = faults.sound(load(name))
        nodes, text = nodes_of(definition), as_mermaid(definition)
    else:
        flow = converse(
            server, f"draw flow {name}", lambda client: client.flows.get(name, version), look=LOOK
        )
        nodes, text = list(flow.nodes), flow.mermaid
    if mermaid:
        print(text, end="")
    else:
        console().print(picture(nodes))


@app.command()
def run(
    name: NameArgument,
    params: Annotated[
        str | None, typer.Option("--params", metavar="JSON|@FILE|-", help="What the run is given.")
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", "-p", metavar="NAME=VALUE", help="One of them; JSON or text."),
    ] = None,
    shared: Shared = None,
    version: VersionOption = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Request id: twice the same is one run.")
    ] = None,
    watch: Watch = False,
    wait: Wait = False,
    timeout: Timeout = None,
    as_json: AsJson = False,
    server: Server = None,
) -> None:
    """Start a run. Exit codes with --wait or --watch: 0 succeeded, 1 failed, 124 not over in time.

    Examples:

    [cyan]onward flow run review -p url=https://example.org/a.txt --watch[/]

    [cyan]onward flow run review --params @params.json --wait --json | jq .result[/]
    """
    given = {**read_object("--params", params), **_pairs(param or [])}
    options: RunOptions = {"shared": read_object("--shared", shared)}
    if version is not None:
        options["version"] = version
    if key is not None:
        options["request_id"] = key

    async def talk(client: Client) -> RunView:
        return await client.flows.start(name, given, **options)

    from onward.cli import following

    following.begun(
        server,
        f"run flow {name}",
        talk,
        look=LOOK,
        watch=watch,
        wait=wait,
        timeout=timeout,
        as_json=as_json,
    )


def _verdict(source: Source) -> None:
    from onward.cli import faults
    from onward.flow.definition import DefinitionFaults

    try:
        warnings = faults.rows(source, source.read().warnings)
        print_json({"valid": True, "faults": [], "warnings": warnings})
    except DefinitionFaults as error:
        found = faults.rows(source, error.flaws)
        print_json({"valid": False, "faults": found, "warnings": []})
        raise typer.Exit(FAILED) from None


async def published(client: Client, flow: str) -> FlowView | None:
    """The flow as it is now; None: there is none, or it has no version."""
    from onward.client.errors import ProblemError

    try:
        found = await client.flows.get(flow)
    except ProblemError as error:
        if error.status != 404:
            raise
        return None
    return found if found.version else None


def _changes(newest: FlowView, definition: Definition) -> list[Change]:
    from onward.cli.changes import changes
    from onward.flow.definition import parse

    return changes(parse(newest.definition), definition)


def read_object(option: str, text: str | None) -> dict[str, Any]:
    value = {} if text is None else read_payload(text, option)
    if not isinstance(value, dict):
        fail(USAGE, f"{option} must be a JSON object", f"it is {text}", f"{option} '{{\"n\": 1}}'")
    return value


def _pairs(texts: list[str]) -> Mapping[str, Any]:
    import msgspec

    pairs: dict[str, Any] = {}
    for text in texts:
        name, given, value = text.partition("=")
        if not given or not name:
            fail(USAGE, f"--param {text} cannot be read", "there is no = in it", "-p n=1")
        try:
            pairs[name] = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            if value.startswith(("[", "{", '"')):
                then = f"""quote it for the shell: -p '{name}=[1, 2]'; a text: -p '{name}="[…"'"""
                fail(USAGE, f"--param {name} is not JSON", f"{value}: {error}", then)
            pairs[name] = value
    return pairs


def _brief(flow: FlowView) -> Mapping[str, Any]:
    return {
        "id": flow.id,
        "name": flow.name,
        "version": flow.version,
        "created_at": flow.created_at,
    }


def _rows(flows: Sequence[FlowView]) -> Table:
    table = listing("name", "version", "created", "id", folds=("name",))
    for flow in flows:
        version = str(flow.version) if flow.version else "–"
        table.add_row(cell(flow.name), version, ago(flow.created_at), flow.id)
    return table


def _named(source: Source) -> str:
    return cell(source.name)


def _counted(things: Any, what: str) -> str:
    return f"{len(things)} {what}" if len(things) == 1 else f"{len(things)} {what}s"


def _title(flow: FlowView) -> str:
    return f"[bold]{cell(flow.name)}[/] version {flow.version}"


def _card(flow: FlowView) -> None:
    from onward.cli.drawing import picture

    out = console()
    if not flow.version:
        out.print(f"{_title(flow)}: nothing is published yet")
        return
    out.print(f"{_title(flow)}  [bright_black]{ago(flow.published_at)}[/]")
    for warning in flow.warnings:
        node = "" if warning.node is None else f"node {warning.node}: "
        out.print(f"! {plain(node + warning.message)}", style="yellow", markup=False)
    out.print()
    out.print(picture(flow.nodes))
    if len(flow.versions) > 1:
        out.print()
        for each in flow.versions:
            out.print(f"[bright_black]v{each.version}  {ago(each.published_at)}[/]")
