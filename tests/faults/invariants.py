"""What must hold in a ledger after whatever was done to its processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import apsw

from onward.ledgers.portable import open_portable
from onward.ledgers.portable.check import check

OVER = ("succeeded", "failed", "dead", "canceled")


def check_invariants(file: Path, accepted: Collection[str] = (), *, all_over: bool = True) -> None:
    """Every accepted task is there and over, each generation ended once, counts count."""
    ledger: Any = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        assert ledger.pragma("integrity_check") == "ok"
        states = dict(ledger.execute("SELECT id, state FROM task").fetchall())
        lost = [task for task in accepted if task not in states]
        assert not lost, f"{len(lost)} accepted tasks are gone, {lost[0]} first"
        if all_over:
            open_ = {task: state for task, state in states.items() if state not in OVER}
            assert not open_, f"{len(open_)} tasks never ended: {list(open_.items())[:3]}"
        finals = ledger.execute(
            "SELECT t.id, t.generation, count(e.final) FROM task t LEFT JOIN event e"
            " ON e.tid = t.tid AND e.final = t.generation"
            " WHERE t.state IN ('succeeded','failed','dead','canceled') GROUP BY t.tid"
        ).fetchall()
        wrong = [row for row in finals if row[2] != 1]
        assert not wrong, f"{len(wrong)} endings without exactly one final event: {wrong[:3]}"
        gaps = ledger.execute(
            "SELECT t.id FROM task t JOIN event e USING (tid) GROUP BY t.tid"
            " HAVING count(*) != t.events OR max(e.n) != t.events OR min(e.n) != 1"
        ).fetchall()
        assert not gaps, f"event numbers with gaps: {gaps[:3]}"
        asleep = ledger.execute(
            "SELECT id FROM task WHERE state = 'running' AND due_at IS NULL"
        ).fetchall()
        assert not asleep, f"running without an alarm: {asleep[:3]}"
        counted = dict(ledger.execute("SELECT state, count(*) FROM task GROUP BY state").fetchall())
        kept = dict(
            ledger.execute(
                "SELECT state, sum(count) FROM tally GROUP BY state HAVING sum(count) != 0"
            ).fetchall()
        )
        assert counted == kept, "the tally is not what a count gives"
        in_batches = "SELECT batch, state, count(*) FROM task WHERE batch NOT NULL GROUP BY 1, 2"
        by_batch = "SELECT batch, state, count FROM batch_count WHERE count != 0"
        assert set(ledger.execute(in_batches)) == set(ledger.execute(by_batch))
    finally:
        ledger.close()


async def check_ledger_invariants(url: str, accepted: Collection[str]) -> Counter[str]:
    """The same for a ledger of any kind, at rest; returns how many events there are, by type."""
    found = await check(open_portable(url), lambda *_: None, quiet=True)
    assert not found.faults, found.faults
    states = {task: found.state_of(task) for task in accepted}
    lost = [task for task, state in states.items() if state is None]
    assert not lost, f"{len(lost)} accepted tasks are gone, {lost[0]} first"
    open_ = {task: state for task, state in states.items() if state not in OVER}
    assert not open_, f"{len(open_)} tasks never ended: {list(open_.items())[:3]}"
    assert set(found.states) <= set(OVER), found.states
    return found.events
