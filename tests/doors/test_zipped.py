"""Long answers of the API are compressed for those who accept it; nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest

from onward.doors.json_reply import ZIPPED_ASIDE_FROM, ZIPPED_FROM
from tests.running_app import App


async def listed(app: App, encoding: str) -> Any:
    return await app.get("/api/v2/tasks?limit=1000", headers={"accept-encoding": encoding})


@pytest.mark.parametrize("size", [ZIPPED_FROM, 2 * ZIPPED_ASIDE_FROM])
async def test_a_long_list_is_zipped_for_those_who_accept_it(app: App, size: int) -> None:
    await app.post("/api/v2/tasks", {"type": "job", "payload": "x" * size})
    plain, zipped = await listed(app, "identity"), await listed(app, "br, gzip")
    assert "content-encoding" not in plain.headers
    assert zipped.headers["content-encoding"] == "gzip"
    assert int(zipped.headers["content-length"]) < size / 2
    assert plain.headers["vary"] == zipped.headers["vary"] == "accept-encoding"
    assert zipped.json() == plain.json()


async def test_a_short_answer_stays_as_it_is(app: App) -> None:
    await app.post("/api/v2/tasks", {"type": "job"})
    assert "content-encoding" not in (await listed(app, "gzip")).headers


async def test_a_zipped_answer_has_its_head_as_well(app: App) -> None:
    await app.post("/api/v2/tasks", {"type": "job", "payload": "x" * ZIPPED_FROM})
    got = await listed(app, "gzip")
    head = await app.http.head("/api/v2/tasks?limit=1000", headers={"accept-encoding": "gzip"})
    assert head.headers["content-length"] == got.headers["content-length"]
