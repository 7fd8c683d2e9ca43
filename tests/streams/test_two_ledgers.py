"""Two ledgers on the streams of one Redis would run each other's tasks: one of them waits."""

from __future__ import annotations

from typing import Any

import pytest

from onward.workers.streams import channel
from tests.servers import fresh_url
from tests.streams.street import Street, open_street

WELL = {"whole": "healthy", "status": "healthy"}
MARK = "onward:fed:streams"


async def redis_part(street: Street) -> dict[str, Any]:
    body = (await street.http.get("/health")).json()
    return {"whole": body["status"], **body["details"]["redis"]}


async def barred(street: Street) -> bool:
    return street.app.onward._feed.other is not None


@pytest.mark.contract("S1-1", "S1-13")
async def test_streams_are_one_ledgers_and_the_other_says_so_until_they_are_free() -> None:
    async with (
        open_street() as first,
        open_street(redis_url=first.settings.redis, on_duty=False) as second,
    ):
        await second.until(lambda: barred(second))
        mine, others = [await street.submit(queue="streams") for street in (first, second)]
        ((entry, fields),) = await first.take_all()
        assert fields["task_id"] == mine
        assert await redis_part(first) == WELL
        said = await redis_part(second)
        assert (said["whole"], said["status"]) == ("degraded", "degraded")
        assert said["error"].startswith("its streams are those of another ledger: ")
        await first.succeed(entry, fields)
        await first.over(mine)
        assert (await second.http.get(f"/api/v2/tasks/{mine}")).status_code == 404
        await first.shut()
        _, fields = await second.take()
        assert fields["task_id"] == others
        assert await redis_part(second) == WELL


async def test_a_server_that_stops_leaves_the_streams_to_the_others_of_its_ledger() -> None:
    async with open_street("redis") as street:
        await street.shut()
        assert await street.redis.get(MARK) is not None


async def test_what_a_dead_ledger_has_marked_is_free_after_a_while() -> None:
    async with open_street("redis", redis_url=fresh_url("valkey")) as street:
        name = await street.redis.get(MARK)
        assert 0 < await street.redis.pttl(MARK) <= channel.OCCUPIED_MS
        await street.redis.set(MARK, "another", px=600)
        await street.until(lambda: barred(street))
        await street.until(street.on_duty)
        assert await street.redis.get(MARK) == name
