"""A transport that writes once a turn of the loop.

A response's head and body, or all the frames that one worker is sent, leave in one system call.
It knows since when the other end has taken nothing of what was written.
"""

from __future__ import annotations

import asyncio
from typing import Any

AT_ONCE = 64 * 1024  # a larger backlog leaves at once, so that flow control sees it


class Corked:
    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._waiting: list[bytes] = []
        self._size = 0
        self._written = 0  # handed to the transport so far
        self._taken = 0  # of it, what had left at the last look
        self._since = 0.0  # the first look at it

    def write(self, data: bytes) -> None:
        if not data:
            return
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(data)
        self._size += len(data)
        if self._size > AT_ONCE:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._waiting:
            waiting, self._waiting, self._size = self._waiting, [], 0
            if not self._transport.is_closing():
                data = b"".join(waiting)
                self._written += len(data)
                self._transport.write(data)

    def unread(self, now: float) -> tuple[float, int]:
        """For how long the other end has taken nothing, and how much waits for it.

        `now` is the time of the caller, which begins above 0.
        """
        waiting = self._transport.get_write_buffer_size()
        taken = self._written - waiting
        if not waiting or taken != self._taken or not self._since:
            self._taken, self._since = taken, now
        return now - self._since, waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
