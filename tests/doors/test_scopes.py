"""Every route of the application × every kind of token × whose the thing is (K-2 … K-5).

The routes are the application's own: a new one is in no row of `ALLOWED`, and fails here until it
says which scopes it needs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
from starlette.routing import Route, WebSocketRoute

from onward.app import Application, build
from onward.doors.access import ANY_KEY_PATHS, check_routes, is_open
from onward.doors.mcp.server import McpHandlers
from onward.doors.mcp.tasks import McpTasks
from onward.native.caller import Caller, Scope, needs, scopes_of
from onward.native.tools.toolbox import Toolbox
from onward.settings import Settings
from onward.wire.frames import FromWorker
from onward.workers.socket.sessions import Session
from tests.doors.test_keys import bearer, make_key
from tests.running_app import App, SocketWorker

SCOPES = ("submit", "read", "reveal", "work", "operate", "approve", "approve:own", "admin")
SEES = {"read", "reveal", "operate"}
# Who is let in, by path: of each row the first that fits. An admin always is.
ALLOWED: Mapping[str, set[str]] = {
    r"\w+ /api/v2/(keys|audit).*": set(),
    r"\w+ /api/v2/(me|logout)": set(SCOPES),
    r"POST /api/v2/encryption/rotate": set(),
    r"GET /(metrics|api/v2/live)": {"read", "reveal"},
    # What is handed in, and what one hands it in with.
    r"POST /(api/openai|v1/(chat/completions|responses)|api/v1/tasks/{task_type}/?|tasks)": {
        "submit"
    },
    r"POST /api/v2/(tasks|tasks/batch|runs|tools/{name}|sessions/{session_id}/tasks)": {"submit"},
    r"GET /(v1/models.*|api/v2/tools|api/v2/me/callback-secret)": {"submit"},
    r"(GET|POST) /mcp": {"submit"},
    r"POST /api/v2/sessions/.*/ack": {"submit"},
    r"PUT /api/v2/sessions/{session_id}/preferences": {"submit"},
    # What a worker sends.
    r"POST /api/v2/tasks/{task_id}/(progress|chunks|logs)": {"work"},
    r"\w+ /api/v2/tasks/{task_id}/effects/.*": {"work"},
    r"POST (/workers)?/(register|heartbeat|deregister)": {"work"},
    r"POST /api/v2/services": {"operate", "work"},
    # One's own, or anybody's.
    r"POST /api/v2/(tasks|operations/{operation_id})/cancel": {"submit", "operate"},
    r"GET /api/v2/(batches|operations)/{\w+}": {"submit", "approve", *SEES},
    r"GET /api/v2/operations": {"submit", *SEES},
    r"POST /api/v2/(tasks/{task_id}/cancel|runs/{run_id}/(cancel|signal))": {"submit", "operate"},
    r"POST /tasks/cancel|DELETE /api/v1/tasks/{task_id}/?": {"submit", "operate"},
    r"GET /api/task/{task_id}|GET /api/v1/tasks/{task_id}/?": {"submit", "approve", *SEES},
    r"GET /tasks/(get|runs)|GET /api/v2/runs/{run_id}(/shared)?": {"submit", "approve", *SEES},
    r"GET /api/v2/tasks/{task_id}(/events|/explain|/logs)?": {"submit", "approve", *SEES},
    r"GET /api/v2/approvals(/{approval_id})?": {"submit", "approve", *SEES},
    r"GET /(tasks|api/v1/(tasks|queues/dlq)/?)": {"submit", *SEES},
    r"GET /api/v2/(tasks|runs|dead-letters|services.*|sessions.*)": {"submit", *SEES},
    r"POST /api/v2/flows/validate": {"submit", *SEES},
    r"POST /api/v2/schedules/preview": SEES,
    r"POST /api/v2/approvals/{approval_id}/(approve|reject)": {"approve"},
    # What has no owner, and what operators do.
    r"GET (/workers)?/(list|allocate)": SEES,
    r"GET /api/v1/queues/status/?": SEES,
    r"GET /api/v2/(attention|series|queues|workers|schedules|flows|log|encryption)(/.*)?": SEES,
    r"GET /api/v2/limits(/.*)?": SEES,
    r"\w+ /api/v2/.*|POST /api/v1/tasks/.*|POST /flows(/version)?": {"operate"},
}


class Call(NamedTuple):
    method: str
    path: str

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def application() -> Application:
    return build(Settings(ledger="sqlite:///:memory:"))


CALLS = [
    Call(method, route.path.replace("{session_id:path}", "{session_id}"))
    for route in application().web.router.routes
    if isinstance(route, Route)
    for method in sorted((route.methods or {"POST"}) - {"HEAD"})
]
CLOSED = [call for call in CALLS if not is_open(call.method, call.path)]
SCOPED = [call for call in CLOSED if call.path not in ANY_KEY_PATHS]


def allowed(call: Call) -> set[str]:
    row = next((row for row in ALLOWED if re.fullmatch(row, str(call))), None)
    assert row is not None, f"{call}: which scopes does it need? add a row"
    return ALLOWED[row] | {"admin"}


class Closed(NamedTuple):
    app: App
    tokens: Mapping[str, str]  # by scope; and revoked, expired, unknown
    foreign: str  # a task of the admin's


@pytest.fixture
async def closed(app: App) -> Closed:
    admin = (await make_key(app, "admin", "admin"))["token"]
    tokens = {"admin": admin, "unknown": "onward_x_y"}
    for scope in SCOPES[:-1]:
        tokens[scope] = (await make_key(app, scope, scope, by=admin))["token"]
    gone = await make_key(app, "revoked", *SCOPES, by=admin)
    await app.http.delete(f"/api/v2/keys/{gone['id']}", headers=bearer(admin))
    until = app.clock.now() + 1
    late = await make_key(app, "expired", *SCOPES, by=admin, expires_at=until)
    app.clock.advance(1)
    body = {"type": "held", "requires_approval": True}
    foreign = await app.post("/api/v2/tasks", body, headers=bearer(admin))
    tokens |= {"revoked": gone["token"], "expired": late["token"]}
    return Closed(app, tokens, foreign.json()["id"])


async def status(app: App, call: Call, token: str | None, id: str = "missing") -> int:
    path = re.sub(r"{[^}]*}", id, call.path)
    headers = {} if token is None else bearer(token)
    body: Any = {} if call.method in ("POST", "PUT") else None
    query = {"id": id, "task_id": id, "service": "x"} if "?" not in path else None
    response = await app.http.request(call.method, path, json=body, headers=headers, params=query)
    return response.status_code


@pytest.mark.contract("K-2", "K-3")
async def test_no_route_is_open_to_a_dead_or_missing_key(closed: Closed) -> None:
    dead = [closed.tokens[name] for name in ("unknown", "expired", "revoked")]
    heads = [Call("HEAD", call.path) for call in CLOSED if call.method == "GET"]
    found = {
        call: {await status(closed.app, call, one) for one in (None, *dead)}
        for call in (*CLOSED, *heads)
    }
    assert {str(call): said for call, said in found.items() if said != {401}} == {}


@pytest.mark.contract("K-4")
async def test_every_route_lets_its_scopes_in_and_no_others(closed: Closed) -> None:
    """Let in, a call finds nothing, or its body makes no sense: that is no 401 and no 403."""
    wrong = []
    for call in SCOPED:
        # A stream without an end, and a protocol that is loaded with its first call.
        endless = call.path in ("/api/v2/live", "/mcp")
        for scope in set(SCOPES) - (allowed(call) if endless else set()):
            found = await status(closed.app, call, closed.tokens[scope])
            if found == 401 or (found == 403) is (scope in allowed(call)):
                wrong.append(f"{call} with {scope}: {found}")
    assert wrong == []


class Things(NamedTuple):
    """What a key handed in: a task, one that waits for approval, a run, and a session."""

    task: str
    held: str
    run: str
    session: str
    in_session: str


async def handed_in(app: App, token: str, session: str) -> Things:
    async def post(path: str, body: Any) -> str:
        response = await app.post(path, body, headers=bearer(token))
        assert response.status_code in (200, 202), response.text
        return str(response.json().get("id") or response.json().get("task_id"))

    return Things(
        task=await post("/api/v2/tasks", {"type": "echo"}),
        held=await post("/api/v2/tasks", {"type": "echo", "requires_approval": True}),
        run=await post("/api/v2/runs", {"flow": "ask"}),
        session=session,
        in_session=await post(f"/api/v2/sessions/{session}/tasks", {"type": "echo"}),
    )


MISSING = Things(*["missing"] * 5)
BODIES = {
    r".*/signal": {"name": "x"},
    r".*/fork": {"from_node": "a"},
    r".*/progress": {"fence": 1, "progress": 0.5},
    r".*/chunks": {"fence": 1, "data": 1},
    r".*/logs": {
        "fence": 1,
        "records": [{"at": 1, "level": "info", "logger": "x", "message": "x", "attempt": 1}],
    },
    r"POST .*/effects/.*": {"fence": 1},
    r"PUT .*/effects/.*": {"fence": 1, "value": 1},
    r"POST .*/sessions/{session_id}/tasks": {"type": "echo"},
}
ABOUT = re.compile(r"{(task_id|run_id|approval_id|session_id)}|^/tasks/(get|cancel|runs)$")
DISPATCHERS = "/api/task/{task_id}"  # shows what its own door was given; see test_owners.py


async def answer(app: App, call: Call, token: str, things: Things) -> tuple[int, str]:
    """The status, and the text without what differs from call to call."""
    names = {
        "task_id": things.in_session if "{session_id}" in call.path else things.task,
        "approval_id": things.held,
        "run_id": things.run,
        "session_id": things.session,
        "notification_id": "missing",
        "name:path": "mail",
    }
    path = re.sub(r"{([^}]*)}", lambda found: names[found[1]], call.path)
    body = next((BODIES[one] for one in BODIES if re.fullmatch(one, str(call))), {})
    params = {"id": things.run, "task_id": things.run} if call.path.startswith("/tasks/") else {}
    if "/effects/" in call.path and call.method == "DELETE":
        params = {"fence": "1"}
    response = await app.http.request(
        call.method,
        path,
        json=body if call.method in ("POST", "PUT") else None,
        headers=bearer(token) | {"x-request-id": "same"},
        params=params,
    )
    text = response.text
    for id in things:
        text = text.replace(id, "ID")
    return response.status_code, text


@pytest.fixture
async def flow(closed: Closed) -> None:
    definition = {"start": "a", "nodes": {"a": {"kind": "approval"}}, "edges": []}
    made = {"name": "ask", "definition": definition}
    headers = bearer(closed.tokens["admin"])
    assert (await closed.app.post("/api/v2/flows", made, headers=headers)).status_code == 200


ABOUT_A_THING = [call for call in SCOPED if ABOUT.search(call.path)]


@pytest.mark.contract("K-5")
async def test_a_key_finds_its_own_and_anothers_looks_missing(closed: Closed, flow: None) -> None:
    app, tokens = closed.app, closed.tokens
    foreign = await handed_in(app, tokens["admin"], "theirs")
    wrong = []
    for number, call in enumerate(ABOUT_A_THING):
        if "submit" not in allowed(call):
            continue
        own = await handed_in(app, tokens["submit"], f"mine-{number}")
        theirs = await answer(app, call, tokens["submit"], foreign)
        missing = await answer(app, call, tokens["submit"], MISSING)
        found = await answer(app, call, tokens["submit"], own)
        # A session that no key has used is the next one's: to that key it is an empty one.
        to_be_had = "{session_id}" in call.path
        if theirs[0] != 404 or (theirs != missing and not to_be_had):
            wrong.append(f"{call}: of another key {theirs}, missing {missing}")
        if found[0] == 404 and call.path != DISPATCHERS and "{notification_id}" not in call.path:
            wrong.append(f"{call}: its own is not found: {found}")
    assert not wrong, wrong


@pytest.mark.contract("K-4", "K-7")
async def test_who_may_decide_or_work_finds_no_more_than_that(closed: Closed, flow: None) -> None:
    """A key that approves finds what waits for approval; one that works what it may serve."""
    app, tokens = closed.app, dict(closed.tokens)
    made = await make_key(app, "elsewhere", "work:elsewhere", by=tokens["admin"])
    tokens["work"] = made["token"]
    foreign = await handed_in(app, tokens["admin"], "theirs")
    wrong = []
    for call in ABOUT_A_THING:
        for scope in {"approve", "work"} & allowed(call):
            theirs = await answer(app, call, tokens[scope], foreign)
            missing = await answer(app, call, tokens[scope], MISSING)
            decides = "{approval_id}" in call.path or "run" in call.path
            if (
                theirs[0] == 404
                if decides or call.path.startswith("/tasks/")
                else theirs != missing
            ):
                wrong.append(f"{call} with {scope}: {theirs}, missing {missing}")
            if missing[0] != 404:
                wrong.append(f"{call} with {scope}: missing is {missing}")
    assert not wrong, wrong


async def handshake(app: App, path: str, **headers: str) -> bool:
    """Whether it is accepted."""
    socket = SocketWorker(app.asgi, path, **headers)
    try:
        await socket.send({"type": "ping"})
        await socket.receive()
    except ConnectionError:
        return False
    finally:
        await socket.close()
    return True


@pytest.mark.contract("K-3", "K-4")
async def test_every_socket_lets_its_scopes_in_and_no_others(closed: Closed) -> None:
    app, tokens = closed.app, closed.tokens
    lets_in = {
        "/ws/worker": {"work", "admin"},
        "/ws/notifications/{session_id}": {"submit", "admin"},
    }
    assert lets_in.keys() == sockets().keys()
    for path, scopes in lets_in.items():
        found = {
            name
            for name, token in tokens.items()
            if await handshake(
                app, path.replace("{session_id}", f"of-{name}"), authorization=f"Bearer {token}"
            )
        }
        assert found == scopes, path
        assert not await handshake(app, path.replace("{session_id}", "of-nobody"))


def test_a_route_without_a_scope_stops_the_start() -> None:
    class Loose:
        @needs()
        async def read(self, caller: Caller) -> None: ...

    from onward.doors.route import route

    with pytest.raises(TypeError, match="/loose reaches no scope"):
        check_routes([route("GET", "/loose", Loose().read)])
    with pytest.raises(TypeError, match="/bare reaches no scope"):
        check_routes([Route("/bare", lambda _: None)])


def sockets() -> Mapping[str, tuple[Scope, ...]]:
    return {
        route.path: getattr(route.endpoint, "scopes", ())
        for route in application().web.router.routes
        if isinstance(route, WebSocketRoute)
    }


@pytest.mark.contract("K-4")
def test_every_socket_tool_and_mcp_method_reaches_a_scope() -> None:
    assert sockets() == {
        "/ws/worker": (Scope.WORK,),
        "/ws/notifications/{session_id}": (Scope.SUBMIT,),
    }
    for name, method in vars(Toolbox).items():
        if not name.startswith("_") and callable(method):
            assert set(scopes_of(method)) in ({Scope.SUBMIT}, {Scope.SUBMIT, Scope.OPERATE}), name
    # MCP's methods call the toolbox, and nothing else that acts: each takes the exchange's caller.
    assert {name for name in vars(McpTasks) if not name.startswith("_")} == {
        "install", "get", "update", "cancel",
    }  # fmt: skip
    assert {name for name in vars(McpHandlers) if not name.startswith("_")} == {
        "tools", "call", "canceled", "result", "resume",
    }  # fmt: skip


ABOUT_TASKS = ("tasks/get", "tasks/update", "tasks/cancel")
TOOLS = ("get_task_result_tool", "cancel_task_tool")


@pytest.mark.contract("K-4", "K-5")
async def test_no_method_or_tool_of_mcp_opens_another_keys_task(closed: Closed) -> None:
    app, token = closed.app, closed.tokens["submit"]

    async def ask(method: str, **params: Any) -> str:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {"accept": "application/json, text/event-stream", **bearer(token)}
        headers["mcp-protocol-version"] = "2025-06-18"
        response = await app.post("/mcp", body, headers=headers)
        assert response.status_code == 200, response.text
        return response.text

    listed = await ask("tools/list")
    tools = json.loads(listed.partition("data: ")[2] or listed)["result"]["tools"]
    asks = {tool["name"] for tool in tools if "task_id" in tool["inputSchema"]["properties"]}
    assert asks == set(TOOLS)
    for method in ABOUT_TASKS:
        theirs, none = [
            await ask(method, taskId=id, inputResponses={}) for id in (closed.foreign, "none")
        ]
        assert "-32602" in theirs, method
        assert theirs.replace(closed.foreign, "none") == none
    for name in TOOLS:
        theirs, none = [
            await ask("tools/call", name=name, arguments={"task_id": id})
            for id in (closed.foreign, "none")
        ]
        assert '"code":"not_found"' in theirs, name
        assert theirs.replace(closed.foreign, "none") == none
    own = await app.post("/api/v2/tasks", {"type": "echo"}, headers=bearer(token))
    assert "-32602" not in await ask("tasks/get", taskId=own.json()["id"])


# Of each frame one that is about a task, and what it is answered with if that is not the worker's.
RECORD = {"at": 1, "level": "info", "logger": "x", "message": "x", "attempt": 1}
FRAMES: Mapping[str, dict[str, Any] | None] = {
    "taskResult": {"result": 1},
    "progress": {"progress": 0.5},
    "chunk": {"data": 1},
    "log": {"records": [RECORD]},
    **dict.fromkeys(("register", "ping", "pong", "drain")),  # about no task
}


@pytest.mark.contract("K-7")
@pytest.mark.parametrize("registered", [False, True])
async def test_no_frame_touches_a_task_that_is_not_the_workers(
    closed: Closed, registered: bool
) -> None:
    app, tokens = closed.app, closed.tokens
    known = {frame.__struct_config__.tag for frame in FromWorker.__args__}
    assert known == FRAMES.keys(), "a new frame: is it about a task?"
    assert len(known) == len(Session._ON)
    holder = SocketWorker(app.asgi, authorization=f"Bearer {tokens['admin']}")
    await holder.send({"type": "register", "group": None, "services": ["echo"]})
    assert (await holder.receive())["type"] == "registered"
    made = await app.post("/api/v2/tasks", {"type": "echo"}, headers=bearer(tokens["admin"]))
    assert (await holder.task())["taskId"] == made.json()["id"]
    path = f"/api/v2/tasks/{made.json()['id']}"
    before = (await app.get(path, headers=bearer(tokens["admin"]))).json()
    worker = SocketWorker(app.asgi, authorization=f"Bearer {tokens['work']}")
    if registered:
        await worker.send({"type": "register", "group": "other"})
        assert (await worker.receive())["type"] == "registered"
    for type, fields in FRAMES.items():
        if fields is not None:
            await worker.send({"type": type, "taskId": before["id"], **fields})
    await worker.send({"type": "ping"})
    while (said := await worker.receive())["type"] != "pong":
        assert said["type"] == "error", said
    await app.settled()
    assert (await app.get(path, headers=bearer(tokens["admin"]))).json() == before
    assert (await app.get(f"{path}/logs", headers=bearer(tokens["admin"]))).json()["items"] == []
    await worker.close()
    await holder.close()
