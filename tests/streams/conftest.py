"""A house with a real Valkey beside it; the ledger is SQLite, or that Valkey itself."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis.asyncio

from tests.servers import fresh_url
from tests.streams.street import Street, open_street


@pytest.fixture(params=["sqlite", "redis"])
async def street(request: pytest.FixtureRequest) -> AsyncIterator[Street]:
    async with open_street(request.param) as opened:
        yield opened


@pytest.fixture
async def valkey() -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis.from_url(fresh_url("valkey"))
    yield client
    await client.aclose()
