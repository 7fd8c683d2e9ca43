"""The server that the demo plays on: whoever answers, or one of its own that ends with it."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from onward.cli.demo.scenario import until
from onward.cli.terminal import REFUSED, USAGE, fail, plain

if TYPE_CHECKING:
    from onward.client.http import Client

START_S = 30.0
STOP_S = 15.0
# Of our own: nobody watches a breaker for a minute, nor waits for work that is thrown away.
BRISK = {"CIRCUIT_TIMEOUT": "10", "ONWARD_DRAIN_MS": "500"}


@asynccontextmanager
async def server(client: Client, *, may_start: bool, redis: str | None) -> AsyncIterator[bool]:
    """Whoever answers; where nobody does and nobody was named, one of our own: then True."""
    from onward.client.errors import Unreachable

    try:
        health = await client.health()
    except Unreachable as error:
        if not may_start:
            error.hint = (
                "start one with `onward up`, or name none: then the demo brings a server of its own"
            )
            raise
    else:
        if redis is not None and health.get("components", {}).get("redis", False) is None:
            fail(
                USAGE,
                "the server has no Redis",
                "so nothing comes to a stream",
                "onward up --redis URL",
            )
        yield False
        return
    with tempfile.TemporaryDirectory(prefix="onward-demo-") as folder:
        process = await _started(client, Path(folder), redis)
        try:
            yield True
        finally:
            await stopped(process)


async def _started(client: Client, folder: Path, redis: str | None) -> asyncio.subprocess.Process:
    port = str(urlsplit(client.url).port)
    log = folder / "server.log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "onward.cli.demo.server"),
            *(port, f"sqlite:///{folder / 'demo.db'}"),
            stdin=asyncio.subprocess.PIPE,
            stdout=out,
            stderr=out,
            env={**os.environ, **BRISK, **({"ONWARD_REDIS": redis} if redis else {})},
            # Ctrl-C is for us: it ends in order, and we tell it when.
            start_new_session=True,
        )
    try:
        async with asyncio.timeout(START_S):
            await until(lambda: _answers(client, process))
    except TimeoutError:
        pass
    except asyncio.CancelledError:
        await stopped(process)
        raise
    if process.returncode is None and await _answers(client, process):
        return process
    await stopped(process)
    why = plain(log.read_text(errors="replace"))[-300:]
    return fail(
        REFUSED, "the demo's own server did not start", why, "onward up   then   onward demo"
    )


async def _answers(client: Client, process: asyncio.subprocess.Process) -> bool:
    """It takes work, or never will."""
    from onward.core.errors import OnwardError

    try:
        return (await client.health()).get("status") == "healthy"
    except OnwardError:
        return process.returncode is not None


async def stopped(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.communicate(), STOP_S)  # what it still says is read
    except TimeoutError:
        process.kill()
        await process.wait()
