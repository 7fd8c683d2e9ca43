"""The agent door's tools over HTTP: definitions, calls, bad arguments, and news on the way."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from onward.native.tools.tools import SessionArgument, tools_of
from onward.services.catalog import Declared
from tests.running_app import App, running_app

GOLDEN = Path(__file__).with_name("openai_tools.json")
REPORT = {
    "name": "report",
    "task_types": ["report.generate", "report.export"],
    "schema": {
        "report.generate": {
            "type": "object",
            "properties": {"quarter": {"$ref": "#/$defs/Quarter"}, "year": {"type": "integer"}},
            "required": ["quarter"],
            "$defs": {"Quarter": {"enum": ["Q1", "Q2", "Q3", "Q4"]}},
        }
    },
}


@pytest.fixture
async def app() -> AsyncIterator[App]:
    async with running_app() as app:
        await app.post("/api/v2/services", REPORT)
        yield app


async def call(app: App, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    response = await app.post(f"/api/v2/tools/{name}", arguments)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def hand_off(app: App, session: str = "ada", **parameters: Any) -> str:
    answer = await call(
        app,
        "report_task_tool",
        {
            "task_type": "report.generate",
            "parameters": {"quarter": "Q4", **parameters},
            "session_id": session,
        },
    )
    return str(answer["task_id"])


async def result(app: App, task: str, session: str = "ada") -> dict[str, Any]:
    return await call(app, "get_task_result_tool", {"task_id": task, "session_id": session})


async def told(app: App) -> None:
    """The log has been read, and notices written."""
    await app.onward._notifying.step()


@pytest.mark.contract("S2-1")
async def test_openai_definitions_are_as_they_were(app: App) -> None:
    found = (await app.get("/api/v2/tools?format=openai")).json()
    assert found == json.loads(GOLDEN.read_text())


@pytest.mark.contract("S2-1")
async def test_a_bound_tool_does_not_ask_whose_it_is(app: App) -> None:
    for tool in (await app.get("/api/v2/tools?session_id=ada")).json()["items"]:
        assert "session_id" not in tool["parameters"]["properties"]
    answer = await app.post(
        "/api/v2/tools/report_task_tool?session_id=ada",
        {"task_type": "report.generate", "parameters": {"quarter": "Q1"}},
    )
    task = answer.json()["task_id"]
    assert (await result(app, task))["status"] == "pending"


@pytest.mark.contract("S2-1")
async def test_a_task_is_handed_off_and_acknowledged_at_once(app: App) -> None:
    answer = await call(
        app,
        "report_task_tool",
        {"task_type": "report.export", "parameters": {"any": 1}, "session_id": "ada"},
    )
    assert set(answer) == {"task_id", "acknowledgment_message", "status", "notifications"}
    assert answer["task_id"] in answer["acknowledgment_message"]
    task = await app.task(answer["task_id"])
    assert (task["session_id"], task["type"]) == ("ada", "report.export")
    assert task["payload"] == {"any": 1}


@pytest.mark.contract("S2-1", "S2-4")
async def test_a_result_says_what_each_status_calls_for(app: App) -> None:
    first, second = await hand_off(app), await hand_off(app)
    pending = await result(app, second)
    assert (pending["status"], pending["queue_position"]) == ("pending", 2)

    worker = await app.worker(services=["report.generate"])
    frame = await worker.task()
    await worker.send({"type": "progress", "taskId": frame["taskId"], "progress": 0.25})
    await app.settled()
    await app.advance(3_000)
    processing = await result(app, first)
    assert (processing["status"], processing["progress"]) == ("processing", 0.25)
    assert processing["eta_seconds"] == 9

    await worker.answer(first, {"file": "q4.pdf"})
    await app.settled()
    completed = await result(app, first)
    assert (completed["status"], completed["result"]) == ("completed", {"file": "q4.pdf"})
    assert completed["error"] is None

    await worker.task()
    await worker.answer(second, error="no data for Q4", errorType="SchemaInvalid")
    await app.settled()
    failed = await result(app, second)
    assert failed["status"] == "failed"
    assert failed["error"]["code"] == "SchemaInvalid"
    assert "no data for Q4" in failed["message"]


@pytest.mark.contract("S2-1", "S2-7")
async def test_a_late_task_is_said_to_go_on(app: App) -> None:
    body = {"type": "report.export", "payload": {}, "session_id": "ada", "timeout_ms": 1_000}
    task = await app.submit(**body)
    worker = await app.worker(services=["report.export"])
    await worker.task()
    await app.advance(1_500)
    late = await result(app, task)
    assert late["status"] == "timeout"
    assert "still running" in late["message"]
    assert task in late["message"]


@pytest.mark.contract("S2-1", "S2-4")
@pytest.mark.parametrize("word", ["pending", "PENDING", "all"])
async def test_tasks_are_listed_by_status_in_any_case(app: App, word: str) -> None:
    task = await hand_off(app)
    listed = await call(app, "list_user_tasks_tool", {"session_id": "ada", "status_filter": word})
    assert [item["task_id"] for item in listed["tasks"]] == [task]
    none = await call(
        app, "list_user_tasks_tool", {"session_id": "ada", "status_filter": "completed"}
    )
    assert none["tasks"] == []


@pytest.mark.contract("S2-11")
async def test_a_task_is_canceled(app: App) -> None:
    task = await hand_off(app)
    said = await call(app, "cancel_task_tool", {"task_id": task, "session_id": "ada"})
    assert said["status"] == "failed"
    assert (await result(app, task))["error"]["code"] == "CANCELED"
    again = await app.post("/api/v2/tools/cancel_task_tool", {"task_id": task, "session_id": "ada"})
    assert again.status_code == 409


@pytest.mark.contract("S2-9")
@pytest.mark.parametrize(
    ("tool", "arguments", "pointer", "words"),
    [
        ("report_task_tool", {"task_type": "x", "session_id": "a"}, "/task_type", "report.export"),
        (
            "report_task_tool",
            {"task_type": "report.generate", "parameters": {"quarter": 4}, "session_id": "a"},
            "/parameters/quarter",
            "Q1",
        ),
        (
            "report_task_tool",
            {"task_type": "report.generate", "parameters": {}, "session_id": "a"},
            "/parameters",
            "quarter",
        ),
        ("report_task_tool", {"task_type": "report.export"}, "/session_id", "missing"),
        (
            "report_task_tool",
            {"task_type": "report.export", "session_id": ""},
            "/session_id",
            "128 characters",
        ),
        (
            "report_task_tool",
            {"task_type": "report.export", "session_id": 7},
            "/session_id",
            "128 characters",
        ),
        (
            "report_task_tool",
            {"task_type": "report.export", "session_id": "a", "urgent": True},
            "/urgent",
            "parameters",
        ),
        ("get_task_result_tool", {"session_id": "a"}, "/task_id", "missing"),
        ("get_task_result_tool", {"task_id": 5}, "/task_id", "missing"),
        ("list_user_tasks_tool", {}, "/session_id", "missing"),
        (
            "list_user_tasks_tool",
            {"session_id": "a", "status_filter": "lost"},
            "/status_filter",
            "pending",
        ),
        ("list_user_tasks_tool", {"session_id": "a", "limit": 0}, "/limit", "100"),
        ("list_user_tasks_tool", {"session_id": "a", "limit": True}, "/limit", "100"),
    ],
)
async def test_a_bad_argument_is_named_and_nothing_is_accepted(
    app: App, tool: str, arguments: Mapping[str, Any], pointer: str, words: str
) -> None:
    response = await app.post(f"/api/v2/tools/{tool}", arguments)
    problem = response.json()
    assert (response.status_code, problem["code"]) == (422, "invalid_request")
    assert problem["errors"][0]["pointer"] == pointer
    assert words in problem["detail"]
    assert (await app.get("/api/v2/tasks")).json()["items"] == []


async def test_a_tool_that_is_not_there_is_not_found(app: App) -> None:
    assert (await app.post("/api/v2/tools/none_task_tool", {})).status_code == 404
    # What only MCP waits for is no tool of this door.
    assert (await app.post("/api/v2/tools/report_generate", {})).status_code == 404
    assert (await app.post("/api/v2/tools/report_task_tool", [])).status_code == 422


@pytest.mark.contract("S2-1")
async def test_only_the_tools_of_named_services_are_offered(app: App) -> None:
    await app.post("/api/v2/services", {"name": "mail", "task_types": ["mail"]})
    await app.post("/api/v2/services", {"name": "pay", "task_types": ["pay"]})

    async def offered(**query: str) -> set[str | None]:
        found = (await app.get("/api/v2/tools", params=query)).json()["items"]
        assert {tool["kind"] for tool in found} >= {"result", "list", "cancel"}
        return {tool["service"] for tool in found if tool["service"]}

    assert await offered() == {"mail", "pay", "report"}
    assert await offered(services="mail, report,nothing") == {"mail", "report"}
    response = await app.post("/api/v2/tools/pay_task_tool?services=mail", {})
    assert (response.status_code, response.json()["code"]) == (404, "not_found")
    assert (await app.get("/api/v2/tools?services=")).status_code == 422


@pytest.mark.contract("N-11")
async def test_a_service_that_is_not_exposed_has_no_tool(app: App) -> None:
    pay = {"name": "pay", "task_types": ["pay"]}
    path = "/api/v2/services?by=worker"
    await app.post("/api/v2/services", pay)
    assert (await app.get("/api/v2/services/pay")).json()["expose"] is True
    # A worker can take the tool away, and cannot bring back what an operator has taken away.
    await app.post(path, {**pay, "expose": False})
    assert (await app.post("/api/v2/tools/pay_task_tool", {})).status_code == 404
    await app.post("/api/v2/services", {**pay, "expose": False})
    await app.post(path, pay)
    assert (await app.get("/api/v2/services/pay")).json()["expose"] is False
    assert (await app.post("/api/v2/tools/pay_task_tool", {})).status_code == 404
    assert await app.submit("pay")  # as every other task


async def test_a_tool_bound_to_a_session_takes_no_other(app: App) -> None:
    task = await hand_off(app, "ada")
    response = await app.post(
        "/api/v2/tools/get_task_result_tool?session_id=eve", {"task_id": task, "session_id": "ada"}
    )
    assert response.status_code == 422


async def test_a_call_sent_twice_under_one_key_is_one_task(app: App) -> None:
    arguments = {"task_type": "report.export", "parameters": {}, "session_id": "ada"}
    path, key = "/api/v2/tools/report_task_tool", {"idempotency-key": "k1"}
    first = (await app.post(path, arguments, headers=key)).json()["task_id"]
    assert (await app.post(path, arguments, headers=key)).json()["task_id"] == first


async def done(app: App) -> str:
    """A task that was handed off and is done, with its notice written."""
    task = await hand_off(app)
    worker = await app.worker(services=["report.generate"])
    await worker.task()
    await worker.answer(task, "done")
    await app.settled()
    await told(app)
    return task


@pytest.mark.contract("S2-1", "S2-6")
async def test_an_answer_tells_what_was_not_yet_told_and_tells_it_once(app: App) -> None:
    task = await done(app)

    # The next interaction is any tool's, about anything.
    listed = await call(app, "list_user_tasks_tool", {"session_id": "ada"})
    (notice,) = listed["notifications"]
    assert (notice["type"], notice["task_id"]) == ("task_completed", task)
    assert (await result(app, task))["notifications"] == []
    kept = (await app.get("/api/v2/sessions/ada/notifications")).json()["items"]
    assert [item["read"] for item in kept] == [True]


@pytest.mark.contract("S2-6")
async def test_an_answer_that_was_refused_has_told_nothing(app: App) -> None:
    task = await done(app)
    bad = {"session_id": "ada", "status_filter": "lost"}
    assert (await app.post("/api/v2/tools/list_user_tasks_tool", bad)).status_code == 422
    assert len((await result(app, task))["notifications"]) == 1


def _declared(*names: str, types: Mapping[str, tuple[str, ...]] | None = None) -> list[Declared]:
    types = types or {}
    return [Declared(name=name, task_types=types.get(name, (name,))) for name in names]


def test_names_are_safe_short_and_different() -> None:
    names = ["a.b", "a_b", "a b", "ü" * 200, "ü" * 201, "x" * 128, "cancel", "get_task_result_tool"]
    tools = tools_of(_declared(*names), direct=True)
    found = [tool.name for tool in tools]
    assert len(found) == len(set(found)) == 2 * len(names) + 3
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in found)
    assert "a_b_task_tool" in found  # whoever is called exactly so
    assert "cancel_task_tool" in found


def test_names_do_not_depend_on_the_order_of_declarations() -> None:
    names = ["a.b", "a_b", "a b"]
    one = {tool.service: tool.name for tool in tools_of(_declared(*names))}
    other = {tool.service: tool.name for tool in tools_of(_declared(*reversed(names)))}
    assert one == other


def test_a_schema_inside_another_still_finds_its_own_parts() -> None:
    import jsonschema_rs

    schema = REPORT["schema"]["report.generate"]  # type: ignore[index]
    for types in (("r",), ("r", "s")):
        service = Declared(name="r", task_types=types, schema={"r": schema})
        whole = tools_of([service], session=SessionArgument.BOUND)[0].parameters
        validator = jsonschema_rs.validator_for(json.dumps(whole))
        assert validator.is_valid({"task_type": "r", "parameters": {"quarter": "Q1"}})
        if len(types) == 1:
            assert not validator.is_valid({"task_type": "r", "parameters": {"quarter": "Q9"}})


@pytest.mark.contract("S2-1")
@pytest.mark.parametrize("types", [("a",), ("a", "b")])
def test_a_dialect_is_named_at_the_root_of_a_schema_alone(types: tuple[str, ...]) -> None:
    dialect = "http://json-schema.org/draft-07/schema#"
    named = {"$schema": dialect, "type": "array", "items": {"properties": {"$schema": {}}}}
    service = Declared(name="s", task_types=types, schema=dict.fromkeys(types, named))
    tools = tools_of([service], direct=True)
    text = json.dumps([tool.parameters for tool in tools])
    assert dialect not in text
    assert '"$schema": {}' in text, "a property may have that name"
