"""Whose a task is: a key finds its own, and others' look like what never was (K-4 … K-7)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward.core.errors import NotFound
from onward.native.caller import Caller, Scope
from onward.native.session_owners import DAY_MS, SessionOwners
from tests.doors.test_keys import bearer, make_key
from tests.running_app import App, SocketWorker
from tests.support import wait_until

FLOW = {
    "start": "a",
    "nodes": {"a": {"kind": "approval", "params": {"reason": "may it?"}}},
    "edges": [],
}


class Keys:
    """An app with a key of each kind; `keys["ann"]` are the headers of that key."""

    def __init__(self, app: App, tokens: dict[str, str]) -> None:
        self.app = app
        self.tokens = tokens

    def __getitem__(self, name: str) -> dict[str, str]:
        return bearer(self.tokens[name])

    def id(self, name: str) -> str:
        return self.tokens[name].split("_")[1]

    async def submit(self, by: str, type: str = "echo", **more: Any) -> str:
        body = {"type": type, "payload": {"pin": "1234", "x": 1}, **more}
        response = await self.app.post("/api/v2/tasks", body, headers=self[by])
        assert response.status_code == 202, response.text
        return str(response.json()["id"])

    async def status(self, by: str, method: str, path: str, body: Any = None) -> int:
        response = await self.app.http.request(method, path, json=body, headers=self[by])
        return response.status_code


@pytest.fixture
async def keys(app: App) -> Keys:
    root = (await make_key(app, "root", "admin"))["token"]
    tokens = {"root": root}
    for name, scopes in {
        "ann": ["submit"],
        "bob": ["submit"],
        "reader": ["read"],
        "auditor": ["read", "reveal"],
        "operator": ["operate"],
        "approver": ["approve"],
        "both": ["submit", "approve"],
        "self": ["submit", "approve", "approve:own"],
        "gpu": ["work:gpu", "work:echo"],
        "worker": ["work"],
    }.items():
        tokens[name] = (await make_key(app, name, *scopes, by=root))["token"]
    return Keys(app, tokens)


@pytest.fixture
async def sensitive(app: App, keys: Keys) -> None:
    body = {"name": "echo", "task_types": ["echo"], "sensitive": ["pin"]}
    declared = await app.post("/api/v2/services", body, headers=keys["operator"])
    assert declared.status_code == 201, declared.text


@pytest.mark.contract("K-5")
async def test_another_keys_task_looks_like_one_that_never_was(app: App, keys: Keys) -> None:
    task = await keys.submit("ann")
    for suffix in ("", "/events", "/explain"):
        foreign = await app.get(f"/api/v2/tasks/{task}{suffix}", headers=keys["bob"])
        missing = await app.get(f"/api/v2/tasks/nosuch{suffix}", headers=keys["bob"])
        assert (foreign.status_code, missing.status_code) == (404, 404)
        assert foreign.json()["detail"] == missing.json()["detail"]
        assert await keys.status("ann", "GET", f"/api/v2/tasks/{task}{suffix}") == 200
    assert await keys.status("bob", "POST", f"/api/v2/tasks/{task}/cancel") == 404
    assert await keys.status("bob", "GET", f"/api/v1/tasks/{task}") == 404
    found = (await app.get(f"/api/v2/tasks/{task}", headers=keys["ann"])).json()
    assert found["owner"] == keys.id("ann")
    assert await keys.status("ann", "POST", f"/api/v2/tasks/{task}/cancel") == 200


@pytest.mark.contract("K-5")
async def test_lists_have_a_keys_own_or_all(app: App, keys: Keys) -> None:
    task = await keys.submit("ann")
    other = await keys.submit("bob")
    for path in ("/api/v2/tasks", "/api/v1/tasks/", f"/api/v2/tasks?id={task}&id={other}"):

        async def listed(by: str, path: str = path) -> set[str]:
            found = (await app.get(path, headers=keys[by])).json()
            items = found if isinstance(found, list) else found["items"]
            return {one.get("id") or one["task_id"] for one in items}

        assert await listed("ann") == {task}
        for by in ("reader", "auditor", "operator", "root"):
            assert await listed(by) == {task, other}


@pytest.mark.every_ledger
@pytest.mark.contract("K-5")
async def test_who_may_read_all_finds_what_one_key_handed_in(app: App, keys: Keys) -> None:
    mine, other = await keys.submit("ann"), await keys.submit("bob")
    path = f"/api/v2/tasks?owner={keys.id('ann')}"

    async def listed(by: str) -> list[str]:
        response = await app.get(path, headers=keys[by])
        assert response.status_code == 200, response.text
        return [task["id"] for task in response.json()["items"]]

    for by in ("ann", "reader", "operator"):
        assert await listed(by) == [mine]
    assert await keys.status("bob", "GET", path) == 403, "not bob's own tasks in their place"
    leaked = {"filter": {"owner": keys.id("ann")}}
    assert await keys.status("bob", "POST", "/api/v2/tasks/cancel", leaked) == 403
    assert await keys.status("operator", "POST", "/api/v2/tasks/cancel", leaked) == 202
    await wait_until(lambda: _is_canceled(app, keys, mine))
    assert (await app.get(f"/api/v2/tasks/{other}", headers=keys["bob"])).json()["state"] == (
        "queued"
    )


async def _is_canceled(app: App, keys: Keys, task: str) -> bool:
    found = (await app.get(f"/api/v2/tasks/{task}", headers=keys["reader"])).json()
    return bool(found["state"] == "canceled")


@pytest.mark.contract("K-5")
async def test_idempotency_keys_of_two_owners_never_meet(app: App, keys: Keys) -> None:
    first = await keys.submit("ann", idempotency_key="k")
    second = await keys.submit("bob", idempotency_key="k")
    assert first != second
    assert await keys.submit("ann", idempotency_key="k") == first
    shown = (await app.get(f"/api/v2/tasks/{first}", headers=keys["ann"])).json()
    assert shown["idempotency_key"] == "k"


@pytest.mark.contract("R-8")
async def test_a_session_is_the_first_keys_that_used_it(app: App, keys: Keys) -> None:
    task = await keys.submit("ann", session_id="s")
    body = {"type": "echo", "session_id": "s"}
    assert await keys.status("bob", "POST", "/api/v2/tasks", body) == 404
    for path in ("tasks", f"tasks/{task}", "notifications", "preferences", ""):
        whole = f"/api/v2/sessions/s/{path}".rstrip("/")
        assert await keys.status("bob", "GET", whole) == 404, path
        assert await keys.status("ann", "GET", whole) == 200, path
        assert await keys.status("reader", "GET", whole) == 200, path
    mine = (await app.get("/api/v2/sessions", headers=keys["ann"])).json()["items"]
    assert [one["id"] for one in mine] == ["s"]
    assert (await app.get("/api/v2/sessions", headers=keys["bob"])).json()["items"] == []
    tool = "/api/v2/tools/list_user_tasks_tool?session_id=s"
    assert await keys.status("bob", "POST", tool, {}) == 404
    assert await keys.status("ann", "POST", tool, {}) == 200
    assert await keys.status("bob", "POST", "/mcp?session_id=s", {}) == 404


@pytest.mark.contract("K-5", "R-8")
@pytest.mark.parametrize("path", ["", "/tasks", "/notifications", "/preferences"])
async def test_to_read_a_session_is_not_to_take_it(app: App, keys: Keys, path: str) -> None:
    """Else a key could take the names of others' sessions by looking at them."""
    whole = f"/api/v2/sessions/s{path}"
    assert await keys.status("bob", "GET", whole) in (200, 404)
    assert await keys.status("bob", "GET", "/mcp?session_id=s") == 405
    await keys.submit("ann", session_id="s")
    assert await keys.status("bob", "GET", whole) == 404
    assert await keys.status("ann", "GET", whole) == 200


@pytest.mark.contract("K-5", "R-8")
async def test_a_session_begins_anew_with_the_key_that_takes_it(app: App) -> None:
    """What was sent to those before it is not its own, and what it is sent goes not to them."""
    path = "/api/v2/sessions/s"
    worker = await app.worker(services=["echo"])
    theirs = await app.submit("echo", payload={}, session_id="s")
    await worker.answer((await worker.task())["taskId"], "before")
    hook = {"url": "http://127.0.0.1:9/theirs"}
    assert (await app.http.put(f"{path}/preferences", json={"webhook": hook})).status_code == 200
    await wait_until(lambda: _notified(app, {}), holds=bool)
    tokens = {"root": (await make_key(app, "root", "admin"))["token"]}
    for name in ("ann", "bob"):
        made = await make_key(app, name, "submit", by=tokens["root"])
        tokens[name] = made["token"]
    keys = Keys(app, tokens)
    assert await _notified(app, keys["bob"]) == [], "nothing to one that only looks"
    assert await _webhook(app, keys["bob"]) is None
    assert await _webhook(app, keys["root"]) is not None
    await keys.submit("ann", session_id="s")
    assert await _notified(app, keys["ann"]) == []
    assert await _webhook(app, keys["ann"]) is None
    assert await keys.status("ann", "GET", f"{path}/tasks/{theirs}") == 404


@pytest.mark.contract("K-5", "R-8")
async def test_a_session_that_was_left_for_long_is_nobodys_on_every_server(
    app: App, keys: Keys
) -> None:
    here = SessionOwners(app.onward.backend, app.clock)
    there = SessionOwners(app.onward.backend, app.clock)
    ann, bob = [Caller(name, name, frozenset({Scope.SUBMIT})) for name in ("ann", "bob")]
    await here.use(ann, "s")
    for _ in range(80):  # looked at, it stays hers
        app.clock.advance(2 * DAY_MS)
        assert await here.look(ann, "s")
    with pytest.raises(NotFound):
        await there.use(bob, "s")
    app.clock.advance(91 * DAY_MS)
    await there.use(bob, "s")
    with pytest.raises(NotFound):
        await here.look(ann, "s")
    assert not await here.owns(ann, "s")


async def _notified(app: App, headers: dict[str, str]) -> list[Any]:
    path = "/api/v2/sessions/s/notifications?peek=true"
    items: list[Any] = (await app.get(path, headers=headers)).json()["items"]
    return items


async def _webhook(app: App, headers: dict[str, str]) -> Any:
    return (await app.get("/api/v2/sessions/s/preferences", headers=headers)).json()["webhook"]


@pytest.mark.contract("K-4")
async def test_sensitive_parts_are_masked_for_those_who_may_not_see_them(
    app: App, keys: Keys, sensitive: None
) -> None:
    task = await keys.submit("ann")

    async def pin(by: str, path: str) -> str:
        found = (await app.get(path, headers=keys[by])).json()
        return str((found.get("payload") or found["items"][0]["payload"])["pin"])

    for path in (f"/api/v2/tasks/{task}", "/api/v2/tasks"):
        assert await pin("ann", path) == "1234"
        assert await pin("auditor", path) == "1234"
        assert await pin("reader", path) == "•••"
        assert await pin("operator", path) == "•••"
        assert await pin("root", path) == "1234", "an admin may all of it"
    details = (await app.get(f"/api/v1/tasks/{task}", headers=keys["reader"])).json()
    assert details["payload"]["pin"] == "•••"


@pytest.mark.contract("K-4")
async def test_lists_without_owners_need_read(app: App, keys: Keys) -> None:
    for path in ("workers", "queues", "schedules", "live", "flows", "log/readers"):
        response = await app.get(f"/api/v2/{path}", headers=keys["ann"])
        assert response.status_code == 403
        assert "read" in response.json()["detail"]
    assert await keys.status("ann", "GET", "/metrics") == 403
    assert await keys.status("ann", "GET", "/api/v2/services") == 200
    assert await keys.status("operator", "GET", "/api/v2/queues") == 200
    assert await keys.status("operator", "GET", "/metrics") == 403


@pytest.mark.contract("K-4")
async def test_who_sees_a_task_may_not_always_change_it(app: App, keys: Keys) -> None:
    task = await keys.submit("ann")
    both = (await make_key(app, "rw", "read", "submit", by=keys.tokens["root"]))["token"]
    refused = await app.http.post(f"/api/v2/tasks/{task}/cancel", headers=bearer(both))
    assert refused.status_code == 403
    assert "operate" in refused.json()["detail"]
    assert await keys.status("ann", "POST", f"/api/v2/tasks/{task}/retry") == 403
    assert await keys.status("operator", "POST", f"/api/v2/tasks/{task}/cancel") == 200


@pytest.mark.contract("K-6")
async def test_a_key_cannot_approve_what_it_handed_in(app: App, keys: Keys) -> None:
    task = await keys.submit("both", requires_approval=True)
    own = await app.post(f"/api/v2/approvals/{task}/approve", {}, headers=keys["both"])
    assert (own.status_code, own.json()["code"]) == (403, "own_approval")
    body = {"by": "somebody else"}
    done = await app.post(f"/api/v2/approvals/{task}/approve", body, headers=keys["approver"])
    assert (done.status_code, done.json()["by"]) == (200, "approver")
    alone = await keys.submit("self", requires_approval=True)
    assert await keys.status("self", "POST", f"/api/v2/approvals/{alone}/approve", {}) == 200
    third = await keys.submit("root", requires_approval=True)
    assert await keys.status("root", "POST", f"/api/v2/approvals/{third}/approve", {}) == 403
    audit = await app.get("/api/v2/audit?action=approval.decide", headers=keys["root"])
    assert [one["by"] for one in audit.json()["items"]] == ["self", "approver"]


@pytest.mark.contract("K-6")
async def test_what_a_flow_asks_belongs_to_who_started_it(app: App, keys: Keys) -> None:
    made = {"name": "ask", "definition": FLOW}
    assert await keys.status("operator", "POST", "/api/v2/flows", made) == 200
    started = await app.post("/api/v2/runs", {"flow": "ask"}, headers=keys["both"])
    run = started.json()["id"]

    async def asked() -> list[dict[str, Any]]:
        found = await app.get("/api/v2/approvals", headers=keys["approver"])
        items: list[dict[str, Any]] = found.json()["items"]
        return items

    (approval,) = await wait_until(asked)
    assert approval["task_id"] == run
    path = f"/api/v2/approvals/{approval['id']}/approve"
    assert await keys.status("both", "POST", path, {}) == 403
    assert await keys.status("approver", "GET", f"/api/v2/runs/{run}") == 200
    assert await keys.status("bob", "GET", f"/api/v2/runs/{run}") == 404
    assert await keys.status("bob", "GET", f"/tasks/get?id={run}") == 404
    assert await keys.status("both", "GET", f"/tasks/get?id={run}") == 200
    assert await keys.status("bob", "POST", f"/tasks/cancel?id={run}") == 404
    assert await keys.status("approver", "POST", path, {}) == 200


@pytest.mark.contract("K-5")
async def test_the_dispatcher_door_shows_a_key_its_own(app: App, keys: Keys) -> None:
    body = {"data": 1, "async": True}
    sent = await app.post("/api/openai", body, headers=keys["ann"])
    path = f"/api/task/{sent.json()['taskId']}"
    assert await keys.status("ann", "GET", path) == 200
    foreign = await app.get(path, headers=keys["bob"])
    assert (foreign.status_code, foreign.json()) == (404, {"error": "Task not found"})


async def connected(app: App, token: str, **register: Any) -> SocketWorker:
    worker = SocketWorker(app.asgi, authorization=f"Bearer {token}")
    await worker.send({"type": "register", **register})
    return worker


@pytest.mark.contract("K-7")
async def test_a_worker_registers_for_what_its_key_may_serve(app: App, keys: Keys) -> None:
    worker = await connected(
        app, keys.tokens["gpu"], workerId="w", group="gpu", services=["echo", "mail"]
    )
    assert (await worker.receive())["type"] == "registered"
    refused = await worker.receive()
    assert refused["type"] == "error"
    assert "mail" in refused["message"]
    assert "echo" not in refused["message"]
    listed = (await app.get("/api/v2/workers", headers=keys["reader"])).json()["items"]
    assert [set(one["queues"]) for one in listed] == [{"group:gpu", "echo"}]
    nothing = await connected(app, keys.tokens["gpu"], group="default")
    assert (await nothing.receive())["type"] == "error"
    thief = await connected(app, keys.tokens["worker"], workerId="w", services=["echo"])
    assert "another key's" in (await thief.receive())["message"]
    for one in (worker, nothing, thief):
        await one.close()


@pytest.mark.contract("K-3")
@pytest.mark.parametrize("name", ["ann", "nobody"])
async def test_a_socket_is_refused_at_the_handshake(app: App, keys: Keys, name: str) -> None:
    worker = SocketWorker(app.asgi, authorization=f"Bearer {keys.tokens.get(name, 'x')}")
    with pytest.raises(ConnectionError):
        await worker.receive()
    assert worker.closed is not None
    await worker.close()


@pytest.mark.contract("K-7")
async def test_an_http_worker_is_its_keys_own(app: App, keys: Keys) -> None:
    body = {"id": "h", "url": "http://127.0.0.1:9", "services": ["echo", "mail"]}
    refused = await app.post("/workers/register", body, headers=keys["gpu"])
    assert refused.status_code == 403
    assert "mail" in refused.json()["error"]
    done = await app.post("/workers/register", {**body, "services": ["echo"]}, headers=keys["gpu"])
    assert done.json().keys() == {"id", "secret"}
    assert await keys.status("worker", "POST", "/workers/register", body) == 409
    assert await keys.status("worker", "POST", "/workers/heartbeat", {"id": "h"}) == 404
    assert await keys.status("worker", "POST", "/workers/deregister", {"id": "h"}) == 404
    assert await keys.status("gpu", "POST", "/workers/heartbeat", {"id": "h"}) == 200


@pytest.mark.contract("K-7")
async def test_a_worker_declares_only_what_it_serves(app: App, keys: Keys) -> None:
    mail = {"name": "mail", "task_types": ["mail"]}
    assert await keys.status("gpu", "POST", "/api/v2/services?by=worker", mail) == 403
    stolen = {"name": "echo", "task_types": ["mail"]}
    assert await keys.status("gpu", "POST", "/api/v2/services?by=worker", stolen) == 403
    undone = {"name": "echo", "task_types": ["echo"], "compensate": "mail"}
    assert await keys.status("gpu", "POST", "/api/v2/services?by=worker", undone) == 403
    own = {"name": "echo", "task_types": ["echo"]}
    assert await keys.status("gpu", "POST", "/api/v2/services?by=worker", own) == 201
    assert await keys.status("gpu", "POST", "/api/v2/services", own) == 403, "an operator's"


@pytest.mark.contract("K-4")
async def test_a_worker_reports_only_on_what_it_may_serve(app: App, keys: Keys) -> None:
    task = await keys.submit("ann", "mail")
    report = {"fence": 0, "progress": 0.5}
    assert await keys.status("gpu", "POST", f"/api/v2/tasks/{task}/progress", report) == 404
    assert await keys.status("worker", "POST", f"/api/v2/tasks/{task}/progress", report) == 409
    assert await keys.status("ann", "POST", f"/api/v2/tasks/{task}/progress", report) == 403


@pytest.mark.contract("K-9")
async def test_a_revoked_keys_connections_are_closed(app: App, keys: Keys) -> None:
    worker = await connected(app, keys.tokens["gpu"], group="gpu")
    assert (await worker.receive())["type"] == "registered"
    id = keys.id("gpu")
    assert (await app.http.delete(f"/api/v2/keys/{id}", headers=keys["root"])).status_code == 204
    with pytest.raises(ConnectionError):
        await worker.receive()
    assert worker.closed == {"type": "websocket.close", "code": 1008}
    await worker.close()
    assert (await app.get("/api/v2/workers", headers=keys["reader"])).json()["items"] == []


@pytest.mark.contract("K-8")
async def test_acts_are_audited_with_the_keys_name(app: App, keys: Keys) -> None:
    task = await keys.submit("ann")
    by = keys["operator"]
    await app.http.post(f"/api/v2/tasks/{task}/cancel", headers=by)
    await app.http.post(f"/api/v2/tasks/{task}/retry", headers=by)
    await app.post("/api/v2/queues/echo/pause", {"reason": "mending"}, headers=by)
    await app.http.post("/api/v2/queues/echo/resume", headers=by)
    await app.post("/api/v2/services", {"name": "m", "task_types": ["m"]}, headers=by)
    await app.post("/api/v2/flows", {"name": "f", "definition": FLOW}, headers=by)
    timed = {"name": "s", "type": "echo", "payload": {}, "every_ms": 60_000}
    await app.post("/api/v2/schedules", timed, headers=by)
    found = await app.get("/api/v2/audit?by=operator", headers=keys["root"])
    items = found.json()["items"]
    assert [(one["action"], one["target"]) for one in reversed(items)] == [
        ("task.cancel", task),
        ("task.replay", task),
        ("queue.pause", "echo"),
        ("queue.resume", "echo"),
        ("service.declare", "m"),
        ("flow.publish", "f"),
        ("schedule.change", "s"),
    ]


@pytest.mark.contract("K-3")
async def test_a_browsers_socket_brings_its_token_as_a_subprotocol(app: App, keys: Keys) -> None:
    offered = ["onward", f"bearer.{keys.tokens['gpu']}"]
    worker = SocketWorker(app.asgi, subprotocols=offered)
    await worker.send({"type": "register", "group": "gpu"})
    assert (await worker.receive())["type"] == "registered"
    assert worker.accepted == {"type": "websocket.accept", "subprotocol": "onward"} | {
        "headers": worker.accepted["headers"]
    }
    await worker.close()


@pytest.mark.contract("K-9")
async def test_a_revoked_keys_streams_end(app: App, keys: Keys) -> None:
    task = await keys.submit("ann")
    headers = {**keys["ann"], "accept": "text/event-stream"}
    stream = asyncio.ensure_future(app.get(f"/api/v2/tasks/{task}/events", headers=headers))
    waits = asyncio.ensure_future(
        app.get(f"/api/v2/tasks/{task}?wait_ms=60000", headers=keys["ann"])
    )
    await app.settled()
    assert not stream.done()
    assert not waits.done()
    await app.http.delete(f"/api/v2/keys/{keys.id('ann')}", headers=keys["root"])
    await wait_until(lambda: stream.done() and waits.done())
    await asyncio.gather(stream, return_exceptions=True)
    assert (await waits).status_code == 401


@pytest.mark.contract("K-6")
async def test_a_fork_past_an_approval_is_a_decision(app: App, keys: Keys) -> None:
    """Else a key that may fork, and may not approve, would do without the approval."""
    nodes = {"a": {"kind": "approval"}, "b": {"kind": "executor", "service": "echo"}}
    edges = [{"from": "a", "to": "b"}]
    made = {"name": "ask", "definition": {"start": "a", "nodes": nodes, "edges": edges}}
    assert await keys.status("operator", "POST", "/api/v2/flows", made) == 200
    for name, scopes in {"own": ["submit"], "other": []}.items():
        key = await make_key(app, name, "operate", "approve", *scopes, by=keys.tokens["root"])
        keys.tokens[name] = key["token"]
    run = (await app.post("/api/v2/runs", {"flow": "ask"}, headers=keys["own"])).json()["id"]
    path, body = f"/api/v2/runs/{run}/fork", {"from_node": "b", "anyway": True}
    refused = await app.post(path, body, headers=keys["operator"])
    assert (refused.status_code, "approve" in refused.json()["detail"]) == (403, True)
    own = await app.post(path, body, headers=keys["own"])
    assert (own.status_code, own.json()["code"]) == (403, "own_approval")
    assert await keys.status("operator", "POST", path, {"from_node": "a"}) in (200, 202)
    assert await keys.status("other", "POST", path, body) in (200, 202)


@pytest.mark.contract("K-9")
async def test_a_worker_of_a_dead_key_is_called_no_more(app: App, keys: Keys) -> None:
    body = {"id": "h", "url": "http://127.0.0.1:9", "services": ["echo"]}
    first = await app.post("/workers/register", body, headers=keys["gpu"])
    path = "/workers/allocate?service=echo"
    assert await keys.status("reader", "GET", path) == 200
    await app.http.delete(f"/api/v2/keys/{keys.id('gpu')}", headers=keys["root"])
    assert await keys.status("reader", "GET", path) == 404

    async def listed() -> Any:
        return (await app.get("/api/v2/workers", headers=keys["reader"])).json()["items"]

    await wait_until(listed, holds=lambda items: items == [])
    # The same worker comes back with another key; its calls have another secret.
    again = await app.post("/workers/register", body, headers=keys["worker"])
    assert again.status_code == 200, again.text
    assert again.json()["secret"] != first.json()["secret"]
    assert await keys.status("reader", "GET", path) == 200


@pytest.mark.contract("K-9", "R-7")
async def test_what_a_revoked_key_has_made_goes_on(app: App, keys: Keys) -> None:
    """Its schedules and what it handed in; nothing new comes from it, and it sees none of it."""
    timed = {"name": "nightly", "type": "echo", "payload": {}, "every_ms": 60_000}
    assert await keys.status("operator", "POST", "/api/v2/schedules", timed) == 201
    task = await keys.submit("ann", delay_ms=60_000)
    for name in ("operator", "ann"):
        path = f"/api/v2/keys/{keys.id(name)}"
        assert (await app.http.delete(path, headers=keys["root"])).status_code == 204
    await app.advance(61_000)
    await app.onward.schedules.scheduler.turn()
    page = await app.get("/api/v2/tasks?type=echo", headers=keys["reader"])
    found = {one["id"]: one for one in page.json()["items"]}
    assert found.pop(task)["state"] == "queued"
    (made,) = found.values()
    assert (made["state"], made["owner"]) == ("queued", keys.id("operator"))
    for name in ("operator", "ann"):
        assert await keys.status(name, "GET", "/api/v2/schedules") == 401
    # Whoever replaces it is its owner from then on.
    assert await keys.status("root", "PUT", "/api/v2/schedules/nightly", timed) == 200
    again = await app.http.post("/api/v2/schedules/nightly/trigger", headers=keys["root"])
    assert again.json()["owner"] == keys.id("root")
