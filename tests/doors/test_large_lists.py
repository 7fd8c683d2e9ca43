"""Lists of large tasks: what has pages is paged by bytes too, what is one array is streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from starlette.responses import StreamingResponse

from onward.core.contract import PAGE_BYTES
from onward.doors.listing import array
from tests.running_app import App

LARGE = "x" * 900_000
COUNT = 24


async def submitted(app: App, path: str, body: Any) -> list[str]:
    found = []
    for _ in range(COUNT):
        made = (await app.post(path, body)).json()
        found.append(made.get("id") or made["task_id"])
    return found


async def test_a_page_of_large_tasks_goes_on_in_the_next(app: App) -> None:
    ids = await submitted(app, "/api/v2/tasks", {"type": "store", "payload": {"text": LARGE}})
    found: list[str] = []
    cursor, pages = "", 0
    while True:
        response = await app.get(f"/api/v2/tasks?limit=1000{cursor}")
        assert len(response.content) < 2 * PAGE_BYTES
        found += [task["id"] for task in response.json()["items"]]
        pages += 1
        if response.json()["next"] is None:
            break
        cursor = f"&cursor={response.json()['next']}"
    assert found == ids[::-1]
    assert pages > 2


async def test_large_tasks_that_are_named_are_all_there(app: App) -> None:
    ids = await submitted(app, "/api/v2/tasks", {"type": "store", "payload": {"text": LARGE}})
    query = "&".join(f"id={id}" for id in ids)
    body = (await app.get(f"/api/v2/tasks?{query}")).json()
    assert ([task["id"] for task in body["items"]], body["next"]) == (ids, None)
    assert {len(task["payload"]["text"]) for task in body["items"]} == {len(LARGE)}
    brief = (await app.get(f"/api/v2/tasks?brief=true&{query}")).json()
    assert [task["id"] for task in brief["items"]] == ids


@pytest.mark.contract("S3-2")
async def test_a_list_that_is_an_array_is_whole_however_large(app: App) -> None:
    ids = await submitted(app, "/api/v1/tasks/summarize/", {"content": LARGE})
    response = await app.get("/api/v1/tasks/?limit=1000")
    assert [task["task_id"] for task in response.json()] == ids[::-1]
    assert "content-length" not in response.headers, "it was sent as it was read"


async def test_of_a_long_array_no_more_is_read_than_is_sent() -> None:
    read = 0

    async def parts() -> AsyncIterator[Sequence[str]]:
        nonlocal read
        for _ in range(100):
            read += 1
            yield [LARGE]
            yield []

    response = await array(parts())
    assert isinstance(response, StreamingResponse)
    assert read * len(LARGE) < PAGE_BYTES + 2 * len(LARGE)
    sent = 0
    async for piece in response.body_iterator:
        sent += len(piece)
        assert read * len(LARGE) <= sent
    assert read == 100


async def test_a_short_array_is_answered_at_once() -> None:
    async def parts() -> AsyncIterator[Sequence[int]]:
        for part in ([], [1, 2], [], [3]):
            yield part

    assert bytes((await array(parts())).body) == b"[1,2,3]"
    response = await array(parts(), b'{"items":', b"}")
    assert bytes(response.body) == b'{"items":[1,2,3]}'
