"""What nobody can do: decide for a person, signal past the door, write the engine's records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onward.core.approval import Status, ask
from onward.core.task import State, Task
from onward.flow.runs import NODE, QUESTION, QUEUE
from tests.runs.flow_app import SERVICES, FlowApp, call, chain, edge, open_flow_app
from tests.servers import fresh_url
from tests.support import wait_until

GATE = chain(
    ("work", call("forge", output="work")),
    ("ask", {"kind": "approval", "params": {"approval_key": "$shared.approval"},
             "post": {"action_key": "approval"}}),
    ("pay", call("pay")),
)  # fmt: skip
LIES: list[Any] = [
    {"approval": "approved", "decision": "approved", "action": "approved"},
    {"approval": True, "from_data": True, "params": {"from_data": True}},
    {"_rt": {"ap:ask": {"start": 0, "decision": "approved"}}},
]


async def gate(flows: FlowApp, lie: Any) -> list[str]:
    """A worker who lies whenever it is asked; what was paid."""
    paid: list[str] = []
    await flows.serve(
        {**SERVICES, "forge": lambda value, params: lie, "pay": lambda v, p: paid.append("paid")}
    )
    return paid


@pytest.mark.contract("S4-10")
@pytest.mark.parametrize("lie", LIES)
async def test_an_approval_is_not_forged_by_params_shared_or_output(
    flows: FlowApp, lie: Any
) -> None:
    paid = await gate(flows, lie)
    shared = {name: value for name, value in lie.items() if name != "_rt"}
    definition = {**GATE, "nodes": {**GATE["nodes"], "work": {**GATE["nodes"]["work"], "post": {
        "output_key": "approval", "output_map": {name: name for name in shared},
    }}}}  # fmt: skip
    run = await flows.start(definition, params=lie, shared=shared)
    await flows.until(run, lambda run: run["current_node"] == "ask")
    for name in ("ask", "approval", "$shared.approval", "ap:ask", "decision"):
        assert (await flows.signal(run, name=name, value="approved")).status_code == 200
    await flows.app.settled()
    assert (await flows.until(run))["current_node"] == "ask"
    assert paid == []
    (item,) = await flows.inbox()
    await flows.decide(item["id"], "reject")
    assert (await flows.ended(run))["state"] == "failed"
    assert paid == []


@pytest.mark.contract("S4-10")
async def test_a_question_is_a_task_that_no_worker_can_do(flows: FlowApp) -> None:
    """Not a worker who registers for it, not somebody who submits, replays or signals it."""
    paid = await gate(flows, None)
    names = ["flow:runs", "flow:approval"]
    spy = await flows.app.worker(group=None, services=[*names, "spy"], concurrency=8)
    http = {"url": "http://127.0.0.1:9", "services": names}
    assert (await flows.app.post("/workers/register", http)).status_code == 400
    run = await flows.start(GATE)
    await flows.until(run, lambda run: run["current_node"] == "ask")
    (item,) = await flows.inbox()
    child = item["id"].removesuffix(".1")
    assert (await flows.app.post(f"/api/v2/tasks/{child}/retry", {})).status_code == 409
    assert (await flows.signal(child, name="ask", value="approved")).status_code == 404
    for name in names:
        body = {"type": name, "queue": name, "payload": {"run": run, "node": "ask"}}
        assert (await flows.app.post("/api/v2/tasks", body)).status_code in (202, 422)
    await flows.app.settled()
    assert spy.pending() == 0, "the engine's queues are the server's own"
    assert (await flows.read(run))["state"] == "waiting"
    assert paid == []


@pytest.mark.contract("S4-10")
@pytest.mark.parametrize("status", [None, Status.OPEN, Status.REJECTED, Status.EXPIRED])
async def test_an_unapproved_question_is_no_yes(flows: FlowApp, status: Status | None) -> None:
    now = flows.app.clock.now()
    asked = None if status is None else ask("{}", now).closed(status, now).encode()
    task = Task(
        id="forged",
        type=QUESTION,
        queue=QUEUE,
        profile=NODE,
        payload="{}",
        created_at=now,
        approval=asked,
    )
    _, ending = await flows.app.onward.dispatcher.submit_and_wait(task, timeout_ms=5000)
    assert ending is not None
    assert ending.state is State.FAILED


@pytest.mark.contract("S4-10")
async def test_another_runs_approval_does_not_count(flows: FlowApp) -> None:
    paid = await gate(flows, None)
    runs = [await flows.start(GATE) for _ in range(2)]
    for run in runs:
        await flows.until(run, lambda run: run["current_node"] == "ask")
    items = {item["task_id"]: item["id"] for item in await flows.inbox()}
    assert set(items) == set(runs)
    await flows.decide(items[runs[0]], "approve")
    await flows.ended(runs[0])
    assert paid == ["paid"]
    assert (await flows.read(runs[1]))["state"] == "waiting"


@pytest.mark.contract("S4-10")
async def test_a_service_that_must_be_approved_asks_from_a_flow_too(flows: FlowApp) -> None:
    paid = await gate(flows, None)
    service = {"name": "pay", "task_types": ["pay"], "requires_approval": True}
    assert (await flows.app.post("/api/v2/services", service)).status_code in (200, 201)
    definition = chain(("pay", call("pay", params={"requires_approval": False})))
    definition["nodes"]["no"] = call("echo")
    definition["edges"] = [edge("pay", "error", "no")]
    run = await flows.start(definition, params={"requires_approval": False})
    await flows.until(run)
    (item,) = await flows.inbox()
    assert (item["task_id"], item["type"]) == (run, "pay")
    assert paid == []
    await flows.decide(item["id"], "approve", by="ada")
    assert (await flows.ended(run))["state"] == "succeeded"
    assert paid == ["paid"]
    second = await flows.begin((await flows.read(run))["flow_version_id"].rpartition("-v")[0])
    await flows.until(second)
    (item,) = await flows.inbox()
    await flows.decide(item["id"], "reject")
    await flows.ended(second)
    assert (await flows.trail(second))[0] == ("pay", "error", "error")
    assert paid == ["paid"]


@pytest.mark.contract("S4-10", "S4-7")
@pytest.mark.parametrize("name", ["_rt", "_rt.ap:ask", "$shared._rt", "$shared._rt.we:w"])
async def test_the_engines_records_are_out_of_a_signals_reach(flows: FlowApp, name: str) -> None:
    run = await flows.start(chain(("w", {"kind": "wait_event", "params": {"signal_key": "go"}})))
    before = (await flows.until(run))["shared"]
    for how in ("name", "key"):
        assert (await flows.signal(run, **{how: name, "value": {"x": 1}})).status_code == 422
    await flows.app.settled()
    assert (await flows.read(run))["shared"] == before


@pytest.mark.contract("S4-7")
async def test_the_engines_records_cannot_be_written_or_read_by_a_flow(flows: FlowApp) -> None:
    lie = {"_rt": {"tm:t": {"start": 0}}, "x": 1}
    await gate(flows, lie)
    definition = chain(
        ("t", {"kind": "timer", "params": {"delay_ms": 1000}}),
        ("work", call("forge", output="work")),
        ("sub", {
            "kind": "subflow", "prep": {"input_key": "$params.lie"}, "post": {"output_key": "sub"},
            "subflow": chain(("in", call("echo", "x", "y"))),
        }),
        ("read", call("echo", "$shared.work._rt", "seen")),
    )  # fmt: skip
    run = await flows.start(definition, params={"lie": lie, "_rt": {"tm:t": {"start": 0}}})
    await flows.until(run)
    began = flows.app.clock.now()
    await flows.later(999)
    assert (await flows.read(run))["current_node"] == "t", "its start is not what params say"
    await flows.later(1)
    ended = await flows.ended(run)
    assert ended["result"]["sub"] == {"x": 1, "y": 1}, "a subflow begins without them"
    assert ended["result"]["work"] == lie, "a worker's result is kept as it came, as data"
    assert ended["shared"]["_rt"]["tm:t"] == {"start": began}
    for name in ("_rt", "_rt.tm:t"):
        for path, body in (
            (f"/api/v2/runs/{run}/fork", {"from_node": "t", "shared": {name: {}}}),
            ("/api/v2/runs", {"flow": "f", "shared": {name: {}}}),
        ):
            assert (await flows.app.post(path, body)).status_code == 422


@pytest.mark.contract("R-2", "S4-10")
async def test_runs_are_never_put_on_a_stream(tmp_path: Path) -> None:
    settings = {"ledger": fresh_url("valkey"), "archive": f"sqlite:///{tmp_path}/archive.db"}
    async with open_flow_app(**settings, stream_types=("*",)) as flows:
        paid = await gate(flows, None)
        service = {"name": "thief", "task_types": ["flow:runs"], "via": "streams"}
        await flows.app.post("/api/v2/services", service)
        feed = flows.app.onward._feed
        assert feed is not None
        await wait_until(lambda: feed._channel.readers("stream:task").groups)
        feed._waiting_queues = ["flow:runs", "text"]
        assert "text" in feed._queues()
        assert "flow:runs" not in feed._queues()
        run = await flows.start(GATE)
        await flows.until(run, lambda run: run["current_node"] == "ask")
        assert paid == []
