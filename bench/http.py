"""POST /api/openai, from request to a worker's answer, and POST /api/v2/tasks, with a socket worker
that does them beside it: against a bare FastAPI echo.
"""

from __future__ import annotations

import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

from bench.contenders.load import WRK
from bench.contenders.payload import BODY, TASK
from bench.processes import call, cpu_s, free_port, running, until
from bench.report import Figure, Goal, Measured
from bench.rounds import Bench

CONNECTIONS, SECONDS = 64, 8
BOUND = 0.6
ECHO = "bare FastAPI echo"
ONWARD = "Onward and a socket worker"
TASKS, WAITING = "POST /api/v2/tasks", "POST /api/v2/tasks, waiting"
TASKS_BOUND, WAITING_BOUND = 0.6, 0.45
KEY_COSTS = 0.03
CALLS, WAVES = 64, 300
LEVEL = "full"  # as the server comes


def measure(bench: Bench) -> Measured:
    contenders = {
        ECHO: (_echo, "/api/openai", BODY),
        ONWARD: (_onward, "/api/openai", BODY),
        TASKS: (_onward, "/api/v2/tasks", TASK),
        WAITING: (_onward, "/api/v2/tasks?wait_ms=30000", TASK),
    }
    found = {
        name: {key: Figure(f"{name}{said}", unit) for key, said, unit in _WANTED}
        for name in contenders
    }
    added = Figure("what a key adds to a call, processor time", "µs/request")
    for turn in range(bench.rounds):
        for name, (serving, *request) in contenders.items():
            bench.tell(f"round {turn + 1}/{bench.rounds}  {name}")
            path = bench.fresh()
            with serving(path) as (port, server):
                _load(port, 1, *request)  # warm
                before = cpu_s(server)
                answer = _load(port, SECONDS, *request)
                answer["cpu_us"] = (cpu_s(server) - before) / answer["requests"] * 1e6
            bench.forget(path)
            for key, figure in found[name].items():
                figure.rounds.append(answer[key])
        bench.tell(f"round {turn + 1}/{bench.rounds}  what a key adds")
        path = bench.fresh()
        paired = call("keyed:paired", path=path, synchronous=LEVEL, calls=CALLS, waves=WAVES)
        bench.forget(path)
        added.rounds.append(paired["added_us"])
    echo = found[ECHO]["rate"].median
    bounds = {ONWARD: BOUND, TASKS: TASKS_BOUND, WAITING: WAITING_BOUND}
    worst = max(max(figures["bad"].rounds) for figures in found.values())
    goals = [
        *(
            Goal(f"{name}, {LEVEL} / {ECHO}", found[name]["rate"].median / echo, bound)
            for name, bound in bounds.items()
        ),
        Goal(
            "what a key adds / the server's processor time",
            added.median / found[ONWARD]["cpu_us"].median,
            KEY_COSTS,
            at_most=True,
        ),
        Goal("answers other than 2xx, worst round", worst, 0, True, ""),
    ]
    notes = [
        _TOOL[WRK is not None],
        "both on uvicorn, uvloop and httptools; no access log",
        f"a key: {WAVES} pairs of waves of {CALLS} calls a round, with and without keys in turn, "
        "in one process, from the bytes of a request on; the median difference of their times",
    ]
    figures = [one for group in found.values() for one in group.values()]
    return Measured("http", [*figures, added], goals, notes)


_WANTED = (
    ("rate", "", "requests/s"),
    ("p50", ", p50", "ms"),
    ("p99", ", p99", "ms"),
    ("cpu_us", ", server's processor time", "µs/request"),
    ("bad", ", not 2xx", "requests"),
)
_TOOL = {
    True: f"load by wrk -t1 -c{CONNECTIONS} -d{SECONDS}s",
    False: "load by a client of our own, which takes its share of the processor: "
    "`apt-get install wrk` (or `brew install wrk`) for better figures",
}


def _load(port: int, seconds: int, path: str, body: str) -> Any:
    load = {"connections": CONNECTIONS, "seconds": seconds, "body": body}
    if WRK is None:
        return call("load:own", port=port, path=path, **load)
    return call("load:wrk", url=f"http://127.0.0.1:{port}{path}", **load)


Serving = Iterator[tuple[int, Popen[bytes]]]


@contextmanager
def _echo(path: str) -> Serving:
    port = free_port()
    command = [
        *(sys.executable, "-m", "uvicorn", "bench.contenders.echo:app", "--port", str(port)),
        *("--loop", "uvloop", "--http", "httptools", "--log-level", "warning", "--no-access-log"),
    ]
    with running(command) as server:
        _until_answers(port, server)
        yield port, server


@contextmanager
def _onward(path: str) -> Serving:
    port = free_port()
    onward = str(Path(sys.executable).parent / "onward")
    command = [onward, "serve", "--port", str(port), "--ledger", f"sqlite:///{path}"]
    env = {"ONWARD_SYNCHRONOUS": LEVEL, "ONWARD_LOG_LEVEL": "warning"}
    with running(command, env=env) as server:
        until(lambda: listens(port), what="Onward", process=server)
        url = f"http://127.0.0.1:{port}"
        with running([sys.executable, "-m", "bench.contenders.worker", url]):
            _until_answers(port, server)
            yield port, server


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _until_answers(port: int, server: Popen[bytes]) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/openai",
        BODY.encode(),
        {"content-type": "application/json"},
    )

    def answers() -> bool:
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
                return bool(answer.status == 200)
        except (OSError, urllib.error.HTTPError):
            return False

    until(answers, what="the server", process=server)
