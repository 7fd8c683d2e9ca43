"""The demo from its first second to its last: a server, workers, the scenario; then all away again.

Schedules have fixed names, so a demo that was killed leaves nothing that the next one does not take
over. Of two at a time the last one clears up: it is the one that finds no other's workers.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from onward.cli.demo import inventory, picture
from onward.cli.demo.hosting import server
from onward.cli.demo.inventory import Inventory
from onward.cli.demo.scenario import PULSE, SCHEDULES, Scenario, of_demo, prepare, until
from onward.cli.terminal import (
    INTERRUPTED,
    REFUSED,
    TIMED_OUT,
    console,
    converse,
    fail,
    plain,
)
from onward.core.errors import OnwardError

if TYPE_CHECKING:
    from onward.client.http import Client
    from onward.client.worker import Worker

START_S = 30.0
STOP_S = 15.0
ONCE_S = 120.0
LIVE = ("scheduled", "queued", "running", "waiting")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    url: str | None = None
    own: bool = False  # where nobody answers, a server may be started
    length_ms: int | None = None
    once: bool = False
    redis: str | None = None
    quiet: bool = False


class Ended(msgspec.Struct, kw_only=True):
    """How it went, and what is left."""

    url: str
    own_server: bool
    made: dict[str, int]
    there: Inventory
    missing: list[str]
    removed_schedules: list[str] = []
    canceled: int = 0
    another_demo: bool = False  # runs on, so schedules and unfinished work are left to it


def play(plan: Plan) -> Ended:
    logging.getLogger("onward").addHandler(logging.NullHandler())  # the picture tells enough
    try:
        ended = converse(
            plan.url, "show the demo", lambda client: _played(client, plan), look="onward doctor"
        )
    except asyncio.CancelledError:  # SIGTERM, before there was anything to show
        raise typer.Exit(INTERRUPTED) from None
    if not plan.quiet:
        _told(ended)
    return ended


async def _played(client: Client, plan: Plan) -> Ended:
    from onward.client.wire import Wire

    _end_in_order()
    async with server(client, may_start=plan.own, redis=plan.redis) as own:
        wire = Wire(client.url)
        try:
            scene = Scenario(client, wire, streams=plan.redis is not None)
            return await _acted(scene, plan, own=own)
        finally:
            await wire.close()


async def _acted(scene: Scenario, plan: Plan, *, own: bool) -> Ended:
    if not plan.quiet:
        picture.opening(scene.client.url, own=own)
    ended = Ended(url=scene.client.url, own_server=own, made={}, there=Inventory(), missing=[])
    try:
        async with _working(scene.client, plan):
            before = (await prepare(scene.client))[PULSE]
            await _until_told(scene, plan, before)
            if not plan.quiet:
                picture.closing()
            ended.made = dict(scene.made)
            with suppress(OnwardError):  # away just now: then nobody can say what is there
                ended.there = await inventory.read(scene)
            if plan.once:
                ended.missing = ended.there.missing(scene, before)
    finally:
        if not own:  # else it goes with its ledger
            await _clear_up(scene.client, ended)
    return ended


async def _until_told(scene: Scenario, plan: Plan, before: str | None) -> None:
    """Ctrl-C, the time that was given, or everything there: all are good ends."""
    seconds = ONCE_S if plan.once else plan.length_ms and plan.length_ms / 1000
    try:
        async with asyncio.timeout(seconds):
            if plan.quiet:
                await _going(scene, plan, before)
            else:
                async with picture.shown(scene):
                    await _going(scene, plan, before)
    except TimeoutError:
        return
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if plan.once or task is None:
            raise
        task.uncancel()


async def _going(scene: Scenario, plan: Plan, before: str | None) -> None:
    if not plan.once:
        await scene.go_on()
    await scene.once()

    async def whole() -> bool:
        return not (await inventory.read(scene)).missing(scene, before)

    await until(whole)


def _end_in_order() -> None:
    """SIGTERM and a closed terminal are as good as Ctrl-C: workers and schedules must go."""
    task = asyncio.current_task()
    if task is not None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)


# Workers.


@asynccontextmanager
async def _working(client: Client, plan: Plan) -> AsyncIterator[None]:
    from onward.cli.demo import services
    from onward.client.address import is_loopback

    # A server elsewhere could not call us here.
    listen = "http://127.0.0.1:0" if is_loopback(client.url) else None
    ways: list[tuple[Worker, dict[str, Any]]] = [
        (services.studio, {}),
        (services.reception, {}),
        (services.post, {"listen": listen}),
    ]
    if plan.redis is not None:
        ways.append((services.archive, {"redis": plan.redis}))
    workers = [worker for worker, _ in ways]
    for worker in workers:
        worker.url, worker.url_is_explicit = client.url, True
    serving = [asyncio.create_task(worker.serve(**way)) for worker, way in ways]
    try:
        await _connected(workers, serving)
        yield
    finally:
        for worker in workers:
            worker.drain()
        await asyncio.wait(serving, timeout=STOP_S)
        for each in serving:
            each.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


async def _connected(workers: Sequence[Worker], serving: Sequence[asyncio.Task[None]]) -> None:
    try:
        async with asyncio.timeout(START_S):
            while not all(worker.connected for worker in workers):
                if ended := [each for each in serving if each.done()]:
                    why = str(ended[0].exception() or "it ended at once")
                    fail(REFUSED, "a worker of the demo cannot serve", why, "onward doctor")
                await asyncio.sleep(0.05)
    except TimeoutError:
        late = next(worker.id for worker in workers if not worker.connected)
        fail(TIMED_OUT, f"{late} found nobody to work for", "", "onward doctor")


# And away again.


async def _clear_up(client: Client, ended: Ended) -> None:
    try:
        ended.another_demo = await _another(client)
        if ended.another_demo:
            return
        ended.removed_schedules = [
            name for name in SCHEDULES if await _done(client.schedules.remove(name))
        ]
        ended.canceled = await _cancel_unfinished(client)
    except OnwardError as error:
        names = " ".join(SCHEDULES)
        text = f"not cleared up ({error}): the next `onward demo` does; or remove schedules {names}"
        console(stderr=True).print(plain(text), style="yellow", markup=False)


async def _another(client: Client) -> bool:
    from onward.cli.demo.services import SHIFT

    # Only sockets: one that was killed is gone with its connection, not after some seconds.
    return any(
        each.transport == "socket" and of_demo(each.id) and not each.id.endswith(SHIFT)
        for each in await client.workers()
    )


async def _cancel_unfinished(client: Client) -> int:
    """Runs first, they take their calls along. What asks a person stays: it says when it ends."""
    from onward.cli.demo import services
    from onward.cli.demo.flows import ORDER, POSTER

    canceled = 0
    for state in LIVE:
        for flow in (ORDER, POSTER):
            for run in (await client.runs.list(flow=flow, state=state, limit=1_000)).items:
                canceled += await _done(client.runs.cancel(run.id))
        for worker in (services.studio, services.post, services.archive):
            for type in worker.services:
                for task in (await client.list(type=type, state=state, limit=1_000)).items:
                    if task.phase != "waiting_approval":
                        canceled += await _done(client.cancel(task.id))
    return canceled


async def _done(doing: Any) -> bool:
    """False: it was over, or gone, before we came."""
    from onward.client.errors import ProblemError

    try:
        await doing
    except ProblemError as error:
        if error.status not in (404, 409):
            raise
        return False
    return True


def _told(ended: Ended) -> None:
    out = console(stderr=True)
    made = ", ".join(f"{count} {what}" for what, count in ended.made.items()) or "nothing"
    out.print(f"[green]✓[/] handed in: {plain(made)}")
    for what in ended.missing:
        out.print(f"[red]✗[/] not there in time: {plain(what)}")
    if ended.own_server:
        left = "workers, server and its temporary ledger are gone; `onward up` starts one to keep"
    elif ended.another_demo:
        left = "its workers are gone; another demo runs on, and clears up when it ends"
    else:
        left = (
            f"gone: its workers, {len(ended.removed_schedules)} schedules, and"
            f" {ended.canceled} unfinished tasks (canceled); approvals stay open for an hour;"
            f" the rest is history: {ended.url}/ui/tasks"
        )
    out.print(f"  {plain(left)}", style="bright_black", markup=False)
