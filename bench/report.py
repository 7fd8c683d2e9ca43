"""What was measured and what was hoped for; as a table and as JSON. Judges nothing by itself."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import apsw
from rich.console import Console
from rich.table import Table

QUIET_CORES = 0.2


@dataclass
class Figure:
    """One contender, one quantity, one value a round."""

    name: str
    unit: str
    rounds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return median(self.rounds)


@dataclass
class Goal:
    """A bound that the medians are held against."""

    name: str
    value: float
    bound: float
    at_most: bool = False
    unit: str = "×"

    @property
    def met(self) -> bool:
        return self.value <= self.bound if self.at_most else self.value >= self.bound


@dataclass
class Measured:
    name: str
    figures: list[Figure] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


class Machine:
    """Where it ran, and how much of it others had meanwhile."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._before = _ticks()
        self._load = os.getloadavg()[0]
        self._began = time.monotonic()

    def said(self) -> dict[str, Any]:
        spent = {name: at - self._before[name] for name, at in _ticks().items()}
        total = sum(spent.values()) or 1
        busy = total - spent["idle"] - spent["iowait"] - spent["steal"]
        others_s = busy / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])
        return {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "sqlite": apsw.sqlite_lib_version(),
            "file_system": _file_system(self._scratch),
            "load_before": round(self._load, 2),
            "load_after": round(os.getloadavg()[0], 2),
            "stolen_share": round(spent["steal"] / total, 3),
            "cores_used_by_others": round(others_s / (time.monotonic() - self._began), 2),
        }


def _ticks() -> dict[str, int]:
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    stat = Path("/proc/stat")
    if not stat.exists():
        return dict.fromkeys(names, 0)
    return dict(zip(names, map(int, stat.read_text().split("\n")[0].split()[1:9]), strict=True))


def _file_system(path: Path) -> str:
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "unknown"
    found = ("", "unknown")
    for line in mounts.read_text().splitlines():
        _, where, kind, *_ = line.split()
        if path.resolve().is_relative_to(where) and len(where) > len(found[0]):
            found = (where, kind)
    return found[1]


def show(console: Console, measured: Sequence[Measured], machine: dict[str, Any]) -> None:
    console.print()
    console.print(_figures(measured))
    console.print(_goals(measured))
    for one in measured:
        for note in one.notes:
            console.print(f"{one.name}: {note}", highlight=False)
    console.print("  ".join(f"{name} {value}" for name, value in machine.items()), highlight=False)
    if machine["cores_used_by_others"] > QUIET_CORES:
        console.print("[bold red]the machine was not quiet: measure again before believing this[/]")


def _figures(measured: Sequence[Measured]) -> Table:
    table = Table(title="Figures", title_justify="left")
    for name in ("", "what", "median", "unit"):
        table.add_column(name, justify="right" if name == "median" else "left")
    table.add_column("rounds", justify="right", style="bright_black")
    for one in measured:
        for at, figure in enumerate(one.figures):
            rounds = "  ".join(_number(value) for value in figure.rounds)
            first = one.name if at == 0 else ""
            table.add_row(first, figure.name, _number(figure.median), figure.unit, rounds)
        table.add_section()
    return table


def _goals(measured: Sequence[Measured]) -> Table:
    table = Table(title="Goals: ratios of medians", title_justify="left")
    for name in ("", "what", "is", "goal", ""):
        table.add_column(name, justify="right" if name in ("is", "goal") else "left")
    for one in measured:
        for at, goal in enumerate(one.goals):
            table.add_row(
                one.name if at == 0 else "",
                goal.name,
                f"{_number(goal.value)} {goal.unit}",
                f"{'≤' if goal.at_most else '≥'} {goal.bound:g} {goal.unit}",
                "[green]met[/]" if goal.met else "[bold red]MISSED[/]",
            )
        table.add_section()
    return table


def as_json(measured: Sequence[Measured], machine: dict[str, Any]) -> str:
    body = {
        "machine": machine,
        "measurements": {
            one.name: {
                "figures": [
                    {
                        "name": figure.name,
                        "unit": figure.unit,
                        "median": figure.median,
                        "rounds": figure.rounds,
                    }
                    for figure in one.figures
                ],
                "goals": [
                    {
                        "name": goal.name,
                        "value": goal.value,
                        "bound": goal.bound,
                        "kind": "at most" if goal.at_most else "at least",
                        "unit": goal.unit,
                        "met": goal.met,
                    }
                    for goal in one.goals
                ],
                "notes": one.notes,
            }
            for one in measured
        },
    }
    return json.dumps(body, indent=2, ensure_ascii=False)


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
