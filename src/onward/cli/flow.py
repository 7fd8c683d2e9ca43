"""`onward flow …`: write flows, publish them, look at them, run them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

import typer

from onward.cli.commands import COMMON, Options, Resource, Verb, argument, flag, option
from onward.cli.submit import given, read_payload
from onward.cli.tables import cell, hint, since
from onward.cli.terminal import FAILED, USAGE, ago, console, fail, plain, print_json, with_client

if TYPE_CHECKING:
    from onward.cli.changes import DefinitionChange
    from onward.cli.following import Following
    from onward.cli.source import Source
    from onward.client.http import Client
    from onward.flow.parts import Definition
    from onward.wire.flows import FlowView

SOURCE = argument("FILE|-|MODULE:ATTR", "A JSON file, - for stdin, or a Flow in a Python module.")
NAME = argument("NAME", "The flow's name, or its id.")
VERSION = option(
    "--version", "Which version of the flow.", int | None, min=1, show_default="the newest"
)
RUN_OPTIONS: Options = {
    "shared": option("--shared", "The shared state to begin with.", metavar="JSON|@FILE|-"),
    "watch": flag("--watch", "Show the graph as it runs."),
    **{name: COMMON[name] for name in ("wait", "timeout", "as_json")},
}


async def _show(client: Client, key: str, version: int | None, definition: bool) -> Any:
    flow = await client.flows.get(key, version)
    return flow.definition if definition else flow


def _print_card(flow: Any) -> None:
    from onward.cli.drawing import picture

    if isinstance(flow, dict):
        print_json(flow)
        return
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


FLOW = Resource(
    "flow",
    "Write flows, publish them, look at them, run them.",
    key=NAME,
    columns={
        "name": "name",
        "version": lambda flow: str(flow.version or "–"),
        "created": since("created_at"),
        "id": "id",
    },
    folds=("name",),
    verbs=(
        Verb(
            "list",
            "List flows, newest first.",
            lambda client: client.flows.list(),
            none="no flows yet; onward flow apply FILE publishes one, onward demo flow shows one",
        ),
        Verb(
            "show",
            """Show a flow: its graph and its versions.

            $ onward flow show review
            $ onward flow show review --version 2 --definition > review.json""",
            _show,
            options={
                "version": VERSION,
                "definition": flag("--definition", "Print only the definition, to edit and apply."),
            },
            show=_print_card,
        ),
    ),
)


@FLOW.command(source=SOURCE)
def validate(source: str, as_json: bool) -> None:
    """Check a definition without a server: prints every fault with its line. Exit code 1: faults.

    $ onward flow validate review.json
    $ onward flow validate flows.py:review
    """
    from onward.cli.source import load

    found = load(source)
    if as_json:
        _verdict(found)
        return
    definition = found.sound()
    found.print_flaws(definition.warnings)
    counts = f"{_counted(definition.nodes, 'node')}, {_counted(definition.edges, 'edge')}"
    console().print(f"[green]✓[/] {cell(found.name)}: {counts}")


@FLOW.command(
    source=SOURCE,
    name=option("--name", "The flow's name, instead of the one in the definition."),
    force=flag("--force", "Publish a new version even if nothing has changed."),
)
def apply(source: str, name: str | None, force: bool, as_json: bool, server: str | None) -> None:
    """Publish a definition as the next version of its flow, and print what has changed.

    $ onward flow apply review.json
    $ onward flow apply flows.py:review --name review-test
    """
    from onward.cli.source import load

    found = load(source)
    definition = found.sound()
    flow = name or found.flow
    if not flow:
        fail(USAGE, "the flow has no name", "the definition does not give one", "--name NAME")

    async def call(client: Client) -> tuple[FlowView, list[DefinitionChange] | None]:
        newest = await published(client, flow)
        changed = None if newest is None else _changes(newest, definition)
        if newest is not None and not changed and not force:
            return newest, changed
        return await client.flows.publish(flow, found.raw), changed

    view, changed = with_client(server, f"publish {flow}", call, see_also=FLOW.see_also)
    fresh = changed is None or bool(changed) or force
    if as_json:
        print_json(
            {
                "flow": view.name,
                "version": view.version,
                "version_id": view.version_id,
                "changed": fresh,
                "changes": changed or [],
                "warnings": found.rows(definition.warnings),
            }
        )
        return
    found.print_flaws(definition.warnings)
    out = console()
    if not fresh:
        out.print(f"[bright_black]=[/] {_title(view)}: nothing has changed")
        return
    out.print(f"[green]✓[/] {_title(view)} is published")
    for change in changed or ():
        out.print(f"  {change}", markup=False)
    hint(f"onward flow run {view.name} --watch")


@FLOW.command(
    name=argument("NAME|FILE|-|MODULE:ATTR", "A published flow, or a definition."),
    version=VERSION,
    mermaid=flag("--mermaid", "Print it as Mermaid text."),
)
def graph(name: str, version: int | None, mermaid: bool, server: str | None) -> None:
    """Draw the graph of a flow. A definition in a file needs no server.

    $ onward flow graph review
    $ onward flow graph review.json --mermaid >> README.md
    """
    from onward.cli.drawing import picture
    from onward.cli.source import is_source, load

    if is_source(name):
        from onward.flow.graph import mermaid as as_mermaid
        from onward.flow.graph import outline

        definition = load(name).sound()
        nodes, text = outline(definition), as_mermaid(definition)
    else:

        async def call(client: Client) -> FlowView:
            return await client.flows.get(name, version)

        flow = with_client(server, f"draw flow {name}", call, see_also=FLOW.see_also)
        nodes, text = list(flow.nodes), flow.mermaid
    if mermaid:
        print(text, end="")
    else:
        console().print(picture(nodes))


@FLOW.command(
    "run flow {name}",
    name=NAME,
    params=option("--params", "The parameters of the run.", metavar="JSON|@FILE|-"),
    param=option(
        "--param -p", "One parameter; JSON or text.", list[str] | None, metavar="NAME=VALUE"
    ),
    version=VERSION,
    request_id=option("--request-id", "Started twice with it, it is still one run."),
    **RUN_OPTIONS,
)
async def run(
    client: Client,
    name: str,
    params: str | None,
    param: list[str] | None,
    version: int | None,
    request_id: str | None,
    shared: str | None,
    **follow: Unpack[Following],
) -> None:
    """Start a run. Exit codes with --wait or --watch: 0 succeeded, 1 failed, 124 not over in time.

    $ onward flow run review -p url=https://example.org/a.txt --watch
    $ onward flow run review --params @params.json --wait --json | jq .result
    """
    from onward.cli import following

    values = {**read_object("--params", params), **_pairs(param or [])}
    options = given({"version": version, "request_id": request_id})
    state = read_object("--shared", shared)
    started = await client.flows.start(name, values, shared=state, **options)
    await following.report_on(client, started, **follow)


def _verdict(source: Source) -> None:
    from onward.flow.definition import DefinitionFaults

    try:
        warnings = source.rows(source.read().warnings)
        print_json({"valid": True, "faults": [], "warnings": warnings})
    except DefinitionFaults as error:
        print_json({"valid": False, "faults": source.rows(error.flaws), "warnings": []})
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


def _changes(newest: FlowView, definition: Definition) -> list[DefinitionChange]:
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


def _counted(things: Any, what: str) -> str:
    return f"{len(things)} {what}" if len(things) == 1 else f"{len(things)} {what}s"


def _title(flow: FlowView) -> str:
    return f"[bold]{cell(flow.name)}[/] version {flow.version}"
