"""Queues on one server: a producer fills it, one worker drains it, the store says how far it is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from bench.processes import ContenderFailed, call, cpu_s, running, until
from bench.report import Figure

SAMPLES, PAUSE_MS = 200, 2
WARM = 500  # samples before those: servers know each other after a second
OWN, APART = "in the caller's process", "worker elsewhere"


class Server(Protocol):
    url: str
    look_s: float  # how often its contents may be counted without a burden to those measured

    def empty(self) -> None: ...

    @property
    def used(self) -> int | None:
        """Bytes that it holds; None where that says nothing about a task."""


@dataclass
class Peer:
    """A queue with a producer, one worker, and a way to see in the store how much is done."""

    module: str
    tasks: int
    left: Callable[[Any, int], int]  # how many of so many are not done yet
    server: Any
    idle: bool = False
    own: bool = False
    bulk: bool = False  # it can be handed many at once
    given: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def worker(self) -> list[str]:
        command: list[str] = call(f"{self.module}:worker", **self.given)
        return command


class Figures:
    def __init__(self) -> None:
        self._found: dict[str, Figure] = {}

    def add(self, name: str, unit: str, value: float) -> None:
        self._found.setdefault(name, Figure(name, unit)).rounds.append(value)

    def median(self, name: str) -> float:
        return self._found[name].median

    def all(self) -> list[Figure]:
        order = ("tasks/s", "submitted/s", "steps/s", "ms", "bytes/task", "µs/task")
        return sorted(self._found.values(), key=lambda figure: order.index(figure.unit))


def throughput(name: str, peer: Peer, figures: Figures) -> None:
    server, tasks = peer.server, peer.tasks
    server.empty()
    empty = server.used
    with _at(server):
        said = call(f"{peer.module}:submit", tasks=tasks)
        how = "bulk" if peer.bulk else "one by one"
        figures.add(f"{name}, {how}", "submitted/s", said["rate"])
        queued = server.used
        with running(peer.worker) as worker:
            until(lambda: peer.left(server, tasks) < tasks - 20, what=name, process=worker)
            before, began, cpu = peer.left(server, tasks), time.perf_counter(), cpu_s(worker)
            while left := peer.left(server, tasks):
                if worker.poll() is not None or time.perf_counter() - began > 20:
                    raise ContenderFailed(f"{name} stopped with {left:,} of {tasks:,} left")
                time.sleep(server.look_s)
            took, cpu = time.perf_counter() - began, cpu_s(worker) - cpu
    figures.add(name, "tasks/s", before / took)
    if peer.own:
        figures.add(f"{name}, worker's processor time", "µs/task", cpu / before * 1e6)
    if empty is not None:
        figures.add(f"{name}, queued", "bytes/task", (queued - empty) / tasks)
        figures.add(f"{name}, done", "bytes/task", (server.used - empty) / tasks)


def idle(name: str, peer: Peer, figures: Figures) -> None:
    peer.server.empty()
    given = {"samples": SAMPLES, "warm": WARM, "pause_ms": PAUSE_MS}
    with _at(peer.server):
        if peer.own:
            said = call(f"{peer.module}:idle", **given, serving=True)
            figures.add(idle_name(name, OWN), "ms", said["p50"])
        with running(peer.worker):
            said = call(f"{peer.module}:idle", **given)
            figures.add(idle_name(name, APART), "ms", said["p50"])


def idle_name(name: str, where: str) -> str:
    return f"{name}, idle, {where}, p50"


@contextmanager
def _at(server: Server) -> Iterator[None]:
    """Whoever is started meanwhile finds this server."""
    os.environ["BENCH_URL"] = server.url
    yield
    del os.environ["BENCH_URL"]
