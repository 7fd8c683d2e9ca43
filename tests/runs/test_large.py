"""Runs with much to tell, and runs of which part is forgotten."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from onward.core.task import State
from onward.flow import executor
from onward.native import run_log, slow_reads
from tests.runs.flow_app import FlowApp, call, chain

MANY = 2_000
FAN = {
    "kind": "foreach",
    "service": "add",
    "prep": {"input_key": "$params.items"},
    "post": {"output_key": "out"},
    "parallel_mode": "concurrent",
    "max_parallel": 50,
}


def count_reads(flows: FlowApp, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the ledger is asked, by method, from now on."""
    reads: Counter[str] = Counter()
    store = flows.app.onward.backend.tasks

    def counting(name: str) -> None:
        method = getattr(store, name)

        async def counted(*args: Any, **more: Any) -> Any:
            reads[name] += 1
            return await method(*args, **more)

        monkeypatch.setattr(store, name, counted)

    for name in ("get", "find", "events", "counts"):
        counting(name)
    return reads


@pytest.mark.contract("S4-9", "S4-11")
@pytest.mark.slow
async def test_two_thousand_items_are_listed_with_one_read_each(
    any_flows: FlowApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows = any_flows
    await flows.serve(concurrency=50)
    run = await flows.start(chain(("f", FAN)), params={"items": list(range(MANY))})
    response = await flows.app.get(f"/api/v2/runs/{run}?wait_ms=100000")
    assert response.json()["result"] == {"out": list(range(1, MANY + 1))}
    reads = count_reads(flows, monkeypatch)
    told = await flows.node_runs(run)
    assert sum(reads.values()) < 1.1 * MANY, reads
    assert [row["prep_json"] for row in told] == [str(n) for n in range(MANY)]
    assert {row["status"] for row in told} == {"ok"}
    assert [row["action"] for row in told[-2:]] == ["", "default"]
    reads.clear()
    assert len((await flows.app.get("/tasks")).json()) == 1
    assert sum(reads.values()) < 10, reads


@pytest.mark.contract("S4-11")
async def test_past_a_bound_only_the_last_attempt_of_each_call_is_told(
    flows: FlowApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_log, "MOST_READ", 2)
    monkeypatch.setattr(run_log, "PAGE", 2)
    worker = await flows.serve()
    node = {**FAN, "service": "odd", "failure_strategy": "ignore_errors", "max_retries": 1}
    run = await flows.run(chain(("f", node)), params={"items": [1, 2, 3, 4]})
    assert await flows.trail(
        run["id"], "prep_json", "attempt_no", "status", "error_text", "worker_id"
    ) == [
        ("1", 1, "error", "1 is odd", worker.id),
        ("1", 2, "error", "1 is odd", worker.id),
        ("2", 1, "ok", "", worker.id),
        ("3", 1, "error", "3 is odd", worker.id),
        ("4", 1, "ok", "", worker.id),
    ]


async def test_a_live_run_with_many_calls_is_not_read_anew_by_every_page(
    flows: FlowApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_reads, "MANY", 40)
    monkeypatch.setattr(slow_reads, "TIMES", 1e12)
    await flows.serve(concurrency=20)
    definition = chain(("f", FAN), ("last", call("held")))
    run = await flows.start(definition, params={"items": list(range(20))})
    await flows.until(run, lambda _: flows.held)
    store = flows.app.onward.backend.tasks
    reads: list[str | None] = []
    events = store.events

    async def counted(**how: Any) -> Any:
        reads.append(how.get("task"))
        return await events(**how)

    monkeypatch.setattr(store, "events", counted)
    await flows.read(run)
    reads.clear()
    for _ in range(3):
        await flows.read(run)
    assert reads == []
    await flows.release(flows.held[0])
    ended = await flows.ended(run)
    assert [row["status"] for row in ended["node_runs"]] == ["ok"] * 21, "its end is read anew"


@pytest.mark.contract("S4-3")
async def test_a_run_whose_calls_are_forgotten_is_still_told(flows: FlowApp) -> None:
    await flows.serve()
    run = await flows.run(
        chain(("a", call("add", "$params.n", "n")), ("f", FAN)), params={"n": 1, "items": [1, 2]}
    )
    store, now = flows.app.onward.backend.tasks, flows.app.clock.now()
    assert await store.purge([f"{run['id']}-{n}" for n in range(3)], now=now) == 3
    assert await flows.trail(run["id"]) == [("a", "ok", "default"), ("f", "ok", "default")]
    assert (await flows.read(run["id"]))["result"] == run["result"]


@pytest.mark.contract("S4-9")
async def test_a_result_that_is_gone_before_it_is_gathered_is_a_failed_call(flows: FlowApp) -> None:
    await flows.serve()
    node = {**FAN, "service": "held", "max_parallel": 1, "failure_strategy": "collect_errors"}
    run = await flows.start(chain(("f", node)), params={"items": [1, 2]})
    await flows.until(run, lambda run: flows.held)
    await flows.release(flows.held[0], "one")
    await flows.until(run, lambda run: len(flows.seen) == 2 and flows.held)
    store, now = flows.app.onward.backend.tasks, flows.app.clock.now()
    assert await store.purge([f"{run}-0"], now=now) == 1
    await flows.release(flows.held[0], "two")
    assert (await flows.ended(run))["result"] == {
        "out": [{"error": {"kind": "Missing", "message": "its record is gone"}}, "two"]
    }


@pytest.mark.contract("S4-3")
async def test_many_runs_are_listed_and_found_by_word(flows: FlowApp) -> None:
    flow = await flows.publish(chain(("t", {"kind": "timer", "params": {"delay_ms": 0}})))
    waiting = await flows.publish(chain(("w", {"kind": "wait_event"})), "waiting")
    oldest = await flows.begin(waiting)
    runs = [await flows.begin(flow) for _ in range(150)]
    for run in runs:
        await flows.ended(run)
    assert len((await flows.app.get("/tasks")).json()) == 100
    assert len((await flows.app.get("/tasks?limit=1000")).json()) == 151
    (row,) = (await flows.app.get("/tasks?status=running")).json()
    assert row["id"] == oldest
    (found,) = (await flows.app.get(f"/api/v2/runs?state={State.WAITING}")).json()["items"]
    assert found["id"] == oldest


@pytest.mark.contract("S4-9", "S4-11")
@pytest.mark.parametrize("remembered", [True, False])
async def test_large_values_pass_through_every_step(
    any_flows: FlowApp, monkeypatch: pytest.MonkeyPatch, remembered: bool
) -> None:
    if not remembered:
        monkeypatch.setattr(executor, "MOST_TEXT", 1)
    flows = any_flows
    await flows.serve()
    items = [str(n) * 1_000 for n in range(9)]
    inner = chain(("u", call("upper", "word", "word")))
    definition = chain(
        ("f", {**FAN, "service": "echo", "prep": {"input_key": "items"}, "max_parallel": 2}),
        ("w", {"kind": "wait_event", "params": {"signal_key": "go"}}),
        (
            "s",
            {
                "kind": "subflow",
                "subflow": inner,
                "prep": {"input_map": {"word": "go"}},
                "post": {"output_key": "inner"},
            },
        ),
    )
    run = await flows.start(definition, shared={"items": items})
    await flows.until(run, lambda run: run["current_node"] == "w")
    await flows.until(run)
    (task,) = await flows.app.onward.backend.tasks.get([run])
    assert task is not None
    assert task.bulk is not None
    assert (await flows.read(run))["shared"]["out"] == items
    assert (await flows.signal(run, key="go", value="y" * 9_000)).status_code == 200
    assert (await flows.ended(run))["result"] == {
        "items": items, "out": items, "go": "y" * 9_000, "inner": {"word": "Y" * 9_000}
    }  # fmt: skip
    (task,) = await flows.app.onward.backend.tasks.get([run])
    assert task is not None
    assert task.bulk is None
