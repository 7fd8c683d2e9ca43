"""`onward demo`: a server with something going on. `onward demo flow`: one flow, looked at closely.

Everything in it is real: tasks handed in through the doors and done by workers of this process. It
changes nothing but what is called `demo-…`, and takes back what would go on without it.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from onward.cli.demo import branching
from onward.cli.terminal import FAILED, USAGE, AsJson, Server, duration_ms, fail, print_json

app = typer.Typer(invoke_without_command=True)
app.command()(branching.flow)


@app.callback()
def demo(
    context: typer.Context,
    length: Annotated[
        int | None,
        typer.Option(
            "--for",
            parser=duration_ms,
            metavar="30s|5m",
            help="Only so long.",
            show_default="until Ctrl-C",
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Each thing once, until all of it is there; then end.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=1,
            max=65535,
            help="On this machine: the server there, or a new one.",
            show_default="8070",
        ),
    ] = None,
    redis: Annotated[
        str | None,
        typer.Option(
            "--redis",
            metavar="URL",
            help="The server's Redis: adds a stream worker. Not where stream workers of yours are.",
        ),
    ] = None,
    as_json: AsJson = False,
    server: Server = None,
) -> None:
    """Fill a server with life, so that every page of /ui has something to show, until Ctrl-C.

    Where none answers and no URL was given, it starts a server of its own.

    At the end its workers and schedules are gone; tasks stay as history.

    Exit code 1 with --once: something did not come about.

    Examples:

    [cyan]onward demo[/]

    [cyan]onward demo --for 5m --server http://127.0.0.1:9000[/]

    [cyan]onward demo --once --json | jq .made[/]
    """
    if context.invoked_subcommand is not None:
        return
    if once and length is not None:
        fail(USAGE, "--once and --for exclude each other", "--once ends by itself", "take one")
    if port is not None and server not in (None, os.environ.get("ONWARD_URL")):
        fail(USAGE, "--port and --server exclude each other", "both say where it is", "take one")
    from onward.cli.demo.stage import Plan, play

    url = server if port is None else f"http://127.0.0.1:{port}"
    ended = play(
        Plan(
            url=url,
            own=port is not None or server is None,
            length_ms=length,
            once=once,
            redis=redis,
            quiet=as_json,
        )
    )
    if as_json:
        print_json(ended)
    if ended.missing:
        raise typer.Exit(FAILED)
