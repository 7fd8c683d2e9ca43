"""What a task costs when 200,000 others are waiting, next to 200."""

from __future__ import annotations

from bench.processes import call
from bench.report import Figure, Goal, Measured
from bench.rounds import Bench

FEW, MANY = 200, 200_000
SECONDS = 2.0
BOUND = 1.3
LOOKS = {
    "position_near": "position(), 100th",
    "position_last": "position(), last",
    "counts": "counts()",
}


def measure(bench: Bench) -> Measured:
    paths = {backlog: bench.fresh() for backlog in (FEW, MANY)}
    submitting = Figure(f"bulk submitting of {MANY:,}", "tasks/s")
    for backlog, path in paths.items():
        bench.tell(f"queueing {backlog:,}")
        said = call("engine:preload", path=path, synchronous="normal", backlog=backlog)
        if backlog == MANY:
            submitting.rounds.append(said["rate"])

    cost = {backlog: Figure(f"task, {backlog:,} queued", "µs") for backlog in paths}
    looks = {
        (key, backlog): Figure(f"{name}, {backlog:,} queued", "µs")
        for key, name in LOOKS.items()
        for backlog in paths
    }
    for turn in range(bench.rounds):
        for backlog, path in paths.items():
            bench.tell(f"round {turn + 1}/{bench.rounds}  {backlog:,} queued")
            given = {"path": path, "synchronous": "normal"}
            said = call("engine:steady", **given, seconds=SECONDS, backlog=backlog)
            cost[backlog].rounds.append(said["cost_us"])
            said = call("engine:looks", **given, times=200)
            for key in LOOKS:
                looks[key, backlog].rounds.append(said[key])
    for path in paths.values():
        bench.forget(path)

    def ratio(few: Figure, many: Figure, name: str) -> Goal:
        return Goal(f"{name}, {MANY:,} / {FEW}", many.median / few.median, BOUND, True)

    goals = [ratio(cost[FEW], cost[MANY], "task")]
    goals += [
        ratio(looks[key, FEW], looks[key, MANY], LOOKS[key]) for key in ("position_near", "counts")
    ]
    last = looks["position_last", MANY].median
    notes = [
        "a task is submitted at the end, another claimed at the head and settled; the queue stays",
        f"position() counts at most 1,000 places: the last of {MANY:,} costs {last:,.0f} µs",
    ]
    return Measured("backlog", [submitting, *cost.values(), *looks.values()], goals, notes)
