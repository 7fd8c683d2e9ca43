"""What a key costs a call: two applications in one process, one with keys, which take turns.

Waves of calls straight on ASGI, so that nothing else varies: no socket, no other process, and every
wave makes the same batches. Processor time of this process, compared wave by wave.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from statistics import median
from typing import Any

import uvloop

from bench.contenders.payload import BODY, KEY, ledger
from onward.app import Application, build
from onward.server import collect_seldom
from onward.settings import Settings

PATH = "/api/openai"
HEADERS = [
    (b"host", b"127.0.0.1:8070"),
    (b"authorization", f"Bearer {KEY}".encode()),
    (b"content-type", b"application/json"),
    (b"content-length", str(len(BODY)).encode()),
]


def paired(path: str, synchronous: str, calls: int, waves: int) -> dict[str, Any]:
    """What a call costs without keys, and what the key adds, in microseconds: medians."""

    async def measure() -> dict[str, Any]:
        async with AsyncExitStack() as stack:
            open_, keyed = [
                await stack.enter_async_context(_application(f"{path}{n}", synchronous, key))
                for n, key in enumerate((None, KEY))
            ]
            for app in (open_, keyed) * 5:
                await _wave(app, calls)
            plain: list[float] = []
            added: list[float] = []
            for turn in range(waves):
                # Each goes first as often as second: what the one leaves behind, both find.
                first, second = (open_, keyed) if turn % 2 else (keyed, open_)
                spent = {first: await _wave(first, calls), second: await _wave(second, calls)}
                plain.append(spent[open_])
                added.append(spent[keyed] - spent[open_])
            return {"cpu_us": median(plain), "added_us": median(added)}

    return uvloop.run(measure())


async def _wave(app: Application, calls: int) -> float:
    """So many calls at once; the processor time of one, in microseconds."""
    began = time.process_time()
    answers = await asyncio.gather(*[_call(app) for _ in range(calls)])
    spent = time.process_time() - began
    assert set(answers) == {200}, answers
    return spent / calls * 1e6


async def _call(app: Application) -> int:
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": PATH,
        "raw_path": PATH.encode(),
        "query_string": b"",
        "headers": list(HEADERS),
        "server": ("127.0.0.1", 8070),
        "client": ("127.0.0.1", 40_000),
        "state": {},
    }
    status = 0

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": BODY.encode(), "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)

    await app(scope, receive, send)
    return status


@asynccontextmanager
async def _application(path: str, synchronous: str, key: str | None) -> AsyncIterator[Application]:
    collect_seldom()  # as the server does
    settings = Settings(ledger=ledger(path), synchronous=synchronous, admin_key=key)
    app = build(settings, builtin_worker=True)
    async with app.onward:
        yield app
