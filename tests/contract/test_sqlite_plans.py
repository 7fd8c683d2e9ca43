"""What a person looks for is found by an index: SQLite forgets a partial one over a single word."""

from __future__ import annotations

import apsw
import pytest

from onward.core.contract import Query
from onward.core.task import State
from onward.ledgers.sql.dialect import Step
from onward.ledgers.sql.store import matching
from onward.ledgers.sqlite.dialect import INDEXES, SCHEMA, STATEMENTS

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
    where, values = matching(query)
    assert f"USING INDEX {index} " in plan_of(Step("find", (10, *values), where=where))


def test_documents_past_their_time_are_found_by_an_index() -> None:
    assert "INDEX document_expiry" in plan_of(Step("expire_documents", (1,)))


def test_what_has_waited_longest_is_found_by_an_index() -> None:
    assert "INDEX task_waiting" in plan_of(Step("open_approvals", (1,)))
    heads = plan_of(Step("oldest", rows=[("q", 1, "primary")]))
    assert "INDEX task_ready (queue=? AND priority=? AND lane=?)" in heads
    assert "TEMP B-TREE" not in heads


def plan_of(step: Step) -> str:
    ledger = apsw.Connection(":memory:")
    ledger.execute(SCHEMA)
    ledger.execute(INDEXES)
    statement = f"EXPLAIN QUERY PLAN {STATEMENTS.text(step, len(step.rows or ()))}"
    values = (*step.args, *(value for row in step.rows or () for value in row))
    plan = " ".join(str(row[3]) for row in ledger.execute(statement, values).fetchall())
    ledger.close()
    return plan
