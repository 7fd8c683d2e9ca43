"""`python -m bench [MEASUREMENT …]`, of those in MEASUREMENTS; without one, all of them."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from rich.console import Console

from bench import agents, backlog, embedded, flows, http, idle, many, postgres_ledger, redis_ledger
from bench.processes import ContenderFailed, end_tidily
from bench.report import Machine, as_json, show
from bench.rounds import Bench

MEASUREMENTS = {
    "embedded": embedded.measure,
    "http": http.measure,
    "idle": idle.measure,
    "backlog": backlog.measure,
    "redis": redis_ledger.measure,
    "postgres": postgres_ledger.measure,
    "flows": flows.measure,
    "agents": agents.measure,
    "many": many.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *MEASUREMENTS], metavar="measurement")
    parser.add_argument("--rounds", type=int, default=3, help="of each contender (3 or more)")
    parser.add_argument(
        "--full", action="store_true", help="postgres: a backlog and churn in millions"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there, too")
    parser.add_argument(
        "--dir", type=Path, help="where the ledgers lie while it runs (a real disk)"
    )
    parser.add_argument(
        "--before", type=Path, metavar="DIR", help="many: a checkout of an earlier Onward, too"
    )
    given = parser.parse_args()
    end_tidily()
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="onward-bench-", dir=given.dir) as scratch:
        machine = Machine(Path(scratch))
        measured, failed = [], []
        for name in given.names or MEASUREMENTS:

            def tell(what: str, name: str = name) -> None:
                elapsed = time.monotonic() - began
                console.print(f"{elapsed:5.0f} s  {name}  {what}", style="bright_black")

            before = None if given.before is None else given.before.resolve()
            bench = Bench(Path(scratch), given.rounds, tell, full=given.full, before=before)
            try:
                measured.append(MEASUREMENTS[name](bench))
            except ContenderFailed as error:
                failed.append(f"{name}: {error}")
        where = machine.said()
    show(console, measured, where)
    console.print(f"{time.monotonic() - began:.0f} s in all", highlight=False)
    if given.json is not None:
        given.json.write_text(as_json(measured, where))
    if failed:
        raise SystemExit("\n".join(["not measured:", *failed]))


if __name__ == "__main__":
    main()
