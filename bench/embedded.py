"""Throughput in one process, submit to final event: against bare SQLite, and against huey."""

from __future__ import annotations

from bench.report import Goal, Measured
from bench.rounds import Bench, Contender, alternate

SECONDS = 2.0
LEVELS = ("normal", "full")
OF_RAW, OF_HUEY = 0.4, 15.0


def measure(bench: Bench) -> Measured:
    contenders: dict[str, Contender] = {}
    for level in LEVELS:
        given = {"synchronous": level, "seconds": SECONDS}
        contenders |= {
            f"raw SQLite, batches of 100, {level}": ("raw_sqlite:cycle", given),
            f"Onward, 200 waiting callers, {level}": (
                "engine:submitters",
                {**given, "callers": 200},
            ),
            f"Onward, bulk, {level}": ("engine:bulk", given),
        }
    huey = {"synchronous": "default", "tasks": 2_000}  # which is FULL
    contenders |= {
        "huey, full": ("huey_peer:throughput", {**huey, "quiet": True}),
        "huey as it comes (logs), full": (
            "huey_peer:throughput",
            {**huey, "tasks": 1_200, "quiet": False},
        ),
    }
    found = alternate(bench, contenders, {"rate": "tasks/s"})
    rate = {name: figures[0].median for name, figures in found.items()}

    goals: list[Goal] = []
    for level in LEVELS:
        raw = rate[f"raw SQLite, batches of 100, {level}"]
        for how in ("200 waiting callers", "bulk"):
            value = rate[f"Onward, {how}, {level}"] / raw
            goals.append(Goal(f"Onward, {how} / raw SQLite, {level}", value, OF_RAW))
    best = {
        level: max(rate[f"Onward, {how}, {level}"] for how in ("200 waiting callers", "bulk"))
        for level in LEVELS
    }
    goals += [
        Goal("Onward full / huey full", best["full"] / rate["huey, full"], OF_HUEY),
        Goal(
            "Onward full / huey as it comes",
            best["full"] / rate["huey as it comes (logs), full"],
            OF_HUEY,
        ),
        Goal(
            "Onward normal / huey as it comes",
            best["normal"] / rate["huey as it comes (logs), full"],
            OF_HUEY,
        ),
    ]
    notes = [
        "raw inserts, claims and settles each batch in a transaction of its own, with event rows",
        "huey is timed while it drains a full queue; its submitting is not counted, Onward's is",
        "huey syncs every commit (FULL) by default and knows no NORMAL",
    ]
    return Measured(
        "embedded", [figure for group in found.values() for figure in group], goals, notes
    )
