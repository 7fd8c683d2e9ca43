"""Many tasks at once: what partitions cost a worker, and how fast batches are handed in."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench import postgres_server, valkey
from bench.http import listens
from bench.processes import ContenderFailed, call, free_port, running, until
from bench.report import Figure, Goal, Measured
from bench.rounds import Bench

TASKS, PARTITIONS = 30_000, 30_000
FULL_PARTITIONS = 100_000
BATCHED, SIZE = 100_000, 10_000
GATHERED = 50_000
COST, BATCH_RATE, GATHERED_RATE = 1.5, 20_000, 5_000
AS_BEFORE = 1.05  # what a queue without partitions costs, of what it cost
BEFORE = "no partitions, before"
HANDED_IN = ("SQLite", "Redis")  # ledgers on which batches are measured


def measure(bench: Bench) -> Measured:
    tasks = FULL_PARTITIONS if bench.full else TASKS
    figures: dict[str, Figure] = {}

    def note(name: str, unit: str, value: float) -> None:
        figures.setdefault(name, Figure(name, unit)).rounds.append(value)

    with ExitStack() as stack:
        servers = _servers(bench, stack)
        for turn in range(bench.rounds):
            for name, server in servers.items():
                bench.tell(f"round {turn + 1}/{bench.rounds}  {name}")
                for partitions in (0, tasks):
                    given = {"tasks": tasks, "partitions": partitions}
                    said = call("many:drain", path=_fresh(bench, server), **given)
                    what = f"{name}, {_said(partitions)}"
                    note(what, "µs/task", said["cost_us"])
                    note(f"{what}, processor time", "µs/task", said["cpu_us"])
                if bench.before is not None:
                    given = {"tasks": tasks, "partitions": 0, "tree": bench.before}
                    said = call("many:drain", path=_fresh(bench, server), **given)
                    note(f"{name}, {BEFORE}", "µs/task", said["cost_us"])
                if name in HANDED_IN:
                    with _serving(_fresh(bench, server)) as url:
                        said = call("many:batches", url=url, tasks=BATCHED, size=SIZE)
                    note(f"{name}, batches", "tasks/s", said["rate"])
                    with _serving(_fresh(bench, server)) as url:
                        said = call("many:gathered", url=url, tasks=GATHERED)
                    note(f"{name}, gathered", "tasks/s", said["rate"])
    notes = [
        "a full queue, drained by one process; each partition has one task",
        f"batches of {SIZE:,} from one caller; client.submit is gathered {GATHERED:,} times",
        "BullMQ's and huey's bulk are among the figures of `python -m bench redis`",
    ]
    return Measured("many", list(figures.values()), _goals(figures, list(servers), tasks), notes)


def _goals(figures: dict[str, Figure], servers: Sequence[str], tasks: int) -> list[Goal]:
    goals: list[Goal] = []
    for name in servers:
        cost, plain = (figures[f"{name}, {_said(many)}"].median for many in (tasks, 0))
        goals.append(Goal(f"{name}, {_said(tasks)} / none", cost / plain, COST, True))
        if (before := figures.get(f"{name}, {BEFORE}")) is not None:
            ratio = plain / before.median
            goals.append(Goal(f"{name}, no partitions / before", ratio, AS_BEFORE, True))
    for name in HANDED_IN:
        rate = figures[f"{name}, batches"].median
        goals.append(Goal(f"{name}, POST /tasks/batch", rate, BATCH_RATE, unit="tasks/s"))
        rate = figures[f"{name}, gathered"].median
        goals.append(Goal(f"{name}, client.submit", rate, GATHERED_RATE, unit="tasks/s"))
    return goals


def _said(partitions: int) -> str:
    return f"{partitions:,} partitions" if partitions else "no partitions"


def _servers(bench: Bench, stack: ExitStack) -> dict[str, Any]:
    servers: dict[str, Any] = {"SQLite": None}
    servers["Redis"] = stack.enter_context(valkey.serving(bench.scratch / "valkey"))
    try:
        folder = bench.scratch / "postgres"
        servers["Postgres"] = stack.enter_context(postgres_server.serving(folder))
    except ContenderFailed as missing:
        bench.tell(f"no Postgres: {missing}")
    return servers


def _fresh(bench: Bench, server: Any) -> str:
    if server is None:
        return bench.fresh()
    server.empty()
    return str(server.url)


@contextmanager
def _serving(ledger: str) -> Iterator[str]:
    port = free_port()
    url = ledger if "://" in ledger else f"sqlite:///{ledger}"
    onward = str(Path(sys.executable).parent / "onward")
    env = {"ONWARD_SYNCHRONOUS": "normal", "ONWARD_LOG_LEVEL": "warning"}
    command = [onward, "serve", "--port", str(port), "--ledger", url]
    with running(command, env=env) as server:
        until(lambda: listens(port), what="Onward", process=server)
        yield f"http://127.0.0.1:{port}"
