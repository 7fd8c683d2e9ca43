"""Alternating rounds: every contender once, then all again: a noisy minute hits them all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from bench.processes import call
from bench.report import Figure


@dataclass
class Bench:
    """One run: where its files go, how often, and who is told how it goes."""

    scratch: Path
    rounds: int
    tell: Any
    full: bool = False  # the numbers of the goals, where they take minutes
    before: Path | None = None  # a tree of an earlier Onward, where there is one to compare with
    _numbers: Any = field(default_factory=count)

    def fresh(self) -> str:
        """A database file that nobody has used."""
        return str(self.scratch / f"{next(self._numbers)}.db")

    def forget(self, path: str) -> None:
        for left in self.scratch.glob(f"{Path(path).name}*"):
            left.unlink()


Contender = tuple[str, dict[str, Any]]  # module:function, and what it is given besides a file


def alternate(
    bench: Bench, contenders: Mapping[str, Contender], wanted: Mapping[str, str]
) -> dict[str, list[Figure]]:
    """The wanted keys of every contender's answer, by contender, as figures."""
    found = {
        name: [Figure(f"{name}{_said(key)}", unit) for key, unit in wanted.items()]
        for name in contenders
    }
    for turn in range(bench.rounds):
        for name, (function, arguments) in contenders.items():
            bench.tell(f"round {turn + 1}/{bench.rounds}  {name}")
            path = bench.fresh()
            answer = call(function, path=path, **arguments)
            bench.forget(path)
            for figure, key in zip(found[name], wanted, strict=True):
                if key in answer:
                    figure.rounds.append(answer[key])
    return found


def _said(key: str) -> str:
    return {"rate": "", "cpu_us": ", processor time"}.get(key, f", {key}")
