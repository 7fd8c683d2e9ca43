"""Whose a task is: over every route, tool and method, another session's id opens none (S2-9, R-8).

The matrix is made from what the application has. A route that is in none of the lists below fails:
say whether it is a session's, an operator's, or of a door that knows no sessions.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx2
import pytest
from fastapi.routing import iter_route_contexts

from onward.app import build
from onward.native.tools.tools import tools_of
from onward.settings import Settings
from tests.running_app import App, SocketWorker
from tests.support import wait_until

ABSENT = "01900000-0000-7000-8000-000000000000"
SECRET = "4711-secret"
STAGES = ("queued", "running", "waiting", "succeeded", "dead", "canceled")
NAMES_A_TASK = re.compile(r"{(task_id|run_id|approval_id)}")


def _routes() -> list[str]:
    web = build(Settings(ledger="sqlite:///:memory:")).web
    return sorted(
        f"{method} {route.path}".replace("{session_id:path}", "{session_id}")
        for route in iter_route_contexts(web.routes)
        for method in set(route.methods or ("WS",))
    )


ROUTES = _routes()

# Whoever comes here says whose it is, and is shown nothing of anybody else's.
SESSION = [route for route in ROUTES if "{session_id}" in route]
TOOLS = [
    "GET /api/v2/tools", "POST /api/v2/tools/{name}", "POST /mcp", "GET /mcp", "HEAD /mcp",
]  # fmt: skip

# The operator's: without keys, /api/v2 shows every task to whoever may call it. Workers are
# the operator's, too.
OPERATOR = [
    "DELETE /api/v2/tasks/{task_id}/effects/{name:path}",
    "GET /api/v2/approvals",
    "GET /api/v2/approvals/{approval_id}",
    "GET /api/v2/attention",
    "GET /api/v2/batches/{batch_id}",
    "GET /api/v2/dead-letters",
    "GET /api/v2/live",
    "GET /api/v2/series",
    "GET /api/v2/operations",
    "GET /api/v2/operations/{operation_id}",
    "GET /api/v2/runs",
    "GET /api/v2/runs/{run_id}",
    "GET /api/v2/runs/{run_id}/shared",
    "GET /api/v2/sessions",
    "GET /api/v2/tasks",
    "GET /api/v2/tasks/{task_id}",
    "GET /api/v2/tasks/{task_id}/events",
    "GET /api/v2/tasks/{task_id}/explain",
    "GET /api/v2/tasks/{task_id}/logs",
    "POST /api/v2/approvals/{approval_id}/approve",
    "POST /api/v2/approvals/{approval_id}/reject",
    "POST /api/v2/dead-letters/abandon",
    "POST /api/v2/dead-letters/replay",
    "POST /api/v2/operations/{operation_id}/cancel",
    "POST /api/v2/runs",
    "POST /api/v2/runs/{run_id}/cancel",
    "POST /api/v2/runs/{run_id}/fork",
    "POST /api/v2/runs/{run_id}/signal",
    "POST /api/v2/tasks",
    "POST /api/v2/tasks/batch",
    "POST /api/v2/tasks/cancel",
    "POST /api/v2/tasks/delete",
    "POST /api/v2/tasks/retry",
    "POST /api/v2/tasks/{task_id}/cancel",
    "POST /api/v2/tasks/{task_id}/chunks",
    "POST /api/v2/tasks/{task_id}/effects/{name:path}",
    "POST /api/v2/tasks/{task_id}/logs",
    "POST /api/v2/tasks/{task_id}/progress",
    "POST /api/v2/tasks/{task_id}/retry",
    "PUT /api/v2/tasks/{task_id}/effects/{name:path}",
    "WS /ws/worker",
]

# Doors that know no sessions: a task that has one is not theirs to show. Those that take an id,
# with where they take it, and those that list.
FOREIGN = {
    **{route: route for route in ROUTES if re.match(r"\w+ /api/(v1/tasks|task)/{task_id}", route)},
    "GET /tasks/get": "GET /tasks/get?id={task_id}",
    "POST /tasks/cancel": "POST /tasks/cancel?id={task_id}",
    "GET /tasks/runs": "GET /tasks/runs?task_id={task_id}",
}
FOREIGN_LISTS = [
    "GET /api/v1/queues/dlq",
    "GET /api/v1/queues/dlq/",
    "GET /api/v1/tasks",
    "GET /api/v1/tasks/",
    "GET /tasks",
    "POST /api/v1/tasks/requeue-orphaned",
    "POST /api/v1/tasks/requeue-orphaned/",
]

# What neither takes nor shows a task that was there before: what there is to call, how much there
# is of everything, who works here, and where new work comes in.
PLAIN = re.compile(
    r"\w+ (/"
    r"|/api/openai|/v1/(chat/completions|responses|models(/{model})?)|/api/v1/tasks/{task_type}/?|/tasks"
    r"|/api/v1/queues/status/?|/health|/ready|/metrics|/openapi.json|/ui(/{path:path})?"
    r"|/flows(/version)?|(/workers)?/(allocate|deregister|heartbeat|list|register)"
    r"|/api/v2/(audit|encryption|flows|keys|limits|log|login|logout|me|queues|schedules|services|workers)(/.*)?"
    r")"
)


async def adas(app: App, stage: str) -> str:
    """A task of Ada's that has come so far."""
    body = {"type": "secret", "payload": {"pin": SECRET}, "session_id": "ada", "max_retries": 0}
    body["requires_approval"] = stage == "waiting"
    id: str = await app.submit(**body)
    if stage in ("running", "succeeded", "dead"):
        worker = await app.worker(group=None, services=["secret"])
        await worker.task()
        said = {"type": "progress", "taskId": id, "progress": 0.5, "message": SECRET}
        await worker.send(said)
        if stage == "succeeded":
            await worker.answer(id, SECRET)
        elif stage == "dead":
            await worker.answer(id, error=SECRET)
    elif stage == "canceled":
        await app.post(f"/api/v2/tasks/{id}/cancel", {})

    async def there() -> bool:
        found = await seen(app, id)
        return bool(found["state"] == stage and (stage != "running" or found["progress"]))

    await wait_until(there)
    return id


async def seen(app: App, id: str) -> dict[str, Any]:
    """As the operator has it."""
    found: dict[str, Any] = await app.task(id)
    return found


def same(one: httpx2.Response, other: httpx2.Response, ids: tuple[str, str]) -> None:
    """Byte for byte, but for the request's own number and the id that was asked for."""
    first, second = (_plain(answer, id) for answer, id in zip((one, other), ids, strict=True))
    assert (one.status_code, first) == (other.status_code, second)
    assert SECRET not in first


def _plain(answer: httpx2.Response, id: str) -> str:
    own = answer.headers.get("x-request-id", "none")
    return answer.text.replace(own, "REQUEST").replace(id, "ID")


# The lists.


@pytest.mark.contract("S2-9", "R-8")
def test_every_route_has_an_owner() -> None:
    named = [*SESSION, *TOOLS, *OPERATOR, *FOREIGN, *FOREIGN_LISTS]
    assert len(named) == len(set(named)), "one is in two lists"
    assert sorted(set(named) - set(ROUTES)) == [], "gone from the application"
    strange = [route for route in ROUTES if route not in named and not PLAIN.fullmatch(route)]
    assert strange == [], "whose are these? put each into a list of this file"
    shown = [route for route in ROUTES if route not in named and NAMES_A_TASK.search(route)]
    assert shown == [], "they name a task, and so they are a session's, an operator's, or neither's"


def test_the_matrix_is_not_empty() -> None:
    assert {"get_task_result_tool", "cancel_task_tool"} <= set(TASK_TOOLS)
    assert "GET /api/v2/sessions/{session_id}/tasks/{task_id}" in SESSION_TASKS
    assert len(FOREIGN) >= 10
    assert set(METHODS) == {"tasks/get", "tasks/update", "tasks/cancel"}


# Routes.

SESSION_TASKS = [route for route in SESSION if "{task_id}" in route]


@pytest.mark.contract("S2-9", "R-8")
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("route", SESSION_TASKS)
async def test_no_route_opens_another_sessions_task(app: App, route: str, stage: str) -> None:
    task = await adas(app, stage)
    before = await seen(app, task)
    method, path = route.split()

    async def ask(session: str, id: str) -> httpx2.Response:
        at = path.replace("{session_id}", session).replace("{task_id}", id)
        return await app.http.request(method, at)

    for stranger in ("eve", "ADA", "ada%20"):
        foreign = await ask(stranger, task)
        assert foreign.status_code == 404
        same(foreign, await ask(stranger, ABSENT), (task, ABSENT))
    assert await seen(app, task) == before
    assert (await ask("ada", task)).status_code < 300


@pytest.mark.contract("R-8")
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("route", FOREIGN)
async def test_no_other_door_opens_a_sessions_task(app: App, route: str, stage: str) -> None:
    task = await adas(app, stage)
    before = await seen(app, task)
    method, path = FOREIGN[route].split()

    async def ask(id: str) -> httpx2.Response:
        return await app.http.request(method, path.replace("{task_id}", id))

    foreign = await ask(task)
    assert foreign.status_code in (404, 400)  # the tasks door has no other word where it retries
    same(foreign, await ask(ABSENT), (task, ABSENT))
    assert await seen(app, task) == before


@pytest.mark.contract("R-8")
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("route", FOREIGN_LISTS)
async def test_no_other_door_lists_a_sessions_task(app: App, route: str, stage: str) -> None:
    task = await adas(app, stage)
    method, path = route.split()
    answer = await app.http.request(method, path)
    assert answer.status_code == 200, answer.text
    assert task not in answer.text
    assert SECRET not in answer.text


# Sessions' other things.


@pytest.mark.contract("S2-9")
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("status", ["all", "pending", "processing", "completed", "failed"])
async def test_no_list_shows_another_sessions_tasks(app: App, stage: str, status: str) -> None:
    task = await adas(app, stage)
    path = f"/api/v2/sessions/eve/tasks?status={status}"
    assert (await app.get(path)).json()["items"] == []
    tool = "/api/v2/tools/list_user_tasks_tool?session_id={}"
    body = {} if status == "processing" else {"status_filter": status}
    assert (await app.post(tool.format("eve"), body)).json()["tasks"] == []
    listed = (await app.post(tool.format("ada"), {})).json()["tasks"]
    assert [item["task_id"] for item in listed] == [task]


async def told(app: App) -> dict[str, Any]:
    """A notice of Ada's."""
    await adas(app, "succeeded")

    async def there() -> dict[str, Any] | None:
        items = (await app.get("/api/v2/sessions/ada/notifications")).json()["items"]
        return items[0] if items else None

    return await wait_until(there)


@pytest.mark.contract("S2-9")
async def test_a_session_is_told_nothing_of_anothers_by_any_way(app: App) -> None:
    sockets = {name: SocketWorker(app.asgi, f"/ws/notifications/{name}") for name in ("ada", "eve")}
    notice = await told(app)
    assert (await sockets["ada"].receive())["notification_id"] == notice["notification_id"]
    await sockets["eve"].send({"type": "ping"})
    assert await sockets["eve"].receive() == {"type": "pong"}, "and nothing before it"
    for socket in sockets.values():
        await socket.close()
    assert (await app.get("/api/v2/sessions/eve/notifications")).json()["items"] == []
    path = "/api/v2/tools/list_user_tasks_tool?session_id={}"
    assert (await app.post(path.format("eve"), {})).json()["notifications"] == []
    heard = (await app.post(path.format("ada"), {})).json()["notifications"]
    assert [one["notification_id"] for one in heard] == [notice["notification_id"]]


@pytest.mark.contract("S2-9")
async def test_an_event_stream_is_the_sessions_own(app: App) -> None:
    notice = await told(app)
    hub = app.onward.hub
    async with asyncio.timeout(30):
        own = hub.follow("ada", "sse")
        first = await anext(own)
        assert first is not None
        assert first.id == notice["notification_id"]
        await own.aclose()
    strange = hub.follow("eve", "sse")
    waiting = asyncio.ensure_future(anext(strange))
    await app.settled()
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])


@pytest.mark.contract("S2-9")
async def test_another_sessions_notice_cannot_be_acknowledged_by_any_way(app: App) -> None:
    notice = (await told(app))["notification_id"]
    absent = "notif-01900000-0000-7000-8000-000000000000"
    path = "/api/v2/sessions/eve/notifications/{}/ack"
    answers = [await app.post(path.format(id), None) for id in (notice, absent)]
    assert answers[0].status_code == 404
    same(answers[0], answers[1], (notice, absent))
    eve = SocketWorker(app.asgi, "/ws/notifications/eve")
    said = []
    for id in (notice, absent):
        await eve.send({"type": "ack", "notification_id": id})
        said.append({**(await eve.receive()), "notification_id": "ID"})
    await eve.close()
    assert said[0] == said[1]
    assert said[0]["type"] == "error"
    kept = (await app.get("/api/v2/sessions/ada/notifications?unread=true")).json()["items"]
    assert [one["notification_id"] for one in kept] == [notice]


@pytest.mark.contract("S2-9")
async def test_a_sessions_preferences_are_its_own(app: App) -> None:
    path = "/api/v2/sessions/{}/preferences"
    usual = (await app.get(path.format("eve"))).json()
    wished = {"push": False, "types": ["task_failed"]}
    assert (await app.http.put(path.format("ada"), json=wished)).status_code == 200
    assert (await app.get(path.format("eve"))).json() == usual


@pytest.mark.contract("S2-9")
async def test_a_session_that_has_nothing_looks_like_one_that_never_was(app: App) -> None:
    await adas(app, "queued")
    assert (await app.get("/api/v2/sessions/ada")).status_code == 200
    for name in ("eve", "ADA", "ada%20"):
        assert (await app.get(f"/api/v2/sessions/{name}")).status_code == 404


# Tools.

# Whoever asks, as each way of asking says it: (query, arguments) of the tools.
ASKERS: dict[str, tuple[str, dict[str, str]]] = {
    "bound to another": ("?session_id=eve", {}),
    "names another": ("", {"session_id": "eve"}),
    "names nobody": ("", {}),
    "names it in another case": ("", {"session_id": "ADA"}),
    "names it with a space": ("", {"session_id": "ada "}),
}
TASK_TOOLS = [tool.name for tool in tools_of([]) if "task_id" in tool.parameters["properties"]]


@pytest.mark.contract("S2-9", "R-8")
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("tool", TASK_TOOLS)
async def test_no_tool_opens_another_sessions_task(app: App, tool: str, stage: str) -> None:
    task = await adas(app, stage)
    before = await seen(app, task)
    for asker, (query, arguments) in ASKERS.items():

        async def ask(id: str, query: str = query, said: dict[str, str] = arguments) -> Any:
            return await app.post(f"/api/v2/tools/{tool}{query}", {**said, "task_id": id})

        foreign = await ask(task)
        assert foreign.status_code == 404, asker
        same(foreign, await ask(ABSENT), (task, ABSENT))
    assert await seen(app, task) == before


# MCP.


def _methods() -> list[str]:
    """Those of the server's own that are about one task."""
    from mcp_types import RequestParams

    from onward.doors.mcp import server as mcp_server

    manager, _ = mcp_server.build(_Nobody(), wait_ms=1, ready=lambda: True)  # type: ignore[arg-type]
    server = manager.app
    return sorted(
        method
        for method, entry in server._request_handlers.items()
        if "task_id" in getattr(entry.params_type or RequestParams, "model_fields", {})
    )


class _Nobody:
    dispatcher = None


METHODS = _methods()


async def spoken(app: App, session: str | None, method: str, params: Any) -> httpx2.Response:
    query = "" if session is None else f"?session_id={session}"
    return await app.http.post(
        f"/mcp{query}",
        json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params},
        headers={
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2025-06-18",
        },
    )


@pytest.mark.contract("S2-9", "R-8")
@pytest.mark.parametrize("stage", STAGES)
async def test_no_word_of_mcp_opens_another_sessions_task(app: App, stage: str) -> None:
    task = await adas(app, stage)
    before = await seen(app, task)
    for session in ("eve", "ADA", None):
        for method in METHODS:
            said = [
                await spoken(app, session, method, {"taskId": id, "inputResponses": {}})
                for id in (task, ABSENT)
            ]
            assert '"code":-32602' in said[0].text, method
            same(said[0], said[1], (task, ABSENT))
        for tool in TASK_TOOLS:
            said = [
                await spoken(app, session, "tools/call", {"name": tool, "arguments": arguments})
                for arguments in ({"task_id": task}, {"task_id": ABSENT})
            ]
            assert '"code":"not_found"' in said[0].text, tool
            same(said[0], said[1], (task, ABSENT))
        if session is not None:
            listed = await spoken(
                app, session, "tools/call", {"name": "list_user_tasks_tool", "arguments": {}}
            )
            assert task not in listed.text
    assert await seen(app, task) == before
    own = await spoken(app, "ada", "tasks/get", {"taskId": task})
    assert json.loads(own.text.partition("data: ")[2])["result"]["taskId"] == task
