"""`onward demo flow`: one flow with a branch, run both ways and shown node by node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import typer

from onward.cli.commands import Options, option
from onward.cli.demo.processes import running
from onward.cli.tables import hint, value_of
from onward.cli.terminal import FAILED, TIMED_OUT, console, fail, plain, print_json

if TYPE_CHECKING:
    from onward.client.http import Client
    from onward.wire.flows import FlowView
    from onward.wire.runs import RunDetail

NAME = "demo-branching"


def _transform(op: str) -> Mapping[str, Any]:
    at: dict[str, Any] = {"prep": {"input_key": "$params.text"}, "post": {"output_key": "result"}}
    return {"kind": "executor", "service": "transform", "params": {"op": op}, **at}


FLOW: Mapping[str, Any] = {
    "name": NAME,
    "description": "A service decides whether the text goes to capitals or to small letters.",
    "start": "route",
    "nodes": {
        "route": {"kind": "executor", "service": "route", "post": {"action_key": "action"}},
        "B": _transform("upper"),
        "C": _transform("lower"),
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
LONGEST_MS = 60_000

OPTIONS: Options = {
    "server": option(
        "--server",
        "URL of the server.",
        envvar=["SCHEDULER_BASE", "ONWARD_URL"],
        show_default="this machine",
    )
}


async def flow(client: Client, as_json: bool) -> None:
    """Publish a flow with a branch, run it both ways, and print each node's attempts.

    If no worker serves it, one is started for as long as the demo runs.

    $ onward demo flow
    $ SCHEDULER_BASE=http://127.0.0.1:8070 onward demo flow
    """
    view, runs = await _run_both(client)
    if as_json:
        fields = ("id", "state", "params", "result", "error", "node_runs")
        print_json(
            {
                "flow": view.name,
                "version": view.version,
                "runs": [
                    {"branch": branch, **{field: getattr(run, field) for field in fields}}
                    for branch, run in runs.items()
                ],
            }
        )
    else:
        _print(view, runs)
    if any(run.state != "succeeded" for run in runs.values()):
        raise typer.Exit(FAILED)


async def _run_both(client: Client) -> tuple[FlowView, Mapping[str, RunDetail]]:
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
                *(client.runs.wait(run.id, LONGEST_MS) for run in begun.values())
            )
        except StillRunning as error:
            then = f"onward run show {error.task.id}"
            fail(TIMED_OUT, "the demo takes too long", str(error), then)
        return view, dict(zip(begun, ended, strict=True))


@asynccontextmanager
async def _workers(client: Client) -> AsyncIterator[None]:
    """Whichever worker serves the demo's nodes; if none does, one of our own."""

    async def served() -> bool:
        workers = await client.workers()
        return {queue for each in workers for queue in value_of(each, "queues")} >= SERVICES

    if await served():
        yield
        return
    hint("no worker serves route and transform: starting one (onward exec-worker) for the demo")
    async with running("exec-worker", "--server", client.url, ready=served):
        yield


def _print(view: FlowView, runs: Mapping[str, RunDetail]) -> None:
    import msgspec

    from onward.cli.drawing import picture
    from onward.cli.run import attempts
    from onward.cli.run_renderer import RunRenderer

    out = console()
    out.print(f"[bold]{view.name}[/] version {view.version}\n")
    out.print(picture(view.nodes))
    for branch, run in runs.items():
        out.print(f"\n[bold]task {branch}[/]  ", end="")
        renderer = RunRenderer(run)
        out.print(renderer.header())
        given = msgspec.json.encode(run.params).decode()
        ended = msgspec.json.encode(run.result).decode() if run.error is None else run.reason
        out.print(f"{plain(given)} → {plain(ended)}\n", markup=False)
        out.print(attempts(renderer))
    out.print()
    hint(f"onward flow graph {NAME}   or   onward flow run {NAME} -p action=goB -p text=hi --watch")
