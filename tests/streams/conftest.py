"""An application with a real Valkey beside it; its ledger is SQLite, or that Valkey itself."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.streams.stream_app import StreamApp, open_stream_app


@pytest.fixture(params=["sqlite", "redis"])
async def streams(request: pytest.FixtureRequest) -> AsyncIterator[StreamApp]:
    async with open_stream_app(request.param) as opened:
        yield opened
