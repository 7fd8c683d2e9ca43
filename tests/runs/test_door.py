"""The flow centre's own endpoints, answer by answer, key by key."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from onward.doors.vocabulary import FLOWS
from tests.runs.centre import Centre, call, chain

ONE = chain(("a", call("upper", "$params.text", "out")))
WAIT = chain(("w", {"kind": "wait_event", "params": {"signal_key": "$shared.go"}}))
BODIES: list[Any] = [None, 1, "text", [], {"name": 5}, {"name": ""}, {"name": "   "}, {}]


@pytest.mark.contract("S4-1", "R-6")
async def test_a_flow_is_made_once_for_each_name(centre: Centre) -> None:
    made = await centre.house.post("/flows", {"name": "orders"})
    assert made.status_code == 200
    flow = made.json()["id"]
    assert made.json() == {"id": flow, "name": "orders"}
    assert list(made.json()) == ["id", "name"]
    assert (await centre.house.post("/flows", {"name": "orders"})).json() == made.json()
    assert (await centre.house.post("/flows", {"name": "bills"})).json()["id"] != flow


@pytest.mark.contract("S4-1", "R-6")
@pytest.mark.parametrize("body", [*BODIES, {"name": "x" * 201}])
async def test_a_flow_without_a_good_name_is_refused(centre: Centre, body: Any) -> None:
    response = await centre.house.post("/flows", body)
    assert response.status_code == 400
    assert list(response.json()) == ["error"]


@pytest.mark.contract("S4-1", "R-6")
async def test_versions_are_counted_and_published(centre: Centre) -> None:
    flow = (await centre.house.post("/flows", {"name": "orders"})).json()["id"]
    first = await centre.house.post("/flows/version", {"flow_id": flow, "definition": ONE})
    assert first.status_code == 200
    assert first.json() == {
        "id": f"{flow}-v1", "flow_id": flow, "version": 1, "status": "published",
    }  # fmt: skip
    assert list(first.json()) == ["id", "flow_id", "version", "status"]
    as_text = {"flow_id": flow, "definition_json": json.dumps(WAIT)}
    assert (await centre.house.post("/flows/version", as_text)).json()["version"] == 2
    # A client that encodes its whole record sends the other field empty.
    for body in (
        {"flow_id": flow, "definition": ONE, "definition_json": ""},
        {"flow_id": flow, "definition": None, "definition_json": json.dumps(ONE)},
        {"flow_id": "orders", "definition_json": ONE},
    ):
        assert (await centre.house.post("/flows/version", body)).status_code == 200
    again = (await centre.house.get(f"/api/v2/flows/{flow}/versions/1")).json()
    assert again["definition"] == ONE, "a version never changes"


@pytest.mark.contract("S4-1")
async def test_versions_published_at_the_same_moment_all_count(centre: Centre) -> None:
    flow = await centre.publish(ONE)
    body = {"flow_id": flow, "definition": ONE}
    answers = await asyncio.gather(*[centre.house.post("/flows/version", body) for _ in range(8)])
    numbers = sorted(answer.json()["version"] for answer in answers)
    assert numbers == list(range(2, 10))
    assert (await centre.house.get(f"/api/v2/flows/{flow}")).json()["version"] == 9


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
    centre: Centre, definition: Any, said: list[str]
) -> None:
    flow = await centre.publish(ONE)
    response = await centre.house.post(
        "/flows/version", {"flow_id": flow, "definition": definition}
    )
    assert response.status_code == 400
    assert list(response.json()) == ["error"]
    for word in said:
        assert word in response.json()["error"]
    assert (await centre.house.get(f"/api/v2/flows/{flow}")).json()["version"] == 1


@pytest.mark.contract("S4-1", "R-6")
async def test_a_version_of_no_flow_is_404(centre: Centre) -> None:
    response = await centre.house.post("/flows/version", {"flow_id": "none", "definition": ONE})
    assert (response.status_code, response.json()) == (404, {"error": "no flow 'none'"})


@pytest.mark.contract("S4-2", "S4-3", "R-6")
async def test_a_run_from_beginning_to_end_column_by_column(centre: Centre) -> None:
    flow = await centre.publish(ONE)
    started = await centre.house.post(
        "/tasks",
        {"flow_id": flow, "params": {"text": "hi"}, "shared": {"n": 1}, "request_id": "r-1"},
    )
    assert started.status_code == 200
    run = started.json()["id"]
    assert started.json() == {"id": run, "status": "pending"}
    await centre.until(run)
    began = centre.house.clock.now()
    centre.house.clock.advance(5)
    worker = await centre.serve()
    await centre.ended(run)
    now = centre.house.clock.now()
    row = await centre.row(run)
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
    (node_run,) = await centre.node_runs(run)
    assert node_run == {
        "id": f"{run}-0:1",
        "task_id": run,
        "node_key": "a",
        "attempt_no": 1,
        "status": "ok",
        "prep_json": '"hi"',
        "exec_input_json": '"hi"',
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
async def test_a_flow_may_be_named_and_runs_its_newest_version(centre: Centre) -> None:
    await centre.serve()
    flow = await centre.publish(chain(("a", call("add", "$params.n", "out"))), "sums")
    old = await centre.begin(flow, params={"n": 1})
    await centre.publish(chain(("a", call("add", "$params.n", "out", params={"by": 5}))), "sums")
    response = await centre.house.post("/tasks", {"flow": "sums", "params": {"n": 1}})
    new = response.json()["id"]
    for run, version, out in ((old, 1, 2), (new, 2, 6)):
        await centre.ended(run)
        assert (await centre.row(run))["flow_version_id"] == f"{flow}-v{version}"
        assert await centre.shared(run) == {"out": out}


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
async def test_a_run_that_cannot_be_started(centre: Centre, body: Any, status: int) -> None:
    await centre.publish(ONE)
    await centre.house.post("/flows", {"name": "bare"})
    response = await centre.house.post("/tasks", body)
    assert response.status_code == status
    assert list(response.json()) == ["error"]
    assert (await centre.house.get("/tasks")).json() == []


@pytest.mark.contract("S4-2")
async def test_what_a_whole_record_leaves_empty_is_not_set(centre: Centre) -> None:
    await centre.publish(WAIT)
    body = {"flow_id": "", "flow": "f", "params": None, "shared": None, "request_id": ""}
    first, second = [(await centre.house.post("/tasks", body)).json()["id"] for _ in range(2)]
    assert first != second, "no request_id is not a request_id"
    row = await centre.row(first)
    assert (row["params_json"], row["request_id"]) == ("{}", "")
    assert await centre.shared(first) == {}


@pytest.mark.contract("S4-2")
async def test_a_request_id_is_one_run_however_often_it_is_sent(centre: Centre) -> None:
    flow = await centre.publish(WAIT)
    body = {"flow_id": flow, "request_id": "r-1"}
    answers = await asyncio.gather(*[centre.house.post("/tasks", body) for _ in range(10)])
    assert {answer.status_code for answer in answers} == {200}
    (run,) = {answer.json()["id"] for answer in answers}
    other = await centre.house.post("/tasks", {**body, "params": {"else": 1}})
    assert other.json() == {"id": run, "status": "pending"}
    native = await centre.house.post("/api/v2/runs", {"flow": flow, "request_id": "r-1"})
    assert native.json()["id"] == run
    assert [row["id"] for row in (await centre.house.get("/tasks")).json()] == [run]
    assert await centre.begin(flow, request_id="r-2") != run


@pytest.mark.contract("S4-3", "R-6")
async def test_runs_are_listed_by_every_status_word(centre: Centre) -> None:
    await centre.serve()
    flow = await centre.publish(WAIT)
    undo = chain(
        ("a", call("echo", compensate={"service": "held"})),
        ("w", {"kind": "wait_event"}),
        ("z", call("broken")),
    )
    runs = {
        "running": await centre.begin(flow),
        "completed": await centre.begin(flow, shared={"go": True}),
        "canceled": await centre.begin(flow),
        "failed": await centre.start(chain(("a", call("broken")))),
        "canceling": await centre.start(undo),
    }
    for word, run in runs.items():
        await (centre.ended if word in ("completed", "failed") else centre.until)(run)
    await centre.cancel(runs["canceled"])
    await centre.ended(runs["canceled"])
    await centre.until(runs["canceling"], lambda run: run["current_node"] == "w")
    assert await centre.cancel(runs["canceling"]) == "canceling"
    for word, run in runs.items():
        listed = (await centre.house.get(f"/tasks?status={word}")).json()
        assert [row["id"] for row in listed] == [run], word
        assert listed == [await centre.row(run)]
        assert listed[0]["status"] == word
    assert (await centre.house.get("/tasks?status=pending")).json() == []
    assert {*runs, "pending"} == set(FLOWS.values()), "a word that nobody asks for"
    every = [row["id"] for row in (await centre.house.get("/tasks")).json()]
    assert every == list(reversed(runs.values())), "newest first"
    assert (await centre.house.get("/tasks?status=")).json() == [
        await centre.row(run) for run in every
    ]
    assert len((await centre.house.get("/tasks?limit=2")).json()) == 2


@pytest.mark.contract("S4-3", "S4-2")
async def test_a_run_that_nobody_has_begun_is_pending_at_its_first_node(centre: Centre) -> None:
    flow = await centre.publish(ONE)
    await centre.house.onward._flow_runner.drain(0)  # this server takes no more runs
    run = await centre.begin(flow, shared={"n": 1})
    (row,) = (await centre.house.get("/tasks?status=pending")).json()
    assert (row["id"], row["current_node_key"], row["step_count"]) == (run, "a", 0)
    assert (row["shared_json"], row["last_action"]) == ('{"n":1}', "")
    assert await centre.node_runs(run) == []
    assert await centre.cancel(run) == "canceled"
    (record,) = await centre.node_runs(run)
    now = centre.house.clock.now()
    assert (record["node_key"], record["status"]) == ("a", "canceled")
    assert (record["started_at"], record["finished_at"]) == (now, now)


@pytest.mark.contract("S4-3", "R-6")
@pytest.mark.parametrize("query", ["status=done", "status=Running", "status=waiting"])
async def test_an_unknown_status_is_400(centre: Centre, query: str) -> None:
    response = await centre.house.get(f"/tasks?{query}")
    assert response.status_code == 400
    assert list(response.json()) == ["error"]
    for limit in ("0", "1001", "many"):
        assert (await centre.house.get(f"/tasks?limit={limit}")).status_code == 422


@pytest.mark.contract("S4-3", "R-6")
@pytest.mark.parametrize("id", ["none", "", "%00", "x" * 3000])
async def test_an_unknown_run_is_404_with_an_error(centre: Centre, id: str) -> None:
    for response in (
        await centre.house.get(f"/tasks/get?id={id}"),
        await centre.house.get(f"/tasks/runs?task_id={id}"),
        await centre.house.post(f"/tasks/cancel?id={id}", None),
    ):
        assert response.status_code == 404
        assert list(response.json()) == ["error"]


@pytest.mark.contract("R-6", "S4-12")
async def test_a_finished_run_is_canceled_without_effect(centre: Centre) -> None:
    await centre.serve()
    done = await centre.run(ONE, params={"text": "x"})
    failed = await centre.run(chain(("a", call("broken"))))
    for run, status in ((done, "completed"), (failed, "failed")):
        before = await centre.row(run["id"])
        response = await centre.house.post(f"/tasks/cancel?id={run['id']}", None)
        assert (response.status_code, response.json()) == (
            200,
            {"id": run["id"], "status": status},
        )
        assert await centre.row(run["id"]) == before


@pytest.mark.contract("R-8")
async def test_each_door_sees_only_what_is_its_own(centre: Centre) -> None:
    await centre.serve()
    run = (await centre.run(ONE, params={"text": "x"}))["id"]
    child = f"{run}-0"
    assert (await centre.house.get(f"/api/v2/tasks/{child}")).status_code == 200
    native = await centre.house.post("/api/v2/tasks", {"type": "echo", "payload": None})
    spoken = await centre.house.post("/api/openai", {"messages": [], "async": True})
    summary = await centre.house.post("/api/v1/tasks/summarize/", {"content": "x"})
    foreign = [
        child, native.json()["id"], spoken.json()["taskId"], summary.json()["task_id"],
    ]  # fmt: skip
    for task in foreign:
        assert (await centre.house.get(f"/tasks/get?id={task}")).status_code == 404
        assert (await centre.house.get(f"/tasks/runs?task_id={task}")).status_code == 404
        assert (await centre.house.post(f"/tasks/cancel?id={task}", None)).status_code == 404
        assert (await centre.house.get(f"/api/v2/runs/{task}")).status_code == 404
    assert [row["id"] for row in (await centre.house.get("/tasks")).json()] == [run]
    for task in (run, child):
        assert (await centre.house.get(f"/api/v1/tasks/{task}")).status_code == 404
        assert (await centre.house.get(f"/api/task/{task}")).status_code == 404
    listed = [task["task_id"] for task in (await centre.house.get("/api/v1/tasks")).json()]
    assert run not in listed
    assert child not in listed
