"""Throughput in one process, submit to final event: against bare SQLite, and against huey."""

from __future__ import annotations

from bench.report import Goal, Measured
from bench.rounds import Bench, Contender, alternate

SECONDS = 1.5
LEVELS = ("normal", "full")
OF_RAW, OF_HUEY = 0.4, 15.0
RAW, HUEY = "raw SQLite, batches of 100", "huey, full"
# The built-in worker comes with 64 slots; 256 are more than there are callers, so none queues.
ONWARD: dict[str, Contender] = {
    "Onward, 200 waiting callers": ("engine:submitters", {"callers": 200, "slots": 64}),
    "Onward, the same with 256 slots": ("engine:submitters", {"callers": 200, "slots": 256}),
    "Onward, bulk": ("engine:bulk", {"slots": 64}),
}


def measure(bench: Bench) -> Measured:
    contenders: dict[str, Contender] = {}
    for level in LEVELS:
        given = {"synchronous": level, "seconds": SECONDS}
        contenders[f"{RAW}, {level}"] = ("raw_sqlite:cycle", given)
        for name, (function, more) in ONWARD.items():
            contenders[f"{name}, {level}"] = (function, {**given, **more})
    contenders[HUEY] = (
        "huey_peer:throughput",
        {"synchronous": "default", "tasks": 2_000, "quiet": True},
    )
    found = alternate(bench, contenders, {"rate": "tasks/s", "cpu_us": "µs/task"})
    rate = {name: figures[0].median for name, figures in found.items()}

    goals = [
        Goal(f"{name} / raw, {level}", rate[f"{name}, {level}"] / rate[f"{RAW}, {level}"], OF_RAW)
        for level in LEVELS
        for name in ONWARD
    ]
    for level in LEVELS:
        fastest = max(rate[f"{name}, {level}"] for name in ONWARD)
        goals.append(Goal(f"Onward {level}, fastest / huey", fastest / rate[HUEY], OF_HUEY))
    limit = rate[f"{RAW}, full"] / rate[HUEY]
    notes = [
        "raw inserts, claims and settles each batch in a transaction of its own, with event rows",
        "huey drains a full queue, quietly; its submitting is not counted, Onward's is",
        "huey syncs every commit (FULL) by default and knows no NORMAL: normal / huey is unlike",
        f"raw SQLite itself, full, is {limit:.1f} × huey",
        "processor time is the whole process's: less noisy on a busy machine, but no goal",
    ]
    figures = [figure for group in found.values() for figure in group if figure.rounds]
    return Measured("embedded", figures, goals, notes)
