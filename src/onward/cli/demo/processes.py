"""A command of ours in a process of its own, for as long as the demo needs it."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from onward.cli.terminal import REFUSED, fail, plain

START_S, STOP_S = 30.0, 15.0
LOOK_S = 0.1


@asynccontextmanager
async def running(
    name: str, *arguments: str, ready: Callable[[], Awaitable[bool]], **env: str
) -> AsyncIterator[None]:
    """From when it is `ready`; one that does not start ends the demo, with its last words."""
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "onward.cli", name, *arguments),
            stdout=log,
            stderr=log,
            env={**os.environ, **env},
            # Ctrl-C is for the demo, which stops this process when it needs it no longer.
            start_new_session=True,
        )
        try:
            until = asyncio.get_running_loop().time() + START_S
            while not await ready():
                if process.returncode is not None or asyncio.get_running_loop().time() > until:
                    log.seek(0)
                    why = plain(log.read().decode(errors="replace"))[-300:]
                    fail(REFUSED, f"`onward {name}` did not start", why, f"onward {name}")
                await asyncio.sleep(LOOK_S)
            yield
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
            except TimeoutError:
                process.kill()
                await process.wait()
