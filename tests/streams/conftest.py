"""A house with a real Valkey beside it; the ledger is SQLite, or that Valkey itself."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.streams.street import Street, open_street


@pytest.fixture(params=["sqlite", "redis"])
async def street(request: pytest.FixtureRequest) -> AsyncIterator[Street]:
    async with open_street(request.param) as opened:
        yield opened
