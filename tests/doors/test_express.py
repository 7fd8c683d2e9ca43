"""What is called past the framework answers as the framework does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from onward.doors.access import Access
from onward.doors.guard import Guard
from tests.running_app import App, running_app

JSON = {"content-type": "application/json"}
VARIES = ("id", "request_id", "links", "created_at")
REQUESTS: dict[str, tuple[str, bytes, dict[str, str]]] = {
    "accepted": ("", b'{"type":"noop","payload":{"n":1}}', {}),
    "waits in vain": ("?wait_ms=1", b'{"type":"noop"}', {}),
    "a key": ("", b'{"type":"noop"}', {"idempotency-key": "k"}),
    "a key that is none": ("", b'{"type":"noop"}', {"idempotency-key": ""}),
    "not JSON": ("", b"{", {}),
    "a key twice": ("", b'{"type":"noop","type":"noop"}', {}),
    "nothing": ("", b"", {}),
    "an unknown field": ("", b'{"type":"noop","colour":1}', {}),
    "a wrong field": ("", b'{"type":"noop","max_retries":-1}', {}),
    "a wrong time": ("?wait_ms=long", b'{"type":"noop"}', {}),
    "an unknown parameter": ("?wait=1", b'{"type":"noop"}', {}),
    "the server's own queue": ("", b'{"type":"_flows"}', {}),
    "does not fit": ("", b'{"type":"declared","payload":{"n":"x"}}', {}),
    "zipped": (
        "",
        b'{"type":"noop","payload":"' + b"x" * 5_000 + b'"}',
        {"accept-encoding": "gzip"},
    ),
    "not zipped": ("", b'{"type":"noop","payload":"' + b"x" * 5_000 + b'"}', {}),
}
DECLARED = {
    "name": "declared",
    "task_types": ["declared"],
    "schema": {"declared": {"type": "object", "properties": {"n": {"type": "integer"}}}},
}


@pytest.fixture
async def app() -> AsyncIterator[App]:
    async with running_app() as app:
        assert (await app.post("/api/v2/services", DECLARED)).status_code == 201
        yield app


def shown(response: httpx2.Response) -> Any:
    body = response.json()
    headers = {
        name: value
        for name, value in response.headers.items()
        if name not in ("x-request-id", "location")
    }
    if response.headers.get("content-encoding") == "gzip" or "location" in response.headers:
        del headers["content-length"]
    return response.status_code, headers, {k: v for k, v in body.items() if k not in VARIES}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=list(REQUESTS))
async def test_a_submission_is_answered_as_by_the_framework(
    app: App, request_: tuple[str, bytes, dict[str, str]]
) -> None:
    query, body, headers = request_
    slow = httpx2.ASGITransport(app=Guard(app.asgi.web, Access(app.onward.keys)))
    async with httpx2.AsyncClient(transport=slow, base_url="http://127.0.0.1") as framework:
        answers = [
            await http.post(
                f"/api/v2/tasks{query}",
                content=body,
                headers={"accept-encoding": "identity", **JSON, **headers},
            )
            for http in (app.http, framework)
        ]
    ours, theirs = map(shown, answers)
    assert ours == theirs


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT"])
async def test_other_methods_are_the_frameworks(app: App, method: str) -> None:
    response = await app.http.request(method, "/api/v2/tasks")
    assert response.status_code == (200 if method in ("GET", "HEAD") else 405)
