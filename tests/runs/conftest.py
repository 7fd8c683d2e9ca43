"""Flow centres: on SQLite in memory, and, where it matters, on each ledger."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.runs.centre import Centre, open_centre
from tests.servers import fresh_url


@pytest.fixture
async def centre() -> AsyncIterator[Centre]:
    async with open_centre() as opened:
        yield opened


@pytest.fixture(params=["sqlite", "valkey"])
async def any_centre(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Centre]:
    archive = f"sqlite:///{tmp_path}/archive.db"
    redis = {"ledger": fresh_url("valkey"), "archive": archive}
    async with open_centre(**(redis if request.param == "valkey" else {})) as opened:
        yield opened
