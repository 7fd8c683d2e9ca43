"""`onward demo`: a server at work. `onward demo flow`: one flow, node by node.

Written as any program on the SDK would be: what it hands in is done by workers of its own. It
changes nothing but what is called `demo-…`, and at its end takes back what would go on without it.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Annotated, Any

import typer

from onward.cli.commands import command
from onward.cli.demo import branching
from onward.cli.terminal import (
    USAGE,
    AsJson,
    Server,
    Token,
    duration_ms,
    fail,
    print_json,
    use_token,
    with_client,
)

app = typer.Typer(invoke_without_command=True)
command(app, branching.OPTIONS, "show the demo", "onward doctor")(branching.flow)

Length = typer.Option("--for", parser=duration_ms, metavar="30s|5m", help="Stop after this long.")
Port = typer.Option(
    min=1, max=65535, help="The server on this machine; started if none answers there."
)


@app.callback()
def demo(
    context: typer.Context,
    length: Annotated[int | None, Length] = None,
    port: Annotated[int | None, Port] = None,
    as_json: AsJson = False,
    server: Server = None,
    token: Token = None,
) -> None:
    """Fill a server with work, so that every page of /ui has something to show, until Ctrl-C.

    If no server answers and none was named, the demo starts one of its own.

    At the end its workers and schedules are gone; finished tasks stay.

    Examples:

    [cyan]onward demo[/]

    [cyan]onward demo --for 5m --server http://127.0.0.1:9000[/]
    """
    use_token(token)
    if context.invoked_subcommand is not None:
        return
    if port is not None and server not in (None, os.environ.get("ONWARD_URL")):
        fail(USAGE, "--port and --server exclude each other", "both name the server", "use one")
    from onward.cli.demo.stage import play

    url = server if port is None else f"http://127.0.0.1:{port}"
    may_start = port is not None or server is None
    call: Any = partial(play, may_start=may_start, length_ms=length, quiet=as_json)
    ended = with_client(url, "show the demo", call, see_also="onward doctor")
    if as_json:
        print_json(ended)
