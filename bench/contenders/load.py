"""HTTP load: wrk if it is installed, otherwise a small client of our own. Loopback only.

wrk: `apt-get install wrk` or `brew install wrk`. It takes far less of the processor than our own
client does, so figures taken with the two do not compare.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

import httptools
import uvloop

from bench.contenders.payload import BODY
from bench.report import percentile

WRK = shutil.which("wrk")

_LUA = """
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
wrk.body = %s
function done(summary, latency)
  local e = summary.errors
  io.write(string.format(
    '\\n{"rate": %%f, "p50": %%f, "p99": %%f, "requests": %%d, "bad": %%d}\\n',
    summary.requests / summary.duration * 1e6, latency:percentile(50) / 1e3,
    latency:percentile(99) / 1e3, summary.requests,
    e.status + e.connect + e.read + e.write + e.timeout))
end
"""


def wrk(url: str, connections: int, seconds: int, body: str) -> dict[str, Any]:
    assert WRK is not None
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(_LUA % json.dumps(body))
        script.flush()
        command = [WRK, "-t1", f"-c{connections}", f"-d{seconds}s", "-s", script.name, url]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def own(port: int, path: str, connections: int, seconds: float, body: str) -> dict[str, Any]:
    """Keep-alive connections, each sending its next request when the last is answered."""
    sent = body.encode()
    request = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(sent)}\r\n\r\n"
    ).encode() + sent

    async def measure() -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        until = time.perf_counter() + seconds
        began = time.perf_counter()
        callers = [
            await loop.create_connection(lambda: _Caller(request, until), "127.0.0.1", port)
            for _ in range(connections)
        ]
        async with asyncio.timeout(seconds + 20):
            await asyncio.gather(*[caller.over for _, caller in callers])
        span = time.perf_counter() - began
        took = [ms for _, caller in callers for ms in caller.took]
        return {
            "rate": len(took) / span,
            "p50": percentile(took, 0.5),
            "p99": percentile(took, 0.99),
            "requests": len(took),
            "bad": sum(caller.bad for _, caller in callers),
        }

    return uvloop.run(measure())


class _Caller(asyncio.Protocol):
    def __init__(self, request: bytes, until: float) -> None:
        self._request = request
        self._until = until
        self._parser = httptools.HttpResponseParser(self)
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.took: list[float] = []
        self.bad = 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        now = time.perf_counter()
        self.took.append((now - self._asked) * 1000)
        self.bad += self._parser.get_status_code() >= 300
        self._parser = httptools.HttpResponseParser(self)
        if now < self._until:
            self._ask()
        else:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if time.perf_counter() < self._until:
            self.bad += 1
        if not self.over.done():
            self.over.set_result(None)

    def _ask(self) -> None:
        self._asked = time.perf_counter()
        self._transport.write(self._request)


if __name__ == "__main__":
    print(json.dumps(own(int(sys.argv[1]), "/api/openai", 64, 3, BODY)))
