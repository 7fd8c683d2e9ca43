"""Lets so many pass in one turn of the event loop; the rest wait for the next turns.

When thousands of connections break at once, each clean-up is short and all of them together are
not: between two turns the server reads what other callers sent.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Turnstile:
    def __init__(self, per_turn: int) -> None:
        self._per_turn = self._left = per_turn
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turning = False

    async def enter(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._turning:
            self._turning = True
            loop.call_soon(self._turn)
        if self._left > 0:
            self._left -= 1
            return
        waiting: asyncio.Future[None] = loop.create_future()
        self._waiting.append(waiting)
        await waiting

    def _turn(self) -> None:
        self._left = self._per_turn
        while self._waiting and self._left > 0:
            waiting = self._waiting.popleft()
            if not waiting.done():  # a canceled one takes no place
                waiting.set_result(None)
                self._left -= 1
        self._turning = bool(self._waiting)
        if self._turning:
            asyncio.get_running_loop().call_soon(self._turn)
