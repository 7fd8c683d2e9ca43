"""Two ledgers on the streams of one Redis would run each other's tasks: one of them waits."""

from __future__ import annotations

from typing import Any

import pytest

from onward.workers.streams import channel
from tests.servers import fresh_url
from tests.streams.stream_app import StreamApp, open_stream_app

WELL = {"whole": "healthy", "status": "healthy"}
MARK = "onward:fed:streams"


async def redis_part(streams: StreamApp) -> dict[str, Any]:
    body = (await streams.http.get("/health")).json()
    return {"whole": body["status"], **body["details"]["redis"]}


async def barred(streams: StreamApp) -> bool:
    return streams.app.onward._feed.other is not None


@pytest.mark.contract("S1-1", "S1-13")
async def test_streams_are_one_ledgers_and_the_other_says_so_until_they_are_free() -> None:
    async with (
        open_stream_app() as first,
        open_stream_app(redis_url=first.settings.redis, on_duty=False) as second,
    ):
        await second.until(lambda: barred(second))
        mine, others = [await streams.submit(queue="streams") for streams in (first, second)]
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
    async with open_stream_app("redis") as streams:
        await streams.shut()
        assert await streams.redis.get(MARK) is not None


async def test_what_a_dead_ledger_has_marked_is_free_after_a_while() -> None:
    async with open_stream_app("redis", redis_url=fresh_url("valkey")) as streams:
        name = await streams.redis.get(MARK)
        assert 0 < await streams.redis.pttl(MARK) <= channel.OCCUPIED_MS
        await streams.redis.set(MARK, "another", px=600)
        await streams.until(lambda: barred(streams))
        await streams.until(streams.on_duty)
        assert await streams.redis.get(MARK) == name
