"""Whose a task is: over every tool and every route that takes one, another session's id opens none.

The matrix is made from what there is: a tool or a route that is added later is in it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from fastapi.routing import iter_route_contexts

from onward.app import build
from onward.settings import Settings
from onward.surfaces.agents.tools import tools_of
from tests.house import House, open_house

ABSENT = "01900000-0000-7000-8000-000000000000"
# Whoever asks, as each way of asking says it: (query, arguments) of the tools.
ASKERS = {
    "bound to another": ("?session_id=eve", {}),
    "names another": ("", {"session_id": "eve"}),
    "names nobody": ("", {}),
    "names it in another case": ("", {"session_id": "ADA"}),
    "names it with a space": ("", {"session_id": "ada "}),
}
TOOLS = [tool.name for tool in tools_of([]) if "task_id" in tool.parameters["properties"]]


def _routes() -> list[tuple[str, str]]:
    web = build(Settings(ledger="sqlite:///:memory:")).web
    return sorted(
        (method, str(route.path))
        for route in iter_route_contexts(web.routes)
        for method in set(route.methods or ())
        if "{task_id}" in str(route.path)
    )


SESSION_ROUTES = [route for route in _routes() if "{session_id}" in route[1]]
# Doors that know no sessions: a task that has one is not theirs to show. /api/v2 without
# keys is the operator's.
FOREIGN_DOORS = [
    *[route for route in _routes() if not route[1].startswith("/api/v2")],
    ("GET", "/tasks/get?id={task_id}"),
    ("POST", "/tasks/cancel?id={task_id}"),
    ("GET", "/tasks/runs?task_id={task_id}"),
]


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house() as house:
        yield house


async def adas(house: House) -> str:
    body = {"type": "secret", "payload": {"pin": 1234}, "session_id": "ada"}
    id: str = (await house.post("/api/v2/tasks", body)).json()["id"]
    return id


def same(one: httpx2.Response, other: httpx2.Response, ids: tuple[str, str]) -> None:
    """Byte for byte, but for the request's own number and the id that was asked for."""
    first, second = (
        {key: value for key, value in response.json().items() if key != "request_id"}
        for response in (one, other)
    )
    assert one.status_code == other.status_code
    assert one.status_code in (404, 400)  # the tasks door has no other word where it retries
    assert str(first).replace(ids[0], "ID") == str(second).replace(ids[1], "ID")


def test_the_matrix_is_not_empty() -> None:
    assert {"get_task_result_tool", "cancel_task_tool"} <= set(TOOLS)
    assert SESSION_ROUTES
    assert len(FOREIGN_DOORS) > 6


@pytest.mark.contract("S2-9", "R-8")
@pytest.mark.parametrize("asker", ASKERS)
@pytest.mark.parametrize("tool", TOOLS)
async def test_no_tool_opens_another_sessions_task(house: House, tool: str, asker: str) -> None:
    task = await adas(house)
    query, arguments = ASKERS[asker]

    async def ask(id: str) -> httpx2.Response:
        return await house.post(f"/api/v2/tools/{tool}{query}", {**arguments, "task_id": id})

    same(await ask(task), await ask(ABSENT), (task, ABSENT))
    assert (await house.get(f"/api/v2/tasks/{task}")).json()["state"] == "queued"


@pytest.mark.contract("S2-9", "R-8")
@pytest.mark.parametrize(("method", "path"), SESSION_ROUTES)
async def test_no_route_opens_another_sessions_task(house: House, method: str, path: str) -> None:
    task = await adas(house)

    async def ask(session: str, id: str) -> httpx2.Response:
        at = path.replace("{session_id}", session).replace("{task_id}", id)
        return await house.http.request(method, at)

    same(await ask("eve", task), await ask("eve", ABSENT), (task, ABSENT))
    assert (await ask("ada", task)).status_code < 300


@pytest.mark.contract("R-8")
@pytest.mark.parametrize(("method", "path"), FOREIGN_DOORS)
async def test_no_other_door_opens_a_sessions_task(house: House, method: str, path: str) -> None:
    task = await adas(house)

    async def ask(id: str) -> httpx2.Response:
        return await house.http.request(method, path.replace("{task_id}", id))

    same(await ask(task), await ask(ABSENT), (task, ABSENT))


@pytest.mark.contract("S2-9")
@pytest.mark.parametrize("filter", ["all", "pending"])
async def test_no_list_shows_another_sessions_tasks(house: House, filter: str) -> None:
    task = await adas(house)
    arguments: dict[str, Any] = {"status_filter": filter}

    async def listed(session: str) -> list[str]:
        path = f"/api/v2/tools/list_user_tasks_tool?session_id={session}"
        return [item["task_id"] for item in (await house.post(path, arguments)).json()["tasks"]]

    assert await listed("eve") == []
    assert await listed("ada") == [task]


@pytest.mark.contract("S2-9")
async def test_a_session_is_told_nothing_of_anothers(house: House) -> None:
    task = await adas(house)
    worker = await house.worker(services=["secret"])
    await worker.task()
    await worker.answer(task, "done")
    await house.settled()
    await house.onward._watch.step()

    async def told(session: str) -> int:
        path = f"/api/v2/tools/list_user_tasks_tool?session_id={session}"
        return len((await house.post(path, {})).json()["notifications"])

    assert await told("eve") == 0
    assert await told("ada") == 1
