"""The Redis ledger on one private Valkey: against bare functions, and against peers on the same."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from bench.processes import ContenderFailed, call, cpu_s, running, until
from bench.report import Figure, Goal, Measured
from bench.rounds import Bench
from bench.valkey import Valkey, serving

TASKS = 20_000
SAMPLES, PAUSE_MS = 200, 2
WARM = 500  # samples before those: servers know each other after a second
RATE, OF_RAW, IDLE_MS, SUBMIT = 10_000, 0.4, 1.8, 20_000
ONWARD, RAW = "Onward", "raw functions, batches of 100"
OWN, APART = "in the caller's process", "worker elsewhere"


@dataclass
class Peer:
    """A queue with a producer, one worker, and a way to see in the store how much is done."""

    module: str
    tasks: int
    left: Callable[[Any, int], int]  # how many of so many are not done yet
    server: Valkey
    idle: bool = False
    own: bool = False
    bulk: bool = False  # it can be handed many at once
    given: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def worker(self) -> list[str]:
        command: list[str] = call(f"{self.module}:worker", **self.given)
        return command


def measure(bench: Bench) -> Measured:
    with ExitStack() as stack:
        plain = stack.enter_context(serving(bench.scratch / "valkey"))
        everysec = stack.enter_context(serving(bench.scratch / "valkey-aof", "everysec"))
        ours = partial(Peer, "redis_engine", left=_onward, own=True, bulk=True)
        peers = {
            ONWARD: ours(TASKS, server=plain, idle=True),
            f"{ONWARD}, AOF everysec": ours(TASKS // 2, server=everysec),
            f"{ONWARD} and its archive": ours(TASKS // 2, server=plain, given={"archive": True}),
            "BullMQ": Peer("bullmq_peer", 10_000, _bullmq, plain, idle=True, bulk=True),
            "huey": Peer("huey_redis", 4_000, _huey, plain, idle=True),
            "dramatiq": Peer("dramatiq_peer", 2_500, _dramatiq, plain),
            "Celery": Peer("celery_peer", 600, _celery, plain),
        }
        notes = _NOTES.copy()
        if reason := call("bullmq_peer:install"):
            notes.append(f"BullMQ is not measured: {reason}")
            del peers["BullMQ"]
        figures = _Figures()
        for turn in range(bench.rounds):
            bench.tell(f"round {turn + 1}/{bench.rounds}  {RAW}")
            plain.empty()
            said = call("raw_redis:cycle", url=plain.url, tasks=TASKS)
            figures.add(RAW, "tasks/s", said["rate"])
            figures.add(f"{RAW}, submitting", "tasks/s", said["submit_rate"])
            figures.add(f"{RAW}, draining", "tasks/s", said["drain_rate"])
            for name, peer in peers.items():
                bench.tell(f"round {turn + 1}/{bench.rounds}  {name}")
                _throughput(name, peer, figures)
                if peer.idle:
                    _idle(name, peer, figures)
        return Measured("redis", figures.all(), _goals(figures, peers), notes)


_NOTES = [
    "tasks/s: draining a full queue with one worker, seen in the store, from the first to the last",
    "dramatiq, Celery and huey submit one by one: they know no bulk",
    "raw knows no counts, caps, keys or letters; Onward's cycle is its submitting and its draining",
    "Celery works in 4 child processes, huey in 2, the others in one",
    "bytes: growth of used_memory by task, queued, and done with its result (and events) kept",
]


class _Figures:
    def __init__(self) -> None:
        self._found: dict[str, Figure] = {}

    def add(self, name: str, unit: str, value: float) -> None:
        self._found.setdefault(name, Figure(name, unit)).rounds.append(value)

    def median(self, name: str) -> float:
        return self._found[name].median

    def all(self) -> list[Figure]:
        order = ("tasks/s", "submitted/s", "ms", "bytes/task", "µs/task")
        return sorted(self._found.values(), key=lambda figure: order.index(figure.unit))


def _goals(figures: _Figures, peers: dict[str, Peer]) -> list[Goal]:
    rate = figures.median(ONWARD)
    best = max((name for name, peer in peers.items() if not peer.own), key=figures.median)
    submitting = figures.median(f"{ONWARD}, bulk")
    cycle = 1 / (1 / rate + 1 / submitting)
    return [
        Goal(ONWARD, rate, RATE, unit="tasks/s"),
        Goal(f"{ONWARD} / {best}, the fastest peer", rate / figures.median(best), 1),
        Goal(f"{ONWARD}, submitting and draining / raw", cycle / figures.median(RAW), OF_RAW),
        Goal(f"{ONWARD}, draining / raw", rate / figures.median(f"{RAW}, draining"), OF_RAW),
        *(
            Goal(
                f"idle, {where}, p50",
                figures.median(_idle_name(ONWARD, where)),
                IDLE_MS,
                True,
                "ms",
            )
            for where in (OWN, APART)
        ),
        Goal(f"{ONWARD}, bulk submitting", submitting, SUBMIT, unit="tasks/s"),
    ]


def _throughput(name: str, peer: Peer, figures: _Figures) -> None:
    server, tasks = peer.server, peer.tasks
    server.empty()
    empty = server.memory
    with _at(server):
        said = call(f"{peer.module}:submit", tasks=tasks)
        how = "bulk" if peer.bulk else "one by one"
        figures.add(f"{name}, {how}", "submitted/s", said["rate"])
        queued = server.memory
        with running(peer.worker) as worker:
            until(lambda: peer.left(server.client, tasks) < tasks - 20, what=name, process=worker)
            before, began, cpu = peer.left(server.client, tasks), time.perf_counter(), cpu_s(worker)
            while left := peer.left(server.client, tasks):
                if worker.poll() is not None or time.perf_counter() - began > 20:
                    raise ContenderFailed(f"{name} stopped with {left:,} of {tasks:,} left")
                time.sleep(0.01)
            took, cpu = time.perf_counter() - began, cpu_s(worker) - cpu
    figures.add(name, "tasks/s", before / took)
    if peer.own:
        figures.add(f"{name}, worker's processor time", "µs/task", cpu / before * 1e6)
    if server.persistence == "none":
        figures.add(f"{name}, queued", "bytes/task", (queued - empty) / tasks)
        figures.add(f"{name}, done", "bytes/task", (server.memory - empty) / tasks)


def _idle(name: str, peer: Peer, figures: _Figures) -> None:
    peer.server.empty()
    given = {"samples": SAMPLES, "warm": WARM, "pause_ms": PAUSE_MS}
    with _at(peer.server):
        if peer.own:
            said = call(f"{peer.module}:idle", **given, serving=True)
            figures.add(_idle_name(name, OWN), "ms", said["p50"])
        with running(peer.worker):
            said = call(f"{peer.module}:idle", **given)
            figures.add(_idle_name(name, APART), "ms", said["p50"])


def _idle_name(name: str, where: str) -> str:
    return f"{name}, idle, {where}, p50"


@contextmanager
def _at(server: Valkey) -> Iterator[None]:
    """Whoever is started meanwhile finds this server."""
    os.environ["BENCH_REDIS"] = server.url
    yield
    del os.environ["BENCH_REDIS"]


def _onward(client: Any, tasks: int) -> int:
    counts = client.hgetall("onward:counts").items()
    return tasks - sum(int(many) for name, many in counts if name.endswith(b":succeeded"))


def _bullmq(client: Any, tasks: int) -> int:
    return tasks - int(client.zcard("bull:noop:completed"))


def _huey(client: Any, tasks: int) -> int:
    return tasks - int(client.hlen("huey.results.bench"))


def _dramatiq(client: Any, tasks: int) -> int:
    """A message stays in this hash until it is acknowledged, after its result was stored."""
    return int(client.hlen("dramatiq:default.msgs"))


def _celery(client: Any, tasks: int) -> int:
    """A key a result, and a few for the queue: told apart only when it matters."""
    keys = int(client.dbsize())
    if keys >= tasks:
        keys = sum(1 for _ in client.scan_iter("celery-task-meta-*", count=1_000))
    return tasks - keys
