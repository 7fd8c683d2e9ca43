"""What a key costs a call: two applications in one process, one with keys, which take turns.

Waves of calls as the bytes of requests, the key among them, through the server's own parser and
doors into the ledger. Nothing else varies: no socket, no other process, and every wave makes the
same batches. Processor time of this process, compared wave by wave. Two server processes differ by
more than a key costs, by where their memory lies; and over sockets the rest of a machine is heard.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from statistics import median
from typing import Any

import uvicorn
import uvloop
from uvicorn.server import ServerState

from bench.contenders.payload import BODY, KEY, ledger
from onward.app import build
from onward.server import HttpConnection, collect_seldom, server
from onward.settings import Settings


def _request(key: str | None) -> bytes:
    head = [
        "POST /api/openai HTTP/1.1",
        "host: 127.0.0.1:8070",
        *([] if key is None else [f"authorization: Bearer {key}"]),
        "content-type: application/json",
        f"content-length: {len(BODY)}",
    ]
    return ("\r\n".join(head) + "\r\n\r\n" + BODY).encode()


def paired(path: str, synchronous: str, calls: int, waves: int) -> dict[str, Any]:
    """What a call costs without keys, and what the key adds, in microseconds: medians."""

    async def measure() -> dict[str, Any]:
        async with AsyncExitStack() as stack:
            open_, keyed = [
                await stack.enter_async_context(_callers(f"{path}{n}", synchronous, key, calls))
                for n, key in enumerate((None, KEY))
            ]
            for one in (open_, keyed) * 5:
                await one.wave()
            plain: list[float] = []
            added: list[float] = []
            for turn in range(waves):
                # Each goes first as often as second: what the one leaves behind, both find.
                first, second = (open_, keyed) if turn % 2 else (keyed, open_)
                spent = {first: await first.wave(), second: await second.wave()}
                plain.append(spent[open_])
                added.append(spent[keyed] - spent[open_])
            return {"cpu_us": median(plain), "added_us": median(added)}

    return uvloop.run(measure())


class _Callers:
    """So many connections to one application."""

    def __init__(self, config: uvicorn.Config, request: bytes, calls: int) -> None:
        state = ServerState()
        self._request = request
        self._connections = [_Connection(config, state) for _ in range(calls)]

    async def wave(self) -> float:
        """A call on each at once; the processor time of one, in microseconds."""
        began = time.process_time()
        await asyncio.gather(*[one.call(self._request) for one in self._connections])
        return (time.process_time() - began) / len(self._connections) * 1e6


class _Connection(asyncio.Transport):
    """What the server takes for a socket; each answer leaves in one write."""

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__({"peername": ("127.0.0.1", 40_000), "sockname": ("127.0.0.1", 8070)})
        self._protocol = HttpConnection(config=config, server_state=state, app_state={})
        self._protocol.connection_made(self)

    def call(self, request: bytes) -> asyncio.Future[None]:
        self._answered = asyncio.get_running_loop().create_future()
        self._protocol.data_received(request)
        return self._answered

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert bytes(data[:12]) == b"HTTP/1.1 200", bytes(data)
        self._answered.set_result(None)

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """It ends with the process."""

    def pause_reading(self) -> None:
        """A request comes whole."""

    def resume_reading(self) -> None:
        """The same."""


@asynccontextmanager
async def _callers(
    path: str, synchronous: str, key: str | None, calls: int
) -> AsyncIterator[_Callers]:
    collect_seldom()  # as the server does
    given = {"ledger": ledger(path), "synchronous": synchronous, "admin_key": key}
    settings = Settings.model_validate(given)
    app = build(settings, builtin_worker=True)
    config = server(app, settings).config
    config.timeout_keep_alive = 3_600  # of one application while the other has its turn
    config.load()
    async with app.onward:
        yield _Callers(config, _request(key), calls)
