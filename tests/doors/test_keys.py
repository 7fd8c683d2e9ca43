"""Keys: made, used, refused, revoked; the page's log-in; what is written down (K-1 … K-3, K-8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from onward.core.contract import Documents
from onward.core.errors import Conflict
from onward.native.key_store import KeyStore
from tests.running_app import App, running_app
from tests.servers import fresh_url, postgres_ledger_url
from tests.support import wait_until

DAY_MS = 86_400_000


async def make_key(app: App, name: str, *scopes: str, by: str = "", **more: Any) -> dict[str, Any]:
    """A key as it is returned once; the first one of an app must have the scope admin."""
    body = {"name": name, "scopes": list(scopes), **more}
    response = await app.post("/api/v2/keys", body, headers=bearer(by) if by else {})
    assert response.status_code == 201, response.text
    found: dict[str, Any] = response.json()
    return found


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
async def admin(app: App) -> str:
    """The token of the first key: from here on the app is closed."""
    return str((await make_key(app, "root", "admin"))["token"])


LEDGERS: dict[str, Callable[[], str]] = {
    "sqlite": lambda: "sqlite:///:memory:",
    "redis": lambda: fresh_url("redis7"),
    "postgres": lambda: postgres_ledger_url("postgres15"),
}


class Paused:
    """Documents, for a server that stands still after so many writes."""

    def __init__(self, documents: Documents, writes: int) -> None:
        self._documents = documents
        self._left = writes
        self.reached, self.goes_on = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._documents, name)

    async def put(self, *document: Any, **more: Any) -> Any:
        if not self._left:
            self.reached.set()
            await self.goes_on.wait()
        self._left -= 1
        return await self._documents.put(*document, **more)


@pytest.mark.contract("K-1")
@pytest.mark.parametrize("ledger", LEDGERS)
@pytest.mark.parametrize("writes", [0, 1])
async def test_two_admins_that_revoke_each_other_do_not_leave_none(
    ledger: str, writes: int
) -> None:
    """On two servers, one of which stands still for a day before its next write."""
    async with running_app(ledger=LEDGERS[ledger]()) as app:
        onward = app.onward
        admin = await make_key(app, "root", "admin")
        other = await make_key(app, "other", "admin", by=admin["token"])
        slow = KeyStore(onward.backend, onward.clock, onward.trail)
        slow._documents = paused = Paused(onward.backend.documents, writes)
        revoking = asyncio.ensure_future(slow.revoke(admin["id"]))
        await paused.reached.wait()
        app.clock.advance(DAY_MS)
        headers = bearer(other["token"])
        gone = await app.http.delete(f"/api/v2/keys/{other['id']}", headers=headers)
        paused.goes_on.set()
        refused = isinstance((await asyncio.gather(revoking, return_exceptions=True))[0], Conflict)
        assert (gone.status_code, refused) == ((409, False) if writes else (204, True))
        live = [key.id for key in await onward.keys.all() if key.revoked_at is None]
        assert live == [other["id"] if writes else admin["id"]]


@pytest.mark.contract("K-1", "K-9")
@pytest.mark.parametrize("writes", [1, 2])
async def test_who_makes_the_first_key_is_told_its_token(app: App, writes: int) -> None:
    """However its writes and the server's own readings of the keys meet."""
    keys = app.onward.keys
    keys._documents = paused = Paused(app.onward.backend.documents, writes)
    making = asyncio.ensure_future(make_key(app, "root", "admin"))
    await paused.reached.wait()
    await keys.refresh()
    assert not keys.open
    await app.settled()
    paused.goes_on.set()
    token = (await making)["token"]
    assert (await app.get("/api/v2/me", headers=bearer(token))).status_code == 200


@pytest.mark.contract("K-1", "K-9")
async def test_a_key_that_revokes_itself_is_answered(app: App, admin: str) -> None:
    other = await make_key(app, "other", "admin", by=admin)
    trail = app.onward.trail
    trail._documents = paused = Paused(app.onward.backend.documents, 0)
    path = f"/api/v2/keys/{other['id']}"
    revoking = asyncio.ensure_future(app.http.delete(path, headers=bearer(other["token"])))
    await paused.reached.wait()
    await app.onward.keys.refresh()
    paused.goes_on.set()
    assert (await revoking).status_code == 204
    assert (await app.get("/api/v2/me", headers=bearer(other["token"]))).status_code == 401


@pytest.mark.contract("K-1")
async def test_an_admin_key_is_dead_though_the_server_died_while_it_revoked_it(
    app: App, admin: str
) -> None:
    onward = app.onward
    other = await make_key(app, "other", "admin", by=admin)
    slow = KeyStore(onward.backend, onward.clock, onward.trail)
    write = slow._put

    async def dies(key: Any, now: int) -> None:
        raise asyncio.CancelledError

    slow._put = dies  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await slow.revoke(other["id"])
    await onward.keys.refresh()
    assert (await app.get("/api/v2/me", headers=bearer(other["token"]))).status_code == 401
    slow._put = write  # type: ignore[method-assign]
    assert (await slow.revoke(other["id"])).revoked_at == app.clock.now()
    kept = await onward.backend.documents.get("key", other["id"], now=app.clock.now())
    assert kept is not None
    assert "revoked_at" in kept.body


@pytest.mark.contract("K-2")
async def test_without_keys_every_caller_is_the_operator(app: App) -> None:
    assert (await app.get("/api/v2/me")).json() == {"open": True, "key": None}
    assert (await app.get("/api/v2/keys")).json() == {"items": [], "next": None}


@pytest.mark.contract("K-1")
async def test_the_first_key_must_be_an_admin(app: App) -> None:
    response = await app.post("/api/v2/keys", {"name": "a", "scopes": ["submit"]})
    assert response.status_code == 422
    assert (await app.get("/api/v2/me")).json()["open"]


@pytest.mark.contract("K-1")
async def test_a_key_is_shown_once_and_closes_the_server(app: App) -> None:
    made = await make_key(app, "root", "admin")
    assert made.keys() == {"id", "name", "scopes", "token", "expires_at"}
    assert made["token"].startswith(f"onward_{made['id']}_")
    assert (await app.get("/api/v2/me")).status_code == 401
    listed = await app.get("/api/v2/keys", headers=bearer(made["token"]))
    (item,) = listed.json()["items"]
    assert (item["id"], item["name"], item["scopes"]) == (made["id"], "root", ["admin"])
    assert made["token"].rpartition("_")[2] not in listed.text


@pytest.mark.contract("K-1")
@pytest.mark.parametrize("scope", ["root", "work:", "approve:all", "Submit"])
async def test_an_unknown_scope_is_refused_by_name(app: App, admin: str, scope: str) -> None:
    body = {"name": "x", "scopes": ["submit", scope]}
    response = await app.post("/api/v2/keys", body, headers=bearer(admin))
    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"] == "/scopes/1"


@pytest.mark.contract("K-1")
async def test_names_of_live_keys_are_unique(app: App, admin: str) -> None:
    first = await make_key(app, "web", "submit", by=admin)
    again = {"name": "web", "scopes": ["submit"]}
    assert (await app.post("/api/v2/keys", again, headers=bearer(admin))).status_code == 409
    gone = await app.http.delete(f"/api/v2/keys/{first['id']}", headers=bearer(admin))
    assert gone.status_code == 204
    assert (await make_key(app, "web", "submit", by=admin))["id"] != first["id"]


@pytest.mark.contract("K-1")
async def test_the_last_admin_key_cannot_be_revoked_through_a_server(app: App, admin: str) -> None:
    id = admin.split("_")[1]
    refused = await app.http.delete(f"/api/v2/keys/{id}", headers=bearer(admin))
    assert refused.status_code == 409
    other = await make_key(app, "second", "admin", by=admin)
    done = await app.http.delete(f"/api/v2/keys/{id}", headers=bearer(other["token"]))
    assert done.status_code == 204
    assert (await app.get("/api/v2/me", headers=bearer(admin))).status_code == 401


OWN_FORMS = [
    ("POST", "/api/openai", {"error": "a key is needed here"}),
    ("GET", "/api/task/x", {"error": "a key is needed here"}),
    ("GET", "/flows", {"error": "a key is needed here"}),
    ("POST", "/workers/register", {"error": "a key is needed here"}),
]


@pytest.mark.contract("K-3")
@pytest.mark.parametrize(("method", "path", "body"), OWN_FORMS)
async def test_no_key_is_401_in_the_doors_own_form(
    app: App, admin: str, method: str, path: str, body: dict[str, Any]
) -> None:
    response = await app.http.request(method, path)
    assert (response.status_code, response.json()) == (401, body)
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.contract("K-3")
async def test_the_other_doors_have_their_forms_too(app: App, admin: str) -> None:
    assert "detail" in (await app.get("/api/v1/tasks/")).json()
    chat = await app.post("/v1/chat/completions", {})
    assert (chat.status_code, chat.json()["error"]["code"]) == (401, "invalid_api_key")
    reader = await make_key(app, "reader", "read", by=admin)
    chat = await app.post("/v1/chat/completions", {}, headers=bearer(reader["token"]))
    assert (chat.status_code, chat.json()["error"]["code"]) == (403, "insufficient_scope")
    problem = (await app.get("/api/v2/tasks")).json()
    assert (problem["status"], problem["code"]) == (401, "unauthorized")
    mcp = await app.post("/mcp", {}, headers=bearer(reader["token"]))
    assert (mcp.status_code, mcp.json()["code"]) == (403, "forbidden")
    submit = await app.post("/api/v2/tasks", {"type": "x"}, headers=bearer(reader["token"]))
    assert submit.status_code == 403
    assert "submit" in submit.json()["detail"], "it names the scope that is missing"


@pytest.mark.contract("K-3")
async def test_a_token_comes_as_bearer_or_as_api_key(app: App, admin: str) -> None:
    for headers in (bearer(admin), {"x-api-key": admin}, {"authorization": f"bearer {admin}"}):
        assert (await app.get("/api/v2/me", headers=headers)).status_code == 200
    for token in ("", "x", admin[:-1], f"{admin}0", admin.replace("onward", "inward"), "onward__"):
        assert (await app.get("/api/v2/me", headers=bearer(token))).status_code == 401
    twice = [("x-api-key", admin), ("x-api-key", "other")]
    assert (await app.get("/api/v2/me", headers=twice)).status_code == 400


@pytest.mark.contract("K-2")
async def test_what_is_open_stays_open(app: App, admin: str) -> None:
    assert (await app.get("/ready")).status_code == 200
    assert (await app.get("/health")).status_code in (200, 503)
    assert (await app.get("/ui")).status_code == 200
    assert (await app.http.head("/ready")).status_code == 200
    assert (await app.post("/ready", {})).status_code == 401, "of another method"
    assert (await app.get("/openapi.json")).status_code == 401


@pytest.mark.contract("K-3")
async def test_the_page_logs_in_with_a_cookie(app: App, admin: str) -> None:
    assert (await app.post("/api/v2/login", {"token": "no"})).status_code == 401
    response = await app.post("/api/v2/login", {"token": admin})
    assert response.json()["key"]["name"] == "root"
    cookie = response.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Secure" not in cookie, "this is no TLS"
    assert (await app.get("/api/v2/me")).status_code == 200, "the cookie is enough"
    assert (await app.http.post("/api/v2/logout")).status_code == 204
    assert (await app.get("/api/v2/me")).status_code == 401


@pytest.mark.contract("K-3")
async def test_under_tls_the_cookie_is_secure(app: App, admin: str) -> None:
    transport = httpx2.ASGITransport(app=app.asgi)
    async with httpx2.AsyncClient(transport=transport, base_url="https://127.0.0.1") as https:
        response = await https.post("/api/v2/login", json={"token": admin})
        assert response.headers["set-cookie"].endswith("; Secure")
        assert (await https.get("/api/v2/me")).status_code == 200
        assert (await https.post("/api/v2/logout")).status_code == 204
        assert (await https.get("/api/v2/me")).status_code == 401


@pytest.mark.contract("K-3")
async def test_under_tls_another_host_of_the_domain_logs_nobody_in(app: App, admin: str) -> None:
    """A cookie that it sets for the whole domain comes here too: its key would get what a person
    hands in on the page. The prefix is one that browsers let nobody else set.
    """
    transport = httpx2.ASGITransport(app=app.asgi)
    async with httpx2.AsyncClient(transport=transport, base_url="https://127.0.0.1") as https:
        tossed = {"cookie": f"onward_key={admin}"}
        assert (await https.get("/api/v2/me", headers=tossed)).status_code == 401
        own = {"cookie": f"onward_key=other; __Host-onward_key={admin}"}
        assert (await https.get("/api/v2/me", headers=own)).status_code == 200


@pytest.mark.contract("K-9")
async def test_a_key_is_dead_when_its_time_is_over(app: App, admin: str) -> None:
    until = app.clock.now() + 1_000
    made = await make_key(app, "short", "read", by=admin, expires_at=until)
    assert made["expires_at"] == until
    assert (await app.get("/api/v2/me", headers=bearer(made["token"]))).status_code == 200
    app.clock.advance(1_000)
    assert (await app.get("/api/v2/me", headers=bearer(made["token"]))).status_code == 401


@pytest.mark.contract("K-9")
async def test_a_key_in_use_is_dead_at_once_where_it_is_revoked(app: App, admin: str) -> None:
    made = await make_key(app, "web", "submit", by=admin)
    token = bearer(made["token"])
    for _ in range(3):
        assert (await app.get("/api/v2/me", headers=token)).status_code == 200
    await app.http.delete(f"/api/v2/keys/{made['id']}", headers=bearer(admin))
    refused = await app.get("/api/v2/me", headers=token)
    assert (refused.status_code, refused.json()["detail"]) == (401, "this key is revoked")


@pytest.mark.contract("K-10")
async def test_a_key_makes_as_many_calls_as_its_rate_allows(app: App, admin: str) -> None:
    rate = {"count": 2, "per_ms": 4_000}
    token = bearer((await make_key(app, "slow", "read", by=admin, rate=rate))["token"])
    assert [(await app.get("/api/v2/me", headers=token)).status_code for _ in range(3)] == [
        200, 200, 429,
    ]  # fmt: skip
    refused = await app.get("/api/v2/me", headers=token)
    assert (refused.json()["code"], refused.headers["retry-after"]) == ("rate_limited", "2")
    app.clock.advance(2_000)
    assert (await app.get("/api/v2/me", headers=token)).status_code == 200
    assert (await app.get("/api/v2/me", headers=bearer(admin))).status_code == 200


@pytest.mark.contract("K-2")
async def test_a_key_for_containers_comes_from_the_environment() -> None:
    token = "a-token-of-at-least-thirty-two-characters"
    async with running_app(admin_key=token) as app:
        me = await app.get("/api/v2/me", headers=bearer(token))
        assert me.json()["key"] == {"id": "admin", "name": "admin", "scopes": ["admin"]}
        assert (await app.get("/api/v2/me")).status_code == 401
        await make_key(app, "web", "submit", by=token)


@pytest.mark.contract("K-2")
async def test_a_ledger_that_had_an_admin_key_is_closed_for_every_server(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    url = f"sqlite:///{tmp_path_factory.mktemp('ledger')}/onward.db"
    async with running_app(ledger=url, admin_key="x" * 32):
        pass
    async with running_app(ledger=url) as app:
        assert (await app.get("/api/v2/me")).status_code == 401


@pytest.mark.contract("K-8")
async def test_keys_and_logins_are_audited(app: App, admin: str) -> None:
    made = await make_key(app, "web", "submit", by=admin)
    app.clock.advance(DAY_MS)
    await app.post("/api/v2/login", {"token": admin})
    await app.http.delete(f"/api/v2/keys/{made['id']}", headers=bearer(admin))
    found = (await app.get("/api/v2/audit", headers=bearer(admin))).json()["items"]
    assert [(one["by"], one["action"]) for one in found] == [
        ("root", "key.revoke"), ("root", "login"), ("root", "key.create"), (None, "key.create"),
    ]  # fmt: skip
    page = await app.get("/api/v2/audit?limit=1&by=root&action=key.create", headers=bearer(admin))
    assert page.json() == {"items": [found[2]], "next": None}
    first = (await app.get("/api/v2/audit?limit=3", headers=bearer(admin))).json()
    rest = await app.get(f"/api/v2/audit?cursor={first['next']}", headers=bearer(admin))
    assert first["items"] + rest.json()["items"] == found
    since = await app.get(f"/api/v2/audit?since={found[1]['at']}", headers=bearer(admin))
    assert since.json()["items"] == found[:2]


@pytest.mark.contract("K-8")
async def test_the_audit_is_kept_for_ninety_days(app: App, admin: str) -> None:
    app.clock.advance(91 * DAY_MS)
    assert (await app.get("/api/v2/audit", headers=bearer(admin))).json()["items"] == []


@pytest.mark.contract("K-8")
async def test_refusals_are_counted(app: App, admin: str) -> None:
    await app.get("/api/v2/me")
    await app.get("/api/v2/me", headers=bearer("nonsense"))
    figures = (await app.get("/metrics", headers=bearer(admin))).text
    assert 'onward_refused_total{reason="no_token"} 1.0' in figures
    assert 'onward_refused_total{reason="unknown"} 1.0' in figures
    assert 'onward_refused_total{reason="scope"} 0.0' in figures


@pytest.mark.contract("K-9")
async def test_another_server_learns_of_a_key_and_of_its_end() -> None:
    """Both on one ledger: each reads it again every second."""
    url = fresh_url("redis7")
    async with running_app(ledger=url) as one, running_app(ledger=url) as other:
        admin = (await make_key(one, "root", "admin"))["token"]

        async def answers(status: int, token: str) -> bool:
            response = await other.get("/api/v2/me", headers=bearer(token))
            return response.status_code == status

        await wait_until(lambda: answers(401, "nonsense"))
        made = await make_key(one, "web", "submit", by=admin)
        await wait_until(lambda: answers(200, made["token"]))
        await one.http.delete(f"/api/v2/keys/{made['id']}", headers=bearer(admin))
        await wait_until(lambda: answers(401, made["token"]))


@pytest.mark.contract("K-2")
async def test_the_first_key_ends_what_was_open_before_it(app: App) -> None:
    """Else a caller without a key would read on, and a worker without one be given tasks."""
    registered = {"url": "http://127.0.0.1:9", "services": ["echo"]}
    assert (await app.post("/workers/register", registered)).status_code == 200
    worker = await app.worker(group="gpu")
    task = await app.submit("held", requires_approval=True)
    waits = asyncio.ensure_future(app.get(f"/api/v2/tasks/{task}?wait_ms=60000"))
    await app.settled()
    assert not waits.done()
    admin = (await make_key(app, "root", "admin"))["token"]
    with pytest.raises(ConnectionError):
        await worker.receive()
    assert worker.closed == {"type": "websocket.close", "code": 1008}
    assert (await waits).status_code == 401
    allocated = await app.get("/workers/allocate?service=echo", headers=bearer(admin))
    assert allocated.status_code == 404


@pytest.mark.contract("K-2", "K-9")
async def test_what_a_ledger_has_lost_or_cannot_be_read_opens_nothing(app: App, admin: str) -> None:
    """A Redis that evicts may lose keys; one odd key costs the others nothing."""
    documents, now = app.onward.backend.documents, app.onward.clock.now()
    await documents.put("key", "odd", '{"id": 1}', now=now)
    await app.onward.keys.refresh()
    assert (await app.get("/api/v2/me", headers=bearer(admin))).status_code == 200
    for document in await documents.list("key", now=now):
        await documents.delete("key", document.key)
    await app.onward.keys.refresh()
    assert (await app.get("/api/v2/me")).status_code == 401


@pytest.mark.contract("K-1")
async def test_a_name_is_given_once_by_two_servers() -> None:
    url = fresh_url("redis7")
    async with running_app(ledger=url) as one, running_app(ledger=url) as other:
        admin = (await make_key(one, "root", "admin"))["token"]
        await other.onward.keys.refresh()
        body = {"name": "web", "scopes": ["submit"]}
        made = await asyncio.gather(
            *(app.post("/api/v2/keys", body, headers=bearer(admin)) for app in (one, other) * 4)
        )
        assert sorted(response.status_code for response in made) == [201, *[409] * 7]
        found = (await one.get("/api/v2/keys", headers=bearer(admin))).json()["items"]
        assert sorted(key["name"] for key in found) == ["root", "web"]
