"""Who reads the streams is not on the roster; /health knows of them all the same."""

from __future__ import annotations

import pytest

from onward.wire.streams import CREATE
from tests.streams.stream_app import GROUP, TASKS, open_stream_app


@pytest.mark.contract("S3-7")
async def test_a_server_with_neither_a_worker_nor_a_consumer_of_its_streams_is_unhealthy() -> None:
    async with open_stream_app("redis") as streams:
        alone = await streams.http.get("/health")
        assert (alone.status_code, alone.json()["components"]["workers"]) == (503, False)
        assert "onward worker" in alone.json()["details"]["workers"]["error"]
        # Our own name is in the group as soon as we look for entries that others have left.
        await streams.redis.xgroup_createconsumer(TASKS, GROUP, "onward")
        assert (await streams.http.get("/health")).status_code == 503
        await streams.redis.xgroup_createconsumer(TASKS, GROUP, "w1")
        served = await streams.http.get("/health")
        assert (served.status_code, served.json()["components"]["workers"]) == (200, True)
        assert served.json()["details"]["workers"]["by_transport"] == {"streams": 1}


@pytest.mark.contract("S3-7")
async def test_a_service_that_reads_the_stream_of_agents_counts_as_a_worker() -> None:
    async with open_stream_app() as streams:
        await streams.redis.xgroup_create(CREATE, "ocr", id="0", mkstream=True)
        assert (await streams.http.get("/health")).status_code == 503
        await streams.redis.xgroup_createconsumer(CREATE, "ocr", "w1")
        assert (await streams.http.get("/health")).status_code == 200
