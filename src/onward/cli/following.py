"""Following a run until it is over: a live graph on a terminal, a line for each step elsewhere."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from contextlib import aclosing, nullcontext, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import typer

from onward.cli import watching
from onward.cli.run_renderer import RunRenderer
from onward.cli.tables import hint
from onward.cli.terminal import INTERRUPTED, console, format_duration, plain

if TYPE_CHECKING:
    from rich.console import RenderableType

    from onward.client.http import Client
    from onward.flow.parts import Definition
    from onward.wire.runs import RunDetail, RunView
    from onward.wire.tasks import Explanation, TaskEvent

CALM_S = 0.1  # between two readings
GENTLE = 3  # times as long as a reading took: one with thousands of calls is not read all the time
LONGEST_S = 1.0
MOST_PAGES = 20


class RunEvents:
    """What only a run's events show: the tasks of its calls, and which of them undo one."""

    def __init__(self) -> None:
        self.calls: dict[str, str] = {}  # by the node's path
        self.undoing: set[str] = set()

    def note(self, event: TaskEvent) -> None:
        data: Any = event.data if isinstance(event.data, dict) else {}
        if event.type != "node.started" or not data.get("child"):
            return
        if data.get("kind") == "compensation":
            self.undoing.add(str(data["child"]))
        else:
            self.calls[str(data.get("node"))] = str(data["child"])


class Following(TypedDict):
    """The options of a command that starts a run."""

    watch: bool
    wait: bool
    timeout: int | None
    as_json: bool


async def report_on(client: Client, run: RunView, **how: Unpack[Following]) -> None:
    """Follow a run that was started, if asked to, and print how it ended; else its id."""
    watch, as_json = how["watch"], how["as_json"]
    if watch or how["wait"]:
        ended = await until_over(client, run.id, timeout_ms=how["timeout"], quiet=not watch)
        await report(client, ended, as_json=as_json, seen=watch and sys.stderr.isatty())
    else:
        watching.begun(run, "onward run watch", as_json=as_json)


async def until_over(client: Client, id: str, *, timeout_ms: int | None, quiet: bool) -> RunDetail:
    """However it ends; `quiet` shows no graph. Ctrl-C leaves the run alone."""
    from onward.client.errors import StillRunning

    try:
        if quiet:
            with console(stderr=True).status("running …") if sys.stderr.isatty() else nullcontext():
                return await client.runs.wait(id, timeout_ms)
        follow = _live if sys.stderr.isatty() else _print_steps
        async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
            return await follow(client, id)
    except TimeoutError as error:
        late = error if isinstance(error, StillRunning) else StillRunning(await client.get(id))
        late.hint = f"onward run watch {id}"
        raise late from None
    except asyncio.CancelledError:
        hint(f"the run goes on; onward run watch {id}")
        raise typer.Exit(INTERRUPTED) from None


async def read(client: Client, id: str) -> RunRenderer:
    """A run as it is now, and what it waits for."""
    run = await client.runs.get(id)
    events = await _read_events(client, id)
    definition = await _definition(client, run)
    return RunRenderer(run, definition, await _waits(client, run, events), events.undoing)


async def _read_events(client: Client, id: str) -> RunEvents:
    events, after = RunEvents(), 0
    for _ in range(MOST_PAGES):
        page = await client.events(id, after)
        for event in page.items:
            events.note(event)
            after = event.n
        if page.next is None:
            break
    return events


async def _live(client: Client, id: str) -> RunDetail:
    from rich.live import Live

    out = console(stderr=True)
    renderer = RunRenderer(await client.runs.get(id))

    def drawn() -> RenderableType:
        return renderer.whole(airy=2 * len(renderer.run.nodes) + 6 < out.height)

    def show(newer: RunRenderer) -> None:
        nonlocal renderer
        renderer = newer

    with Live(console=out, get_renderable=drawn, refresh_per_second=8):
        return await _followed(client, renderer, show)


async def _followed(
    client: Client, first: RunRenderer, show: Callable[[RunRenderer], None]
) -> RunDetail:
    """Read anew after each event, and once a second: what a call does is in no event of the run."""
    id = first.run.id
    definition = await _definition(client, first.run)
    events = RunEvents()
    bell = asyncio.Event()

    async def listen() -> None:
        async with aclosing(client.stream(id)) as stream:
            async for event in stream:
                events.note(event)
                bell.set()

    listening = asyncio.create_task(listen())
    try:
        while True:
            bell.clear()
            began = monotonic()
            renderer = await _reading(client, id, listening, definition, events)
            if renderer is not None:
                show(renderer)
                if renderer.run.over:
                    return renderer.run
            await asyncio.sleep(max(CALM_S, GENTLE * (monotonic() - began)))
            with suppress(TimeoutError):
                await asyncio.wait_for(bell.wait(), LONGEST_S)
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def _reading(
    client: Client,
    id: str,
    listening: asyncio.Task[None],
    definition: Definition | None,
    events: RunEvents,
) -> RunRenderer | None:
    """None: the server does not answer. The listener waits for one that restarts, so we do too."""
    from onward.client.errors import Unreachable

    try:
        run = await client.runs.get(id)
        return RunRenderer(run, definition, await _waits(client, run, events), events.undoing)
    except Unreachable:
        if listening.done():
            raise
        return None


async def _print_steps(client: Client, id: str) -> RunDetail:
    out = console(stderr=True)
    run = await client.runs.get(id)
    kinds = {node.key: node.kind for node in run.nodes}
    async with aclosing(client.stream(id)) as events:
        async for event in events:
            if (line := _line(event)) is None:
                continue
            out.print(f"{format_duration(event.at - run.created_at):>8}  {line}", markup=False)
            if event.type == "node.started" and (then := await _then(client, id, event, kinds)):
                hint(f"→ {then}")
    return await client.runs.wait(id)


async def _then(client: Client, id: str, event: TaskEvent, kinds: Mapping[str, str]) -> str | None:
    """The command for what the step waits for, if a person or a program is to give it."""
    from onward.client.errors import ProblemError

    data: Any = event.data if isinstance(event.data, dict) else {}
    node, child = str(data.get("node", "")), data.get("child")
    if kinds.get(node) == "wait_event":
        return f"onward run signal {id} {node}"
    if kinds.get(node) != "approval" or child is None:
        return None
    try:
        waits = await client.explain(str(child))
    except ProblemError:
        return None
    return waits.hint if waits.reason == "waiting_approval" else None  # else it was decided since


def _line(event: TaskEvent) -> str | None:
    data: Any = event.data if isinstance(event.data, dict) else {}
    node = plain(str(data.get("node", "")))
    undoing = "undo " if data.get("kind") == "compensation" else ""
    if event.type == "node.started":
        return f"● {undoing}{node}"
    if event.type != "node.finished":
        return None
    mark = {"ok": "✓", "error": "✗"}.get(data.get("status", ""), "–")
    action = str(data.get("action") or "")
    way = f"  → {plain(action)}" if action not in ("", "default") else ""
    fault = data.get("error")
    why = f"  {plain(str(fault.get('message', '')))}" if isinstance(fault, dict) else ""
    return f"{mark} {undoing}{node}{way}{why}"


async def _waits(client: Client, run: RunDetail, events: RunEvents) -> Explanation | None:
    from onward.client.errors import ProblemError

    call = events.calls.get(run.current_node or "")
    if run.over or call is None:
        return None
    try:
        return await client.explain(call)
    except ProblemError:  # it has been cleared away since
        return None


async def _definition(client: Client, run: RunDetail) -> Definition | None:
    from onward.errors import OnwardError
    from onward.flow.definition import parse

    if not run.version:
        return None
    try:
        return parse((await client.flows.get(run.flow, run.version)).definition)
    except OnwardError:  # without it, bars lack their ends; nothing worse
        return None


async def report(client: Client, run: RunDetail, *, as_json: bool, seen: bool = False) -> None:
    """The end of it, in the exit code too; `seen`: its graph shows how it ended."""
    node = await _first_undone(client, run) or run.current_node or "NODE"
    again = f"onward run fork {run.id} --from {node}"
    then = f"onward run show {run.id}   or   {again}"
    watching.report(run, as_json=as_json, name=run.flow, then=then, seen=seen)


async def _first_undone(client: Client, run: RunDetail) -> str | None:
    """Of a run that went wrong: a fork from a later node would build on what is no longer there."""
    if run.state == "succeeded":
        return None
    undoing = (await _read_events(client, run.id)).undoing
    undone = {row.node_key for row in run.node_runs if row.id.rpartition(":")[0] in undoing}
    return next((row.node_key for row in run.node_runs if row.node_key in undone), None)
