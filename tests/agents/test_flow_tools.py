"""Flows as tools: only those that ask for it, their params checked, their ends notified."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from onward.native.tools.tools import OfferedFlow, tools_of
from onward.services.catalog import Declared
from tests.agents.sessions import Sessions
from tests.running_app import App, running_app

QUARTER = {"type": "string", "enum": ["Q1", "Q2", "Q3", "Q4"], "description": "Which one."}
SCHEMA = {
    "type": "object",
    "properties": {"quarter": QUARTER},
    "required": ["quarter"],
    "additionalProperties": False,
}
TOOL = {"description": "Close the books.\n\nOnce a quarter.", "parameters": SCHEMA}


@pytest.fixture
async def app() -> AsyncIterator[App]:
    async with running_app() as app:
        yield app


async def publish(app: App, name: str, kind: str = "timer", **head: Any) -> None:
    node = {"kind": kind, "params": {"delay_ms": 1} if kind == "timer" else {}}
    definition = {"start": "a", "nodes": {"a": node}, **head}
    response = await app.post("/api/v2/flows", {"name": name, "definition": definition})
    assert response.status_code in (200, 201), response.text
    app.clock.advance(1_000)  # what agents are offered is read once a second


async def tools(app: App, query: str = "") -> dict[str, Any]:
    items = (await app.get(f"/api/v2/tools{query}")).json()["items"]
    return {tool["name"]: tool for tool in items}


async def start(app: App, arguments: Any, name: str = "close_flow_tool") -> Any:
    return await app.post(f"/api/v2/tools/{name}?session_id=ada", arguments)


@pytest.mark.contract("S2-1")
async def test_only_flows_that_ask_for_it_are_tools(app: App) -> None:
    await publish(app, "close", tool=TOOL)
    await publish(app, "plain", tool=True, description="A plain one")
    await publish(app, "hidden")
    await publish(app, "no", tool=False)
    found = await tools(app)
    offered = {tool["flow"]: tool for tool in found.values() if tool["flow"] is not None}
    assert set(offered) == {"close", "plain"}
    close = offered["close"]
    assert close["description"].startswith("Close the books. Once a quarter. Starts the flow close")
    parameters = close["parameters"]["properties"]["parameters"]
    assert parameters["properties"] == {"quarter": QUARTER}
    assert close["parameters"]["required"] == ["parameters", "session_id"]
    assert offered["plain"]["description"].startswith("A plain one. Starts")
    await publish(app, "plain", description="no longer")
    assert "plain_flow_tool" not in await tools(app)


@pytest.mark.contract("S2-1", "S2-6", "S2-11")
async def test_a_run_that_a_tool_started_is_the_sessions_and_its_end_is_told(app: App) -> None:
    await publish(app, "close", tool=TOOL)
    handed = (await start(app, {"parameters": {"quarter": "Q4"}})).json()
    assert handed["acknowledgment_message"].startswith("Your close is under way.")
    run = (await app.get(f"/api/v2/runs/{handed['task_id']}")).json()
    assert (run["session_id"], run["params"]) == ("ada", {"quarter": "Q4"})
    await app.settled()
    await app.advance(10)
    await app.settled()
    sessions = Sessions(app)
    (notice,) = await sessions.told(1, "ada")
    assert (notice["type"], notice["task_id"]) == ("task_completed", handed["task_id"])
    assert notice["message"] == "Your close is ready."
    report = await app.post(
        "/api/v2/tools/get_task_result_tool?session_id=ada", {"task_id": handed["task_id"]}
    )
    assert report.json()["status"] == "completed"
    listed = await app.post("/api/v2/tools/list_user_tasks_tool?session_id=ada", {})
    assert [task["task_id"] for task in listed.json()["tasks"]] == [handed["task_id"]]


@pytest.mark.contract("S2-6", "S2-11")
async def test_a_run_that_fails_is_told_with_its_reason(app: App) -> None:
    definition = {"start": "a", "nodes": {"a": {"kind": "local", "service": "none"}}, "tool": True}
    await app.post("/api/v2/flows", {"name": "close", "definition": definition})
    app.clock.advance(1_000)
    worker = await app.worker(services=["none"])
    handed = (await start(app, {"parameters": {}})).json()
    frame = await worker.task()
    await worker.answer(frame["taskId"], error="no books", errorType="InvalidInput")
    (notice,) = await Sessions(app).told(1, "ada")
    assert (notice["type"], notice["task_id"]) == ("task_failed", handed["task_id"])
    assert notice["message"].startswith("Your close failed: ")
    assert "no books" in notice["message"]


@pytest.mark.contract("S2-9")
@pytest.mark.parametrize(
    ("arguments", "pointer", "words"),
    [
        ({"parameters": {"quarter": "Q5"}}, "/parameters/quarter", "does not fit 'close'"),
        ({"parameters": {}}, "/parameters", "quarter"),
        ({}, "/parameters", "quarter"),
        ({"parameters": "Q4"}, "/parameters", "close"),
        ({"quarter": "Q4"}, "/quarter", "parameters"),
    ],
)
async def test_params_that_do_not_fit_start_no_run(
    app: App, arguments: Any, pointer: str, words: str
) -> None:
    await publish(app, "close", tool=TOOL)
    response = await start(app, arguments)
    problem = response.json()
    assert response.status_code == 422
    assert problem["errors"][0]["pointer"] == pointer
    assert words in problem["detail"]
    assert (await app.get("/api/v2/runs")).json()["items"] == []


async def test_a_call_sent_twice_under_one_key_is_one_run(app: App) -> None:
    await publish(app, "close", tool=TOOL)
    path, body = "/api/v2/tools/close_flow_tool?session_id=ada", {"parameters": {"quarter": "Q1"}}
    key = {"idempotency-key": "k1"}
    first, second = [(await app.post(path, body, headers=key)).json() for _ in range(2)]
    assert first["task_id"] == second["task_id"]


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ({"parameters": {"type": "array"}}, "object"),
        ({"parameters": {"type": "object", "properties": 7}}, "tool.parameters"),
        ({"parametres": {}}, "did you mean 'parameters'"),
        ("yes", "must be an object"),
    ],
)
async def test_a_tool_that_could_not_be_called_is_a_fault_of_the_definition(
    app: App, tool: Any, words: str
) -> None:
    definition = {"start": "a", "nodes": {"a": {"kind": "timer"}}, "tool": tool}
    definition["nodes"]["a"]["params"] = {"delay_ms": 1}
    checked = (await app.post("/api/v2/flows/validate", {"definition": definition})).json()
    assert not checked["valid"]
    assert words in checked["faults"][0]["message"]
    refused = await app.post("/api/v2/flows", {"name": "close", "definition": definition})
    assert refused.status_code == 422


async def test_named_services_leave_flows_out_unless_they_are_named(app: App) -> None:
    await publish(app, "close", tool=TOOL)
    await app.post("/api/v2/services", {"name": "mail", "task_types": ["mail"]})
    assert "close_flow_tool" not in await tools(app, "?services=mail")
    found = await tools(app, "?services=mail,flow:close")
    assert {"close_flow_tool", "mail_task_tool"} <= set(found)


def test_a_flow_and_a_service_of_one_name_have_tools_of_two_names() -> None:
    flow = OfferedFlow(name="report", version=1, description="", parameters={"type": "object"})
    service = Declared(name="report", task_types=("report",))
    names = [tool.name for tool in tools_of([service], [flow], direct=True)]
    assert len(names) == len(set(names))
    assert {"report", "report_task_tool", "report_flow_tool"} <= set(names)


@pytest.mark.contract("S2-6", "S1-11")
async def test_a_session_is_told_that_a_person_is_asked(app: App) -> None:
    terms = {"approval": {"reason": "more than 100 EUR"}}
    body = {"type": "pay", "payload": {}, "session_id": "ada", "requires_approval": True, **terms}
    task = await app.submit(**body)
    (notice,) = await Sessions(app).told(1, "ada")
    assert (notice["type"], notice["action"]) == ("approval_requested", "await_approval")
    assert (notice["task_id"], notice["task_type"]) == (task, "pay")
    assert notice["message"] == "Your pay waits for a person's approval: more than 100 EUR"


@pytest.mark.contract("S2-6", "S4-10")
async def test_the_session_of_a_run_is_told_that_the_run_asks_a_person(app: App) -> None:
    await publish(app, "close", kind="approval", tool=True)
    run = (await start(app, {"parameters": {}})).json()["task_id"]
    sessions = Sessions(app)
    (notice,) = await sessions.told(1, "ada")
    assert (notice["type"], notice["task_id"]) == ("approval_requested", run)
    (approval,) = (await app.get("/api/v2/approvals?status=open")).json()["items"]
    assert approval["task_id"] == run
    app.clock.advance(1_000)
    await app.post(f"/api/v2/approvals/{approval['id']}/approve", {"by": "eve"})
    ended, asked = await sessions.told(2, "ada")
    assert (ended["type"], asked["type"]) == ("task_completed", "approval_requested")
