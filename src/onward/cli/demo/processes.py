"""A command of ours in a process of its own, for as long as the demo needs it."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import IO

from onward.cli.terminal import REFUSED, fail, plain

START_S = 30.0
STOP_S = 15.0
LOOK_S = 0.1


@asynccontextmanager
async def running(
    *arguments: str, ready: Callable[[], Awaitable[bool]], **env: str
) -> AsyncIterator[None]:
    """From when it is `ready`; one that does not start ends the demo, with its last words."""
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "onward.cli", *arguments),
            stdout=log,
            stderr=log,
            env={**os.environ, **env},
            # Ctrl-C is for the demo, which stops this process when it needs it no longer.
            start_new_session=True,
        )
        try:
            await _started(process, ready, log, arguments[0])
            yield
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _started(
    process: asyncio.subprocess.Process,
    ready: Callable[[], Awaitable[bool]],
    log: IO[bytes],
    name: str,
) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(START_S):
            while process.returncode is None:
                if await ready():
                    return
                await asyncio.sleep(LOOK_S)
    log.seek(0)
    why = plain(log.read().decode(errors="replace"))[-300:]
    fail(REFUSED, f"`onward {name}` did not start for the demo", why, f"onward {name}")
