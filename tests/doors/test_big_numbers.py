"""Numbers that no ledger holds, at every place that takes one: refused, and never a fault of ours.

The places are read from the OpenAPI document, so that a new route is asked, too.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from onward.faults import LONGEST_DELAY_MS
from tests.running_app import App, running_app
from tests.servers import fresh_url
from tests.support import wait_until

MOST = 2**63 - 1  # what a column of SQLite and an integer of Redis hold
LONG = "9" * 5_000
TEXTS = [str(MOST), str(MOST + 1), str(2**64), str(-(2**63) - 1), "9" * 20, LONG]
METHODS = {"get", "post", "put", "delete", "patch"}


@pytest.fixture(params=["sqlite", "valkey"])
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[App]:
    on_redis = request.param == "valkey"
    ledger = fresh_url("valkey") if on_redis else "sqlite:///:memory:"
    async with running_app(ledger=ledger, archive=f"sqlite:///{tmp_path}/archive.db") as opened:
        yield opened


def _resolved(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return dict(document["components"]["schemas"][name])
    return schema


def _numbers(
    schema: Mapping[str, Any], document: Mapping[str, Any], where: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Mapping[str, Any]]]:
    schema = _resolved(schema, document)
    for kind in ("anyOf", "allOf", "oneOf"):
        for option in schema.get(kind, ()):
            yield from _numbers(option, document, where)
    if schema.get("type") in ("integer", "number"):
        yield where, schema
    for name, part in schema.get("properties", {}).items():
        yield from _numbers(part, document, (*where, name))
    if "items" in schema:
        yield from _numbers(schema["items"], document, (*where, 0))


def _operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if method in METHODS:
                yield method, path, operation


def _body_schema(operation: Mapping[str, Any]) -> Mapping[str, Any]:
    content = operation.get("requestBody", {}).get("content", {})
    return dict(content.get("application/json", {}).get("schema", {}))


def _with(body: Mapping[str, Any], where: tuple[str | int, ...], digits: str) -> str:
    """The body as text, with these digits at that place; so long a number no encoder writes."""
    mark = "the number goes here"
    value: Any = mark
    for step in reversed(where[1:]):
        value = [value] if isinstance(step, int) else {step: value}
    return json.dumps({**body, str(where[0]): value}).replace(f'"{mark}"', digits)


async def test_every_integer_of_every_route_has_bounds_that_a_ledger_holds(app: App) -> None:
    document = app.asgi.web.openapi()
    loose = []
    for method, path, operation in _operations(document):
        places = [
            ((parameter["name"],), schema)
            for parameter in operation.get("parameters", ())
            for _, schema in _numbers(parameter["schema"], document)
        ]
        for where, schema in [*places, *_numbers(_body_schema(operation), document)]:
            if schema["type"] != "integer":
                continue
            least = schema.get("minimum", schema.get("exclusiveMinimum"))
            most = schema.get("maximum", schema.get("exclusiveMaximum"))
            if least is None or most is None or abs(least) > MOST or most > MOST:
                loose.append((method, path, where))
    assert loose == []


async def test_a_big_number_in_a_path_or_query_is_no_fault_of_ours(app: App) -> None:
    known = await _known(app)
    document = app.asgi.web.openapi()
    asked = 0
    for method, path, operation in _operations(document):
        for parameter in operation.get("parameters", ()):
            if not list(_numbers(parameter["schema"], document)):
                continue
            for digits in TEXTS:
                names = known | {parameter["name"]: digits}
                query = {parameter["name"]: digits} if parameter["in"] == "query" else {}
                body = json.dumps(BODIES.get((method, path), {}))
                answer = await app.http.request(
                    method, path.format_map(names), params=query, content=body
                )
                assert answer.status_code != 500, (method, path, digits[:24], answer.text)
                asked += 1
    assert asked > 100


async def test_a_big_number_in_a_body_is_no_fault_of_ours(app: App) -> None:
    known = await _known(app)
    document = app.asgi.web.openapi()
    asked = 0
    for method, path, operation in _operations(document):
        body = BODIES.get((method, path), {})
        for where, _ in _numbers(_body_schema(operation), document):
            for digits in TEXTS:
                answer = await app.http.request(
                    method, path.format_map(known), content=_with(body, where, digits)
                )
                said = answer.text
                assert answer.status_code != 500, (method, path, where, digits[:24], said)
                asked += 1
    assert asked > 100
    # Nor does one that was taken fail whoever comes next.
    submitted = await app.post("/api/v2/tasks", {"type": "declared", "payload": {}})
    assert submitted.status_code == 202, submitted.text


@pytest.mark.parametrize("digits", [str(2**63), "9" * 20, LONG])
async def test_a_stream_is_refused_before_it_begins(app: App, digits: str) -> None:
    known = await _known(app)
    path = f"/api/v2/tasks/{known['task_id']}/events"
    stream = {"accept": "text/event-stream"}
    by_header = await app.get(path, headers={**stream, "last-event-id": digits})
    by_query = await app.get(path, params={"after": digits}, headers=stream)
    for refused in (by_header, by_query):
        assert refused.status_code == 422, refused.text
        assert refused.headers["content-type"] == "application/problem+json"
    assert "Last-Event-ID" in by_header.text


@pytest.mark.parametrize("digits", [str(2**63), LONG, "²", "٣"])
async def test_the_number_of_an_approval_is_small_or_unknown(app: App, digits: str) -> None:
    body = {"type": "guarded", "payload": {}, "requires_approval": True}
    task = await app.submit(**body)
    answer = await app.get(f"/api/v2/approvals/{task}.{digits}")
    assert answer.status_code == 404, answer.text


async def test_a_worker_cannot_put_a_task_off_for_ever(app: App) -> None:
    worker = await app.worker(group="default")
    body = {"type": "job", "queue": "group:default", "max_retries": 3}
    await app.post("/api/v2/tasks", body)
    frame = await worker.task()
    await worker.answer(frame["taskId"], error="busy", retryable=True, retryAfterMs=MOST)
    await wait_until(lambda: app.onward.dispatcher.tally["task.retrying"])
    await app.advance(LONGEST_DELAY_MS)
    assert (await worker.task())["attempt"] == 2


async def test_a_number_beyond_64_bits_in_a_frame_fails_that_task_alone(app: App) -> None:
    worker = await app.worker(group="default")
    body = {"type": "job", "queue": "group:default"}
    task = await app.submit(**body)
    frame = await worker.task()
    await worker.answer(frame["taskId"], error="busy", retryAfterMs=MOST + 1)
    assert (await worker.receive())["type"] == "error"
    ended = (await app.get(f"/api/v2/tasks/{task}", params={"wait_ms": 30_000})).json()
    assert ended["error"]["kind"] == "ResultInvalid", ended


async def _known(app: App) -> defaultdict[str, str]:
    """For the names in a path: a task that is there, so that numbers get as far as the ledger."""
    task = await app.submit("there", payload={})
    return defaultdict(lambda: "there", task_id=task, number="1")


BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("post", "/api/openai"): {"messages": []},
    ("post", "/api/v2/tasks"): {"type": "job", "payload": {}},
    ("post", "/api/v2/sessions/{session_id}/tasks"): {"type": "job", "payload": {}},
    ("post", "/api/v2/services"): {"name": "declared", "task_types": ["declared"]},
    ("post", "/api/v2/tasks/{task_id}/progress"): {"fence": 1, "progress": 0.5},
    ("post", "/api/v2/dead-letters/replay"): {"filter": {}},
    ("post", "/workers/register"): {"id": "w", "url": "http://127.0.0.1:1", "services": ["x"]},
    ("post", "/workers/heartbeat"): {"id": "w"},
    ("post", "/api/v2/runs"): {"flow": "there", "shared": {}},
    ("post", "/api/v2/schedules"): {"name": "s", "type": "job", "payload": {}},
    ("put", "/api/v2/schedules/{name}"): {"name": "there", "type": "job", "payload": {}},
}
