"""What a person looks for is found by an index: SQLite forgets a partial one over a single word."""

from __future__ import annotations

from importlib.resources import files

import apsw
import pytest

from onward.core.contract import Query
from onward.core.task import State
from onward.ledgers.sqlite.database import QUERIES
from onward.ledgers.sqlite.store import matching

DEAD, WAITING = frozenset({State.DEAD}), frozenset({State.WAITING})


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (Query(states=DEAD), "task_trouble"),
        (Query(states=DEAD, after="9"), "task_trouble"),
        (Query(states=DEAD, fingerprint="x"), "task_fingerprint"),
        (Query(states=WAITING, waiting_for="approval"), "task_waiting"),
        (Query(approval="rejected"), "task_approval"),
        (Query(approval="all"), "task_approval"),
        (Query(session="s"), "task_session"),
        (Query(parent="p"), "task_parent"),
    ],
)
def test_a_search_for_trouble_reads_an_index(query: Query, index: str) -> None:
    schema = files("onward.ledgers.sqlite") / "migrations/0001_initial.sql"
    ledger = apsw.Connection(":memory:")
    ledger.execute(schema.read_text())
    where, bindings = matching(query)
    find = f"EXPLAIN QUERY PLAN SELECT * FROM task WHERE {where} ORDER BY tid DESC LIMIT 10"  # noqa: S608
    plan = " ".join(str(row[3]) for row in ledger.execute(find, bindings).fetchall())
    assert f"USING INDEX {index} " in plan
    ledger.close()


def test_documents_past_their_time_are_found_by_an_index() -> None:
    ledger = apsw.Connection(":memory:")
    for name in ("0001_initial", "0002_document_expiry"):
        schema = files("onward.ledgers.sqlite") / f"migrations/{name}.sql"
        ledger.execute(schema.read_text())
    plan = ledger.execute(f"EXPLAIN QUERY PLAN {QUERIES['expire_documents']}", (1,)).fetchall()
    assert "INDEX document_expiry" in str(plan)
    ledger.close()
