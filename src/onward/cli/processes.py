"""Several processes of one command: what `--processes N` of workers and of servers share.

A child is the same command again, with a number of its own. The parent passes signals on, starts a
child anew that has died, and waits for the end of all. It does no work itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import msgspec

CHILD = "ONWARD_CHILD"  # in the environment of a child: a `Child`, as JSON
LOOK_S = 0.3
AGAIN_S = 1.0  # before a child that died is started anew


class Child(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    parent: int
    sockets: tuple[int, ...] = ()  # inherited, bound
    started: int | None = None  # inherited, a pipe: to write to once it serves


def this_child() -> Child | None:
    """None: this process is no child. Asked for once: commands that a child starts are none."""
    found = os.environ.pop(CHILD, None)
    return None if found is None else msgspec.json.decode(found, type=Child)


def end_with_parent(child: Child) -> None:
    """A parent that is killed cannot pass a signal on: its children would work on unseen."""

    def watch() -> None:
        while os.getppid() == child.parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="onward-parent", daemon=True).start()


class Processes:
    def __init__(self, count: int) -> None:
        self._numbers = range(1, count + 1)
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._again_at: dict[int, float] = {}
        self._codes: set[int] = set()
        self._signals = 0

    def run(self) -> int:
        """Until a signal, and the children's end; the highest of their exit codes."""
        for stop in (signal.SIGTERM, signal.SIGINT):
            signal.signal(stop, self._on_signal)
        self._begin()
        while self._children or self._again_at:
            time.sleep(LOOK_S)
            self._reap()
            if self._signals:
                self._again_at.clear()
                self._stopping()
            else:
                self._look()
        return max(self._codes, default=0)

    def _begin(self) -> None:
        for number in self._numbers:
            self._start(number)

    def _look(self) -> None:
        """Again and again, while no signal has come."""
        for number, at in [*self._again_at.items()]:
            if at <= time.monotonic():
                self._start(number)

    def _stopping(self) -> None:
        """Again and again, from the first signal on."""

    def _ended(self, number: int, code: int) -> None:
        """A child has ended, and no signal has come."""
        tell(f"process {number} died ({code}) and is started anew")
        self._start_again(number)

    def _start_again(self, number: int) -> None:
        self._again_at[number] = time.monotonic() + AGAIN_S

    def _child(self, number: int) -> Child:
        return Child(number=number, parent=os.getpid())

    def _start(self, number: int) -> None:
        self._again_at.pop(number, None)
        child = self._child(number)
        # In a session of its own: Ctrl-C reaches it through us, and not twice.
        self._children[number] = subprocess.Popen(  # noqa: S603 our own command line
            [sys.executable, "-m", "onward.cli", *sys.argv[1:]],
            env={**os.environ, CHILD: msgspec.json.encode(child).decode()},
            pass_fds=(*child.sockets, *(() if child.started is None else (child.started,))),
            start_new_session=True,
        )
        # A signal that came between its start and the line above did not reach it.
        if self._signals:
            self._children[number].terminate()

    def _reap(self) -> None:
        for number, child in [*self._children.items()]:
            code = child.poll()
            if code is None:
                continue
            del self._children[number]
            if self._signals:
                self._codes.add(_exit_code(code))
            else:
                self._ended(number, code)

    def _on_signal(self, number: int, _: object) -> None:
        self._signals += 1
        for child in self._children.values():
            child.send_signal(number)


def _exit_code(code: int) -> int:
    """As a shell has it. One that our signal met before it could handle it has ended well."""
    if -code in (signal.SIGTERM, signal.SIGINT):
        return 0
    return code if code >= 0 else 128 - code


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
