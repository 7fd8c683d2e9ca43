"""Flows: steps a second against DBOS on SQLite, a long foreach, and what open runs cost."""

from __future__ import annotations

from bench.processes import call
from bench.report import Figure, Goal, Measured
from bench.rounds import Bench, Contender, alternate

RUNS, STEPS, ITEMS = 500, 10, 10_000
OPEN = [10, 10_000]
OF_DBOS, GROWTH = 15.0, 1.3
ONWARD, DBOS = "Onward, 500 runs of 10 steps", "DBOS"


def measure(bench: Bench) -> Measured:
    line = {"runs": RUNS, "steps": STEPS}
    few = {"runs": 60, "steps": STEPS}  # it is slow, and its rate does not depend on how many
    contenders: dict[str, Contender] = {
        f"{ONWARD}, full": ("flow_engine:linear", {**line, "synchronous": "full"}),
        f"{ONWARD}, normal": ("flow_engine:linear", {**line, "synchronous": "normal"}),
        f"Onward, foreach of {ITEMS}": (
            "flow_engine:foreach",
            {"items": ITEMS, "synchronous": "full"},
        ),
        f"{DBOS}, one at a time": ("dbos_peer:linear", {**few, "at_once": 1}),
        f"{DBOS}, ten at a time": ("dbos_peer:linear", {**few, "at_once": 10}),
    }
    found = alternate(bench, contenders, {"rate": "steps/s", "cpu_us": "µs/step"})
    rate = {name: figures[0].median for name, figures in found.items()}
    grown = Figure(f"a step with {OPEN[1]} open runs, processor time", "µs/step")
    alone = Figure(f"a step with {OPEN[0]} open runs, processor time", "µs/step")
    for turn in range(bench.rounds):
        bench.tell(f"round {turn + 1}/{bench.rounds}  open runs")
        path = bench.fresh()
        cost = call("flow_engine:among", path=path, open_runs=OPEN, steps=STEPS)["cpu_us"]
        bench.forget(path)
        alone.rounds.append(cost[str(OPEN[0])])
        grown.rounds.append(cost[str(OPEN[1])])
    peer = max(rate[name] for name in rate if name.startswith(DBOS))
    goals = [
        Goal(f"{ONWARD}, {level} / DBOS", rate[f"{ONWARD}, {level}"] / peer, OF_DBOS)
        for level in ("full", "normal")
    ]
    goals.append(
        Goal(
            f"a step with {OPEN[1]} open runs / with {OPEN[0]}",
            grown.median / alone.median,
            GROWTH,
            at_most=True,
        )
    )
    notes = [
        "a step of Onward is a task, done by the worker of a queue; a step of DBOS is a call",
        "DBOS uses its own defaults on SQLite; its faster way of the two is the one compared",
    ]
    figures = [figure for group in found.values() for figure in group if figure.rounds]
    return Measured("flows", [*figures, alone, grown], goals, notes)
