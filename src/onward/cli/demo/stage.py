"""The demo from its first second to its last: a server, workers, the scenario; then all is removed.

Schedules have fixed names: what a demo that was killed has left, the next one takes over.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from onward.cli.demo import shop
from onward.cli.demo.processes import START_S, STOP_S, running
from onward.cli.demo.scenario import SCHEDULES, Scenario
from onward.cli.tables import welcome
from onward.cli.terminal import REFUSED, console, fail, plain
from onward.client.errors import ProblemError, Unreachable
from onward.errors import OnwardError

if TYPE_CHECKING:
    from onward.client.http import Client

LIVE = ("scheduled", "queued", "running", "waiting")


async def play(
    client: Client, *, may_start: bool, length_ms: int | None, quiet: bool
) -> Mapping[str, Any]:
    """Ctrl-C and the end of the given time are both good ends."""
    logging.getLogger("onward").addHandler(logging.NullHandler())  # the table shows enough
    out = console(stderr=True, quiet=quiet)
    scene = Scenario(client, lambda text: out.print(plain(text), style="bright_black"))
    async with _server(client, may_start=may_start) as own:
        if not quiet:
            _welcome(client.url, own=own)
        try:
            async with _workers(client.url):
                with out.status("") as status:
                    scene.on_change = lambda: status.update(scene.summary())
                    await _until_told(scene, length_ms)
                out.print("ending: workers finish what they have; Ctrl-C again leaves at once")
        finally:
            left = "its server and ledger are gone" if own else await _clear_up(client)
    out.print(f"[green]✓[/] {scene.summary()}\n  [bright_black]{left}[/]")
    return {"url": client.url, "own_server": own, "made": scene.made}


async def _until_told(scene: Scenario, length_ms: int | None) -> None:
    """SIGTERM and a closed terminal end it like Ctrl-C: workers and schedules must be removed.

    A signal that comes while flows and schedules are being made is no worse than a later one.
    """

    async def show() -> None:
        await scene.prepare()
        with suppress(TimeoutError):
            async with asyncio.timeout(None if length_ms is None else length_ms / 1000):
                await scene.play()

    task = asyncio.ensure_future(show())
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in signals:
        loop.add_signal_handler(number, task.cancel)
    try:
        with suppress(asyncio.CancelledError):
            await task
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
        task.cancel()


@asynccontextmanager
async def _server(client: Client, *, may_start: bool) -> AsyncIterator[bool]:
    """The one that answers; if none does and none was named, one of our own: then True."""
    try:
        await client.health()
    except Unreachable as error:
        if not may_start:
            error.hint = "start it with `onward up`, or name none: then the demo starts its own"
            raise
    else:
        yield False
        return

    async def ready() -> bool:
        with suppress(OnwardError):
            return bool((await client.health()).get("status") == "healthy")
        return False

    with tempfile.TemporaryDirectory(prefix="onward-demo-") as folder:
        where = (
            "--port",
            str(urlsplit(client.url).port),
            "--ledger",
            f"sqlite:///{folder}/demo.db",
        )
        # An open breaker is tried again soon, and nothing waits for work that is thrown away.
        env = {"CIRCUIT_TIMEOUT": "10", "ONWARD_DRAIN_MS": "500"}
        async with running("up", *where, ready=ready, **env):
            yield True


@asynccontextmanager
async def _workers(url: str) -> AsyncIterator[None]:
    workers = shop.workers(url)
    serving = [asyncio.create_task(worker.serve()) for worker in workers]
    try:
        async with asyncio.timeout(START_S):
            while not all(worker.connected for worker in workers):
                for each in serving:
                    if each.done():
                        why = str(each.exception())
                        fail(REFUSED, "a worker of the demo cannot serve", why, "onward doctor")
                await asyncio.sleep(0.05)
        yield
    finally:
        for worker in workers:
            worker.drain()
        await asyncio.wait(serving, timeout=STOP_S)
        for each in serving:
            each.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


async def _clear_up(client: Client) -> str:
    canceled = 0
    try:
        for name in SCHEDULES:
            await _unless_gone(client.schedules.remove(name))
        for state in LIVE:
            canceled += await _cancel(client, state)
    except OnwardError as error:
        return f"not cleared up ({error}): the next `onward demo` will do it"
    return (
        f"removed: its workers, {len(SCHEDULES)} schedules, and {canceled} unfinished tasks"
        f" (canceled); open approvals stay for an hour; see {client.url}/ui/tasks"
    )


async def _cancel(client: Client, state: str) -> int:
    """Runs first: they take their calls along. What waits for a person stays; it has an end."""
    canceled = 0
    for flow in (shop.ORDER, shop.POSTER):
        for run in (await client.runs.list(flow=flow, state=state, limit=1_000)).items:
            canceled += await _unless_gone(client.runs.cancel(run.id))
    for type in shop.TYPES:
        for task in (await client.list(type=type, state=state, limit=1_000)).items:
            if task.phase != "waiting_approval":
                canceled += await _unless_gone(client.cancel(task.id))
    return canceled


async def _unless_gone(call: Awaitable[Any]) -> bool:
    try:
        await call
    except ProblemError as error:
        if error.status not in (404, 409):
            raise
        return False
    return True


def _welcome(url: str, *, own: bool) -> None:
    own_server = "its own, on a temporary ledger; to keep one: onward up"
    yours = "yours; kill it and start it again: the demo goes on"
    rows = [
        ("page", f"{url}/ui"),
        ("server", own_server if own else yours),
        ("try", f"onward task list --server {url}"),
    ]
    last = "Ctrl-C ends it and removes its workers and schedules."
    welcome("demo   a print shop at work", rows, last)
