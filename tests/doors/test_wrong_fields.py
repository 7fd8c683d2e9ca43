"""A wrong field is named, and what it should have been is said in words."""

from __future__ import annotations

from typing import Any

import pytest

from tests.running_app import App

pytestmark = pytest.mark.contract("N-2")


@pytest.mark.parametrize(
    ("field", "fault"),
    [
        ({"priority": "urgent"}, "/priority: must be one of high, low, normal"),
        ({"approval": {"default": "ask"}}, "/approval/default: must be one of approve, reject"),
        ({"delay_ms": "5"}, "/delay_ms: expected a whole number or null, got text"),
        ({"backoff_ms": 5}, "/backoff_ms: expected a list or null, got a whole number"),
        ({"queue": ""}, "/queue: expected text that is not empty"),
        ({"queue": "a\nb"}, "/queue: expected text without control characters"),
        ({"idempotency_key": "é"}, "/idempotency_key: expected text of printable ASCII characters"),
        ({"colour": 1}, "/colour: is not a field of this request"),
        ({"queue": "flow:runs"}, "'flow:runs' is a queue of the server's own: no worker serves it"),
        ({"type": "onward:x"}, "'onward:x' is a queue of the server's own: no worker serves it"),
    ],
)
async def test_in_a_body(app: App, field: dict[str, Any], fault: str) -> None:
    refused = (await app.post("/api/v2/tasks", {"type": "echo", **field})).json()
    assert (refused["status"], refused["detail"]) == (422, fault)


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("state=over", "state/0: must be one of canceled, dead, failed, queued, running"),
        ("cursor=next", "cursor: expected text that is `next` of the page before"),
    ],
)
async def test_in_a_query(app: App, query: str, fault: str) -> None:
    refused = (await app.get(f"/api/v2/tasks?{query}")).json()
    assert refused["status"] == 422
    assert refused["detail"].startswith(fault)


@pytest.mark.contract("S3-3")
async def test_in_a_query_of_the_tasks_door(app: App) -> None:
    refused = await app.get("/api/v1/tasks/?status=over")
    states = "ACTIVE, COMPLETED, DLQ, FAILED, PENDING"
    assert refused.status_code == 422
    assert refused.json() == {"detail": f"status: must be one of {states}"}


@pytest.mark.contract("S0-12")
@pytest.mark.parametrize(
    ("frame", "fault"),
    [
        ("{", "not JSON: it ends too early"),
        ("[]", "expected an object, got a list"),
        ('{"type":"progress","taskId":"t","progress":2}', "/progress: expected a number <= 1.0"),
        ('{"type":"register","workerId":""}', "/workerId: expected text that is not empty"),
    ],
)
async def test_in_a_frame_of_a_worker(app: App, frame: str, fault: str) -> None:
    worker = await app.worker()
    await worker.send_text(frame)
    assert await worker.receive() == {"type": "error", "message": fault}


@pytest.mark.contract("N-11")
async def test_a_schema_of_a_type_that_the_service_does_not_have(app: App) -> None:
    service = {"name": "mail", "task_types": ["mail.send"], "schema": {"mail.sned": {}}}
    refused = (await app.post("/api/v2/services", service)).json()
    assert refused["detail"] == "/schema/mail.sned: task_types has only mail.send"
