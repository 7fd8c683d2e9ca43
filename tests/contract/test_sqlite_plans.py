"""What a person looks for is found by an index: SQLite forgets a partial one over a single word."""

from __future__ import annotations

from typing import Any

import apsw
import pytest

from onward.core.contract import Query
from onward.core.limits import Bound
from onward.core.task import State
from onward.ledgers.sql.dialect import Step
from onward.ledgers.sql.store import matching
from onward.ledgers.sqlite import SqliteBackend
from onward.ledgers.sqlite.dialect import INDEXES, SCHEMA, STATEMENTS
from tests.contract.driver import Driver, submission
from tests.support import a_task

DEAD, WAITING = frozenset({State.DEAD}), frozenset({State.WAITING})


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (Query(states=DEAD), "task_troubled"),
        (Query(states=DEAD, after="9"), "task_troubled"),
        (Query(states=DEAD, fingerprint="x"), "task_fingerprint"),
        (Query(states=WAITING, waiting_for="approval"), "task_waiting"),
        (Query(approval="rejected"), "task_approval"),
        (Query(approval="all"), "task_approval"),
        (Query(session="s"), "task_session"),
        (Query(parent="p"), "task_parent"),
        (Query(partition="p"), "task_partition"),
        (Query(batch="b"), "task_batch"),
    ],
)
def test_a_search_for_trouble_reads_an_index(query: Query, index: str) -> None:
    where, values = matching(query)
    assert f"USING INDEX {index} " in plan_of(Step("find", (10, *values), where=where))


def test_documents_past_their_time_are_found_by_an_index() -> None:
    assert "INDEX document_expiry" in plan_of(Step("expire_documents", (1,)))


def test_others_with_a_unique_key_are_found_by_an_index() -> None:
    rivals = plan_of(Step("rivals", rows=[("k", "running")]))
    assert "INDEX task_unique (unique_key=? AND state=?)" in rivals


def test_what_has_waited_longest_is_found_by_an_index() -> None:
    assert "INDEX task_waiting" in plan_of(Step("open_approvals", (1,)))
    heads = plan_of(Step("oldest", rows=[("q", 1, "primary")]))
    assert "INDEX task_line (queue=? AND priority=? AND lane=? AND partition=?)" in heads
    assert "INDEX task_parted (queue=? AND priority=? AND lane=?)" in heads
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


MANY = 20_000


@pytest.mark.contract("L-2", "L-3")
@pytest.mark.parametrize("each", [None, 1])
async def test_a_claim_among_many_partitions_is_a_few_statements(each: int | None) -> None:
    """Whether they wait for their turn, or for a bound: as many as for one partition."""
    backend = SqliteBackend(":memory:")
    driver = Driver(backend)
    bounds = () if each is None else (Bound("each", True, each, None, ("q",)),)
    for at in range(0, MANY, 1_000):
        tasks = [a_task(partition=f"{nth % 10_000}") for nth in range(at, at + 1_000)]
        await driver.insert(*map(submission, tasks))
    held = await driver.claim_all(limit=2_500, bounds=bounds)
    assert len(held) == (10_000 if each else MANY)
    await driver.submit_some(2, partition="late")
    names: list[str] = []
    run = backend.database.run

    def counted(step: Step) -> list[Any]:
        names.append(step.name)
        return run(step)

    backend.database.run = counted  # type: ignore[method-assign]
    assert len(await driver.claim(limit=1, bounds=bounds)) == 1
    assert names.count("heads") == names.count("claim_these") == 1
    assert len(names) <= 8
    await backend.close()


def test_the_heads_of_a_partition_are_found_by_an_index() -> None:
    heads = plan_of(Step("heads", rows=[("q", 1, "primary", "p", "")], changes="4"))
    line = "INDEX task_line (queue=? AND priority=? AND lane=? AND partition=?)"
    assert line in heads
    assert line in plan_of(Step("claim", ("w", 1, 1, 1, "q", 1, "primary", 5)))
