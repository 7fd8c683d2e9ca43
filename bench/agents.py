"""The agent door under load: how soon a hand-off is answered, and how soon its end is told."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.http import listens
from bench.processes import call, free_port, running, until
from bench.report import Figure, Goal, Measured
from bench.rounds import Bench

TASKS, WITHIN_S, SECONDS, SESSIONS = 1_000, 8.0, 10.0, 100
SUBMIT_MS, NOTICE_MS, DONE = 200, 5_000, 0.999


def measure(bench: Bench) -> Measured:
    found = {
        "submit_p99": Figure("a hand-off answered, p99", "ms"),
        "notice_p95": Figure("from a task's end to the pushed notice, p95", "ms"),
        "told": Figure("notices pushed or polled, of all tasks", "share"),
        "done": Figure("tasks completed, of all", "share"),
        "at_once": Figure("tasks running at once when the last was handed in", "tasks"),
    }
    onward = str(Path(sys.executable).parent / "onward")
    for turn in range(bench.rounds):
        bench.tell(f"round {turn + 1}/{bench.rounds}  {TASKS} tasks within {WITHIN_S:.0f} s")
        path, port = bench.fresh(), free_port()
        command = [onward, "serve", "--port", str(port), "--ledger", f"sqlite:///{path}"]
        with running(command, env={"ONWARD_LOG_LEVEL": "warning"}) as server:
            until(lambda at=port: listens(at), what="Onward", process=server)
            answer = call(
                "agents_load:hand_off",
                url=f"http://127.0.0.1:{port}",
                tasks=TASKS,
                within_s=WITHIN_S,
                seconds=SECONDS,
                sessions=SESSIONS,
            )
        bench.forget(path)
        for key, figure in found.items():
            figure.rounds.append(answer[key])
    goals = [
        Goal("a hand-off answered, p99", found["submit_p99"].median, SUBMIT_MS, True, " ms"),
        Goal("a notice pushed, p95", found["notice_p95"].median, NOTICE_MS, True, " ms"),
        Goal("tasks completed", min(found["done"].rounds), DONE, unit=""),
        Goal("notices told", min(found["told"].rounds), 1.0, unit=""),
    ]
    notes = [
        f"{TASKS} tasks of {SECONDS:.0f} s in {SESSIONS} sessions, handed in within "
        f"{WITHIN_S:.0f} s: {TASKS / WITHIN_S * 60:,.0f} a minute",
        "half of the sessions listen on a WebSocket; the others ask at the end",
    ]
    return Measured("agents", list(found.values()), goals, notes)
