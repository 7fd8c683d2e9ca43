"""Long answers of the API are compressed for those who accept it; nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest

from onward.doors.json_reply import ZIPPED_ASIDE_FROM, ZIPPED_FROM
from tests.house import House


async def listed(house: House, encoding: str) -> Any:
    return await house.get("/api/v2/tasks?limit=1000", headers={"accept-encoding": encoding})


@pytest.mark.parametrize("size", [ZIPPED_FROM, 2 * ZIPPED_ASIDE_FROM])
async def test_a_long_list_is_zipped_for_those_who_accept_it(house: House, size: int) -> None:
    await house.post("/api/v2/tasks", {"type": "job", "payload": "x" * size})
    plain, zipped = await listed(house, "identity"), await listed(house, "br, gzip")
    assert "content-encoding" not in plain.headers
    assert zipped.headers["content-encoding"] == "gzip"
    assert int(zipped.headers["content-length"]) < size / 2
    assert plain.headers["vary"] == zipped.headers["vary"] == "accept-encoding"
    assert zipped.json() == plain.json()


async def test_a_short_answer_stays_as_it_is(house: House) -> None:
    await house.post("/api/v2/tasks", {"type": "job"})
    assert "content-encoding" not in (await listed(house, "gzip")).headers


async def test_a_zipped_answer_has_its_head_as_well(house: House) -> None:
    await house.post("/api/v2/tasks", {"type": "job", "payload": "x" * ZIPPED_FROM})
    got = await listed(house, "gzip")
    head = await house.http.head("/api/v2/tasks?limit=1000", headers={"accept-encoding": "gzip"})
    assert head.headers["content-length"] == got.headers["content-length"]
