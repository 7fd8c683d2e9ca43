"""HEAD and the methods of a path: as any proxy, monitor or crawler may ask."""

from __future__ import annotations

import asyncio

import pytest

from tests.openapi import document
from tests.running_app import App


@pytest.mark.parametrize(
    "path",
    ["/health", "/ready", "/metrics", "/ui", "/ui/tasks", "/openapi.json", "/api/v2/tasks",
     "/api/v2/workers", "/api/v1/queues/status", "/api/v2/tasks/unknown"],
)  # fmt: skip
async def test_head_is_answered_like_get_without_a_body(app: App, path: str) -> None:
    got = await app.get(path)
    head = await app.http.head(path)
    assert head.status_code == got.status_code
    assert head.headers["content-type"] == got.headers["content-type"]
    assert head.content == b""


async def test_head_of_a_stream_ends(app: App) -> None:
    async with asyncio.timeout(30):
        head = await app.http.head("/api/v2/live")
    assert head.status_code == 200
    assert head.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PATCH", "/api/v2/tasks", "GET, HEAD, POST"),
        ("OPTIONS", "/api/v2/tasks", "GET, HEAD, POST"),
        ("PATCH", "/api/v2/services/x", "DELETE, GET, HEAD"),
        ("PATCH", "/api/v2/tasks/x/effects/y", "DELETE, POST, PUT"),
        ("GET", "/mcp", "POST"),
        ("HEAD", "/mcp", "POST"),
        ("POST", "/health", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(
    app: App, method: str, path: str, allow: str
) -> None:
    refused = await app.http.request(method, path)
    assert (refused.status_code, refused.headers["allow"]) == (405, allow)


def test_each_operation_of_the_document_has_an_id_of_its_own() -> None:
    found = [
        operation["operationId"]
        for operations in document()["paths"].values()
        for operation in operations.values()
    ]
    assert len(found) == len(set(found))
