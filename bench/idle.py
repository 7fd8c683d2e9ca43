"""Latency of one task with nothing else going on, from submit to result."""

from __future__ import annotations

from bench.report import Goal, Measured
from bench.rounds import Bench, Contender, alternate

SAMPLES, HUEY_SAMPLES = 500, 200
BOUND_MS = {"normal": 1.8, "full": 2.5}


def measure(bench: Bench) -> Measured:
    contenders: dict[str, Contender] = {
        f"Onward, {level}": (
            "engine:idle",
            {"synchronous": level, "samples": SAMPLES, "pause_ms": 2},
        )
        for level in BOUND_MS
    }
    contenders["huey polling every 5 ms, full"] = (
        "huey_peer:idle",
        {"synchronous": "default", "samples": HUEY_SAMPLES, "poll_ms": 5},
    )
    found = alternate(bench, contenders, {"p50": "ms", "p99": "ms"})
    goals = [
        Goal(f"Onward, {level}, p50", found[f"Onward, {level}"][0].median, bound, True, "ms")
        for level, bound in BOUND_MS.items()
    ]
    huey = found["huey polling every 5 ms, full"][0].median
    notes = [
        f"huey's p50 is {huey / found[f'Onward, {level}'][0].median:.1f} × Onward's at {level}"
        for level in BOUND_MS
    ]
    return Measured("idle", [figure for group in found.values() for figure in group], goals, notes)
