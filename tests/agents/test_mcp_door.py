"""The door before the MCP server: what it does when answers do not arrive, or MCP is missing."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from onward.doors.mcp import door as mcp
from onward.doors.mcp.door import KEY, Exchange, McpDoor
from onward.native.caller import OPERATOR
from onward.native.tools.tools import SessionArgument
from tests.running_app import App
from tests.support import wait_until

MESSAGE = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


def door(app: App) -> McpDoor:
    (route,) = [route for route in app.asgi.web.routes if getattr(route, "path", "") == "/mcp"]
    found: McpDoor = route.endpoint  # type: ignore[attr-defined]
    return found


async def a_notice(app: App) -> None:
    task = await app.submit("t", session_id="ada")
    worker = await app.worker(services=["t"])
    await worker.task()
    await worker.answer(task, "done")
    await app.settled()
    await app.onward._notifying.step()


async def unread(app: App) -> int:
    path = "/api/v2/sessions/ada/notifications?unread=true"
    return len((await app.get(path)).json()["items"])


@pytest.mark.contract("S2-6")
@pytest.mark.parametrize(("arrives", "left"), [(True, 0), (False, 1)])
async def test_news_are_read_only_if_the_answer_was_written_out(
    app: App, arrives: bool, left: int
) -> None:
    await a_notice(app)
    here = door(app)

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        exchange = scope["state"][KEY]
        tool = await here._toolbox.find(
            OPERATOR, "list_user_tasks_tool", session=SessionArgument.BOUND
        )
        reply = await here._toolbox.run(OPERATOR, tool, {}, exchange.session)
        exchange.replies.append(reply)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": not arrives})

    here._opened = serve, forbidden
    await called(app, "/mcp", leaves=False)
    assert await unread(app) == left


@pytest.mark.contract("S2-6")
@pytest.mark.parametrize(("leaves", "left"), [(False, 0), (True, 1)])
async def test_a_caller_who_left_has_been_told_nothing(app: App, leaves: bool, left: int) -> None:
    await a_notice(app)
    sent = await called(app, "/api/v2/tools/list_user_tasks_tool", leaves=leaves)
    assert sent[0]["status"] == 200
    assert await unread(app) == left


async def forbidden(*_: object) -> None:
    raise AssertionError("nothing is resumed here")


async def called(app: App, path: str, *, leaves: bool) -> list[Any]:
    """As ada, by somebody who is gone once the body is sent, or is not."""
    sent: list[Any] = []
    incoming = [{"type": "http.request", "body": b"{}", "more_body": False}]

    async def receive() -> Any:
        if incoming:
            return incoming.pop()
        return {"type": "http.disconnect"} if leaves else await forever()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"session_id=ada",
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "headers": [(b"host", b"127.0.0.1"), (b"content-length", b"2")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8070),
        "asgi": {"version": "3.0"},
    }
    await app.asgi(scope, receive, send)
    return sent


async def forever() -> Any:
    await asyncio.Event().wait()


async def test_without_the_extra_it_says_what_to_install(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp, "find_spec", lambda _: None)
    answer = await app.post("/mcp", MESSAGE)
    assert answer.status_code == 501
    assert "onward[mcp]" in answer.json()["detail"]


@pytest.mark.contract("S2-11")
@pytest.mark.parametrize("older", [False, True], ids=["hangs up", "says so"])
async def test_a_call_given_up_while_its_task_is_handed_in_is_canceled(
    app: App, older: bool
) -> None:
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS

    from onward.doors.mcp.server import McpHandlers

    await app.post("/api/v2/services", {"name": "t", "task_types": ["t"]})
    toolbox = door(app)._toolbox
    submit, written, go_on = toolbox.submit, asyncio.Event(), asyncio.Event()

    async def lingering(*args: Any, **more: Any) -> Any:
        task = await submit(*args, **more)
        written.set()
        await go_on.wait()
        return task

    toolbox.submit = lingering  # type: ignore[method-assign]
    handlers = McpHandlers(toolbox, wait_ms=60_000, ready=lambda: True)
    exchange = Exchange(OPERATOR, "ada")
    call: Any = SimpleNamespace(
        protocol_version="2025-06-18" if older else next(iter(MODERN_PROTOCOL_VERSIONS)),
        request_id=1,
        request=SimpleNamespace(scope={"state": {KEY: exchange}}),
        session=SimpleNamespace(client_capabilities=None),
    )
    params: Any = SimpleNamespace(name="t", arguments={})
    calling = asyncio.ensure_future(handlers.call(call, params))
    await written.wait()
    if older:
        said: Any = SimpleNamespace(request_id=1)
        await handlers.canceled(call, said)
    else:
        calling.cancel()
        await asyncio.wait([calling])
    go_on.set()

    async def state() -> str:
        tasks = (await app.get("/api/v2/sessions/ada/tasks")).json()["items"]
        return str(tasks[0]["state"])

    await wait_until(state, holds="canceled".__eq__)
    await asyncio.wait([calling])
    assert handlers._calls == {}


async def test_two_clients_of_one_session_may_count_alike(app: App) -> None:
    from onward.doors.mcp.server import McpHandlers

    handlers = McpHandlers(door(app)._toolbox, wait_ms=60_000, ready=lambda: True)
    exchange = Exchange(OPERATOR, "ada")
    call: Any = SimpleNamespace(
        request_id=1, request=SimpleNamespace(scope={"state": {KEY: exchange}})
    )
    with handlers._under_way(call):
        with handlers._under_way(call) as second:
            second.task = "theirs"
        assert handlers._calls == {}
    assert handlers._calls == {}
