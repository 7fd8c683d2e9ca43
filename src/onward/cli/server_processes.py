"""`onward serve --processes N`: a child is a whole server of its own, on the parent's socket.

The parent binds the port and keeps it: connections wait while a child is started anew. The first
child starts alone: what keeps it from serving would keep all of them, and is reported once.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress

import structlog

from onward.cli.processes import Child, Processes

log = structlog.get_logger("onward.server")


class ServerProcesses(Processes):
    def __init__(
        self, shared: Sequence[socket.socket], own: Sequence[Sequence[socket.socket]]
    ) -> None:
        """`own`: what each process alone listens on."""
        super().__init__(len(own))
        self._shared = shared
        self._own = own
        self._started, self._writer = os.pipe()
        os.set_blocking(self._started, False)
        self._serving = False
        self._others_started = False

    def _begin(self) -> None:
        self._start(1)

    def _look(self) -> None:
        # The first may have served, died and been started anew since we looked last.
        if not self._others_started and (self._serving or self._first_serves()):
            self._others_started = True
            for number in self._numbers[1:]:
                self._start(number)
        super()._look()

    def _stopping(self) -> None:
        # The children listen no more: in our copy of the socket, connections would wait in vain.
        for listener in (*self._shared, *(each for own in self._own for each in own)):
            listener.close()

    def _ended(self, number: int, code: int) -> None:
        # It may have begun to serve and died since we looked last.
        if self._serving or self._first_serves():
            log.warning("a process died and is started anew", process=number, code=code)
            self._start_again(number)
        else:
            self._codes.add(code if code > 0 else 1)

    def _first_serves(self) -> bool:
        with suppress(BlockingIOError):
            self._serving = bool(os.read(self._started, 1))
        return self._serving

    def _child(self, number: int) -> Child:
        return Child(
            number=number,
            parent=os.getpid(),
            sockets=tuple(each.fileno() for each in (*self._shared, *self._own[number - 1])),
            started=None if self._serving else self._writer,
        )
