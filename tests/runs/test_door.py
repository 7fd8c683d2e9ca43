"""The flow centre's own endpoints, answer by answer, key by key."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from onward.doors.vocabulary import FLOWS
from tests.runs.flow_app import FlowApp, call, chain
from tests.support import wait_until

ONE = chain(("a", call("upper", "$params.text", "out")))
WAIT = chain(("w", {"kind": "wait_event", "params": {"signal_key": "$shared.go"}}))
BODIES: list[Any] = [None, 1, "text", [], {"name": 5}, {"name": ""}, {"name": "   "}, {}]


@pytest.mark.contract("S4-1", "R-6")
async def test_a_flow_is_made_once_for_each_name(flows: FlowApp) -> None:
    made = await flows.app.post("/flows", {"name": "orders"})
    assert made.status_code == 200
    flow = made.json()["id"]
    assert made.json() == {"id": flow, "name": "orders"}
    assert list(made.json()) == ["id", "name"]
    assert (await flows.app.post("/flows", {"name": "orders"})).json() == made.json()
    assert (await flows.app.post("/flows", {"name": "bills"})).json()["id"] != flow


@pytest.mark.contract("S4-1", "R-6")
@pytest.mark.parametrize("body", [*BODIES, {"name": "x" * 201}])
async def test_a_flow_without_a_good_name_is_refused(flows: FlowApp, body: Any) -> None:
    response = await flows.app.post("/flows", body)
    assert response.status_code == 400
    assert list(response.json()) == ["error"]


@pytest.mark.contract("S4-1", "R-6")
async def test_versions_are_counted_and_published(flows: FlowApp) -> None:
    flow = (await flows.app.post("/flows", {"name": "orders"})).json()["id"]
    first = await flows.app.post("/flows/version", {"flow_id": flow, "definition": ONE})
    assert first.status_code == 200
    assert first.json() == {
        "id": f"{flow}-v1", "flow_id": flow, "version": 1, "status": "published",
    }  # fmt: skip
    assert list(first.json()) == ["id", "flow_id", "version", "status"]
    as_text = {"flow_id": flow, "definition_json": json.dumps(WAIT)}
    assert (await flows.app.post("/flows/version", as_text)).json()["version"] == 2
    # A client that encodes its whole record sends the other field empty.
    for body in (
        {"flow_id": flow, "definition": ONE, "definition_json": ""},
        {"flow_id": flow, "definition": None, "definition_json": json.dumps(ONE)},
        {"flow_id": "orders", "definition_json": ONE},
    ):
        assert (await flows.app.post("/flows/version", body)).status_code == 200
    again = (await flows.app.get(f"/api/v2/flows/{flow}/versions/1")).json()
    assert again["definition"] == ONE, "a version never changes"


@pytest.mark.contract("S4-1")
async def test_versions_published_at_the_same_moment_all_count(flows: FlowApp) -> None:
    flow = await flows.publish(ONE)
    body = {"flow_id": flow, "definition": ONE}
    answers = await asyncio.gather(*[flows.app.post("/flows/version", body) for _ in range(8)])
    numbers = sorted(answer.json()["version"] for answer in answers)
    assert numbers == list(range(2, 10))
    assert (await flows.app.get(f"/api/v2/flows/{flow}")).json()["version"] == 9


@pytest.mark.contract("S4-1")
@pytest.mark.parametrize(
    ("definition", "said"),
    [
        ({"start": "a", "nodes": {"a": {"kind": "wizard"}}}, ["'a'", "wizard"]),
        ({"start": "a", "nodes": {"a": {"kind": "executor"}}}, ["'a'", "service is missing"]),
        ({"start": "z", "nodes": {"a": call("x")}}, ["start", "'z'"]),
        ({**ONE, "edges": [{"from": "a", "to": "b"}]}, ["edges[0].to", "'b'"]),
        (chain(("a", call("x", "$shared._rt.x"))), ["'a'", "_rt"]),
        (chain(("a", call("x", output="_rt"))), ["'a'", "_rt"]),
        (chain(("a", call("x", output="_rt.ap:pay"))), ["'a'", "_rt"]),
        ([], ["definition is missing"]),
        ([1], ["object"]),
        (7, ["object"]),
        ("{", ["definition_json"]),
        (None, ["definition is missing"]),
    ],
)
async def test_a_bad_definition_is_refused_by_node_and_fault(
    flows: FlowApp, definition: Any, said: list[str]
) -> None:
    flow = await flows.publish(ONE)
    response = await flows.app.post("/flows/version", {"flow_id": flow, "definition": definition})
    assert response.status_code == 400
    assert list(response.json()) == ["error"]
    for word in said:
        assert word in response.json()["error"]
    assert (await flows.app.get(f"/api/v2/flows/{flow}")).json()["version"] == 1


@pytest.mark.contract("S4-1", "R-6")
async def test_a_version_of_no_flow_is_404(flows: FlowApp) -> None:
    response = await flows.app.post("/flows/version", {"flow_id": "none", "definition": ONE})
    assert (response.status_code, response.json()) == (404, {"error": "no flow 'none'"})


@pytest.mark.contract("S4-2", "S4-3", "R-6")
async def test_a_run_from_beginning_to_end_column_by_column(flows: FlowApp) -> None:
    flow = await flows.publish(ONE)
    started = await flows.app.post(
        "/tasks",
        {"flow_id": flow, "params": {"text": "hi"}, "shared": {"n": 1}, "request_id": "r-1"},
    )
    assert started.status_code == 200
    run = started.json()["id"]
    assert started.json() == {"id": run, "status": "pending"}
    await flows.until(run)
    began = flows.app.clock.now()
    flows.app.clock.advance(5)
    worker = await flows.serve()
    await flows.ended(run)
    now = flows.app.clock.now()
    row = await flows.row(run)
    assert row == {
        "id": run,
        "flow_version_id": f"{flow}-v1",
        "status": "completed",
        "params_json": '{"text":"hi"}',
        "shared_json": '{"n":1,"out":"HI"}',
        "current_node_key": "a",
        "last_action": "default",
        "step_count": 1,
        "retry_state_json": "{}",
        "lease_owner": "",
        "lease_expiry": None,
        "request_id": "r-1",
        "created_at": began,
        "updated_at": now,
        "error_text": "",
    }
    assert list(row) == [
        "id", "flow_version_id", "status", "params_json", "shared_json", "current_node_key",
        "last_action", "step_count", "retry_state_json", "lease_owner", "lease_expiry",
        "request_id", "created_at", "updated_at", "error_text",
    ]  # fmt: skip
    (node_run,) = await flows.node_runs(run)
    assert node_run == {
        "id": f"{run}-0:1",
        "task_id": run,
        "node_key": "a",
        "attempt_no": 1,
        "status": "ok",
        "prep_json": '"hi"',
        "exec_input_json": '{"input":"hi","params":{"text":"hi"}}',
        "exec_output_json": '"HI"',
        "error_text": "",
        "action": "default",
        "started_at": now,
        "finished_at": now,
        "worker_id": worker.id,
        "worker_url": "",
    }
    assert list(node_run) == [
        "id", "task_id", "node_key", "attempt_no", "status", "prep_json", "exec_input_json",
        "exec_output_json", "error_text", "action", "started_at", "finished_at", "worker_id",
        "worker_url",
    ]  # fmt: skip


@pytest.mark.contract("S4-2")
async def test_a_flow_may_be_named_and_runs_its_newest_version(flows: FlowApp) -> None:
    await flows.serve()
    flow = await flows.publish(chain(("a", call("add", "$params.n", "out"))), "sums")
    old = await flows.begin(flow, params={"n": 1})
    await flows.publish(chain(("a", call("add", "$params.n", "out", params={"by": 5}))), "sums")
    response = await flows.app.post("/tasks", {"flow": "sums", "params": {"n": 1}})
    new = response.json()["id"]
    for run, version, out in ((old, 1, 2), (new, 2, 6)):
        await flows.ended(run)
        assert (await flows.row(run))["flow_version_id"] == f"{flow}-v{version}"
        assert await flows.shared(run) == {"out": out}


@pytest.mark.contract("S4-2", "R-6")
@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"flow_id": "none"}, 404),
        ({"flow": "none"}, 404),
        ({"flow": "bare"}, 404),
        ({}, 400),
        ({"flow_id": "", "flow": ""}, 400),
        ({"flow": "f", "params": []}, 400),
        ({"flow": "f", "params": "x"}, 400),
        ({"flow": "f", "shared": 1}, 400),
        ({"flow": "f", "shared": {"_rt": {}}}, 400),
        ({"flow": "f", "shared": {"_rt.ap:pay": {"decision": "approved"}}}, 400),
        ({"flow": "f", "request_id": 7}, 400),
        ({"flow": "f", "request_id": "x" * 256}, 400),
        ([], 400),
    ],
)
async def test_a_run_that_cannot_be_started(flows: FlowApp, body: Any, status: int) -> None:
    await flows.publish(ONE)
    await flows.app.post("/flows", {"name": "bare"})
    response = await flows.app.post("/tasks", body)
    assert response.status_code == status
    assert list(response.json()) == ["error"]
    assert (await flows.app.get("/tasks")).json() == []


@pytest.mark.contract("S4-2")
async def test_what_a_whole_record_leaves_empty_is_not_set(flows: FlowApp) -> None:
    await flows.publish(WAIT)
    body = {"flow_id": "", "flow": "f", "params": None, "shared": None, "request_id": ""}
    first, second = [(await flows.app.post("/tasks", body)).json()["id"] for _ in range(2)]
    assert first != second, "no request_id is not a request_id"
    row = await flows.row(first)
    assert (row["params_json"], row["request_id"]) == ("{}", "")
    assert await flows.shared(first) == {}


@pytest.mark.contract("S4-2")
async def test_a_request_id_is_one_run_however_often_it_is_sent(flows: FlowApp) -> None:
    flow = await flows.publish(WAIT)
    body = {"flow_id": flow, "request_id": "r-1"}
    answers = await asyncio.gather(*[flows.app.post("/tasks", body) for _ in range(10)])
    assert {answer.status_code for answer in answers} == {200}
    (run,) = {answer.json()["id"] for answer in answers}
    other = await flows.app.post("/tasks", {**body, "params": {"else": 1}})
    assert other.json() == {"id": run, "status": "pending"}
    native = await flows.app.post("/api/v2/runs", {"flow": flow, "request_id": "r-1"})
    assert native.json()["id"] == run
    assert [row["id"] for row in (await flows.app.get("/tasks")).json()] == [run]
    assert await flows.begin(flow, request_id="r-2") != run


@pytest.mark.contract("S4-3", "R-6")
async def test_runs_are_listed_by_every_status_word(flows: FlowApp) -> None:
    await flows.serve()
    flow = await flows.publish(WAIT)
    undo = chain(
        ("a", call("echo", compensate={"service": "held"})),
        ("w", {"kind": "wait_event"}),
        ("z", call("broken")),
    )
    runs = {
        "running": await flows.begin(flow),
        "completed": await flows.begin(flow, shared={"go": True}),
        "canceled": await flows.begin(flow),
        "failed": await flows.start(chain(("a", call("broken")))),
        "canceling": await flows.start(undo),
    }
    for word, run in runs.items():
        await (flows.ended if word in ("completed", "failed") else flows.until)(run)
    await flows.cancel(runs["canceled"])
    await flows.ended(runs["canceled"])
    await flows.until(runs["canceling"], lambda run: run["current_node"] == "w")
    assert await flows.cancel(runs["canceling"]) == "canceling"
    for word, run in runs.items():
        listed = (await flows.app.get(f"/tasks?status={word}")).json()
        assert [row["id"] for row in listed] == [run], word
        assert listed == [await flows.row(run)]
        assert listed[0]["status"] == word
    assert (await flows.app.get("/tasks?status=pending")).json() == []
    assert {*runs, "pending"} == set(FLOWS.values()), "a word that nobody asks for"
    every = [row["id"] for row in (await flows.app.get("/tasks")).json()]
    assert every == list(reversed(runs.values())), "newest first"
    assert (await flows.app.get("/tasks?status=")).json() == [await flows.row(run) for run in every]
    assert len((await flows.app.get("/tasks?limit=2")).json()) == 2


@pytest.mark.contract("S4-3", "S4-2")
async def test_an_unbegun_run_is_pending_at_its_first_node(flows: FlowApp) -> None:
    flow = await flows.publish(ONE)
    await flows.app.onward._flow_runner.drain(0)  # this server takes no more runs
    run = await flows.begin(flow, shared={"n": 1})
    (row,) = (await flows.app.get("/tasks?status=pending")).json()
    assert (row["id"], row["current_node_key"], row["step_count"]) == (run, "a", 0)
    assert (row["shared_json"], row["last_action"]) == ('{"n":1}', "")
    assert await flows.node_runs(run) == []
    assert await flows.cancel(run) == "canceled"
    (record,) = await flows.node_runs(run)
    now = flows.app.clock.now()
    assert (record["node_key"], record["status"]) == ("a", "canceled")
    assert (record["started_at"], record["finished_at"]) == (now, now)


@pytest.mark.contract("S4-3", "R-6")
@pytest.mark.parametrize("query", ["status=done", "status=Running", "status=waiting"])
async def test_an_unknown_status_is_400(flows: FlowApp, query: str) -> None:
    response = await flows.app.get(f"/tasks?{query}")
    assert response.status_code == 400
    assert list(response.json()) == ["error"]
    for limit in ("0", "1001", "many"):
        assert (await flows.app.get(f"/tasks?limit={limit}")).status_code == 422


@pytest.mark.contract("S4-3", "R-6")
@pytest.mark.parametrize("id", ["none", "", "%00", "x" * 3000])
async def test_an_unknown_run_is_404_with_an_error(flows: FlowApp, id: str) -> None:
    for response in (
        await flows.app.get(f"/tasks/get?id={id}"),
        await flows.app.get(f"/tasks/runs?task_id={id}"),
        await flows.app.post(f"/tasks/cancel?id={id}", None),
    ):
        assert response.status_code == 404
        assert list(response.json()) == ["error"]


@pytest.mark.contract("R-6", "S4-12")
async def test_a_finished_run_is_canceled_without_effect(flows: FlowApp) -> None:
    await flows.serve()
    done = await flows.run(ONE, params={"text": "x"})
    failed = await flows.run(chain(("a", call("broken"))))
    for run, status in ((done, "completed"), (failed, "failed")):
        before = await flows.row(run["id"])
        response = await flows.app.post(f"/tasks/cancel?id={run['id']}", None)
        assert (response.status_code, response.json()) == (200, {"id": run["id"], "status": status})
        assert await flows.row(run["id"]) == before


@pytest.mark.contract("R-8")
async def test_each_door_sees_only_what_is_its_own(flows: FlowApp) -> None:
    await flows.serve()
    run = (await flows.run(ONE, params={"text": "x"}))["id"]
    child = f"{run}-0"
    assert (await flows.app.get(f"/api/v2/tasks/{child}")).status_code == 200
    native = await flows.app.post("/api/v2/tasks", {"type": "echo", "payload": None})
    spoken = await flows.app.post("/api/openai", {"messages": [], "async": True})
    summary = await flows.app.post("/api/v1/tasks/summarize/", {"content": "x"})
    foreign = [
        child, native.json()["id"], spoken.json()["taskId"], summary.json()["task_id"],
    ]  # fmt: skip
    for task in foreign:
        assert (await flows.app.get(f"/tasks/get?id={task}")).status_code == 404
        assert (await flows.app.get(f"/tasks/runs?task_id={task}")).status_code == 404
        assert (await flows.app.post(f"/tasks/cancel?id={task}", None)).status_code == 404
        assert (await flows.app.get(f"/api/v2/runs/{task}")).status_code == 404
    assert [row["id"] for row in (await flows.app.get("/tasks")).json()] == [run]
    for task in (run, child):
        assert (await flows.app.get(f"/api/v1/tasks/{task}")).status_code == 404
        assert (await flows.app.get(f"/api/task/{task}")).status_code == 404
    listed = [task["task_id"] for task in (await flows.app.get("/api/v1/tasks")).json()]
    assert run not in listed
    assert child not in listed


@pytest.mark.contract("S4-3", "S4-6")
async def test_a_call_that_is_tried_again_stands_in_retry_state_json(flows: FlowApp) -> None:
    await flows.serve()
    node = call("odd", "$params.n", "out", max_retries=2, wait_ms=60_000)
    run = await flows.start(chain(("a", node)), params={"n": 1})

    async def failed() -> dict[str, Any] | None:
        row = (await flows.app.get(f"/tasks/get?id={run}")).json()
        assert row in (await flows.app.get("/tasks")).json()
        state: dict[str, Any] = json.loads(row["retry_state_json"])
        return state or None

    assert await wait_until(failed) == {
        "task_id": f"{run}-0",
        "attempt_no": 1,
        "failures": 1,
        "max_retries": 2,
        "last_error": "1 is odd",
        "next_at": flows.app.clock.now() + 60_000,
    }
