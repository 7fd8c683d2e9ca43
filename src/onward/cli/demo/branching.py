"""`onward demo flow`: one flow with a branch, run both ways and shown node by node."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onward.cli.tables import hint
from onward.cli.terminal import (
    FAILED,
    REFUSED,
    TIMED_OUT,
    AsJson,
    console,
    converse,
    fail,
    plain,
    print_json,
)

if TYPE_CHECKING:
    from onward.client.http import Client
    from onward.wire.flows import FlowView
    from onward.wire.runs import RunDetail

NAME = "demo-branching"
FLOW: Mapping[str, Any] = {
    "name": NAME,
    "description": "A service decides which way the text goes: to capitals, or away from them.",
    "start": "route",
    "nodes": {
        "route": {"kind": "executor", "service": "route", "post": {"action_key": "action"}},
        "B": {
            "kind": "executor",
            "service": "transform",
            "params": {"op": "upper"},
            "prep": {"input_key": "$params.text"},
            "post": {"output_key": "result"},
        },
        "C": {
            "kind": "executor",
            "service": "transform",
            "params": {"op": "lower"},
            "prep": {"input_key": "$params.text"},
            "post": {"output_key": "result"},
        },
    },
    "edges": [
        {"from": "route", "action": "goB", "to": "B"},
        {"from": "route", "action": "goC", "to": "C"},
    ],
}
SERVICES = frozenset({"route", "transform"})
BRANCHES: Mapping[str, Mapping[str, str]] = {
    "B": {"action": "goB", "text": "Hand off work"},
    "C": {"action": "goC", "text": "And Move On"},
}
START_S = 20.0
PATIENCE_MS = 60_000

Base = Annotated[
    str | None,
    typer.Option(
        "--server",
        help="URL of the server.",
        envvar=["SCHEDULER_BASE", "ONWARD_URL"],
        show_default="this machine",
    ),
]


def flow(as_json: AsJson = False, server: Base = None) -> None:
    """A flow with a branch: published, run both ways, and shown with each node's attempts.

    When no worker serves it, one is started for as long as the demo runs.

    Examples:

    [cyan]onward demo flow[/]

    [cyan]SCHEDULER_BASE=http://127.0.0.1:8070 onward demo flow[/]
    """
    view, runs = converse(server, "show the demo", _played, look="onward doctor")
    if as_json:
        told = [{"branch": branch, **_told(run)} for branch, run in runs.items()]
        print_json({"flow": view.name, "version": view.version, "runs": told})
    else:
        _shown(view, runs)
    if any(run.state != "succeeded" for run in runs.values()):
        raise typer.Exit(FAILED)


async def _played(client: Client) -> tuple[FlowView, Mapping[str, RunDetail]]:
    from onward.cli.flow import published
    from onward.client.errors import StillRunning

    view = await published(client, NAME)
    if view is None or view.definition != FLOW:
        view = await client.flows.publish(NAME, FLOW)
    async with _workers(client):
        begun = {
            branch: await client.flows.start(NAME, params) for branch, params in BRANCHES.items()
        }
        try:
            ended = await asyncio.gather(
                *(client.runs.wait(run.id, PATIENCE_MS) for run in begun.values())
            )
        except StillRunning as error:
            then = f"onward run show {error.task.id}"
            fail(TIMED_OUT, "the demo takes too long", str(error), then)
        return view, dict(zip(begun, ended, strict=True))


@asynccontextmanager
async def _workers(client: Client) -> AsyncIterator[None]:
    """Somebody who serves the demo's nodes: whoever is there, else a worker of our own."""
    served = {queue for worker in await client.workers() for queue in worker.queues}
    if served >= SERVICES:
        yield
        return
    hint("no worker serves route and transform: starting one (onward exec-worker) for the demo")
    from onward.cli.demo.hosting import stopped

    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "onward.cli", "exec-worker", "--server", client.url, "--json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # Ctrl-C is for us: it ends in order, and we tell it when.
        start_new_session=True,
    )
    try:
        await _registered(worker)
        yield
    finally:
        await stopped(worker)


async def _registered(worker: asyncio.subprocess.Process) -> None:
    """It says so in a line of JSON; one that ends, or says nothing, cannot help."""
    if worker.stdout is None or worker.stderr is None:
        return
    try:
        line = await asyncio.wait_for(worker.stdout.readline(), START_S)
    except TimeoutError:
        line = b""
    if line:
        return
    why = ""
    if worker.returncode is not None:
        why = (await worker.stderr.read()).decode(errors="replace")
    fail(REFUSED, "the demo's worker did not start", plain(why)[-300:], "onward exec-worker")


def _told(run: RunDetail) -> Mapping[str, Any]:
    return {
        "id": run.id,
        "state": run.state,
        "params": run.params,
        "result": run.result,
        "error": run.error,
        "node_runs": run.node_runs,
    }


def _shown(view: FlowView, runs: Mapping[str, RunDetail]) -> None:
    import msgspec

    from onward.cli.drawing import picture
    from onward.cli.portrait import Portrait
    from onward.cli.run import attempts

    out = console()
    out.print(f"[bold]{view.name}[/] version {view.version}\n")
    out.print(picture(view.nodes))
    for branch, run in runs.items():
        out.print(f"\n[bold]task {branch}[/]  ", end="")
        portrait = Portrait(run)
        out.print(portrait.header())
        given = msgspec.json.encode(run.params).decode()
        ended = msgspec.json.encode(run.result).decode() if run.error is None else run.reason
        out.print(f"{plain(given)} → {plain(ended)}\n", markup=False)
        out.print(attempts(portrait))
    out.print()
    hint(f"onward flow graph {NAME}   or   onward flow run {NAME} -p action=goB -p text=hi --watch")
