"""Applications that run flows: on SQLite in memory, and, where it matters, on each ledger."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.runs.flow_app import FlowApp, open_flow_app
from tests.servers import fresh_url


@pytest.fixture
async def flows() -> AsyncIterator[FlowApp]:
    async with open_flow_app() as opened:
        yield opened


@pytest.fixture(params=["sqlite", "valkey"])
async def any_flows(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FlowApp]:
    archive = f"sqlite:///{tmp_path}/archive.db"
    redis = {"ledger": fresh_url("valkey"), "archive": archive}
    async with open_flow_app(**(redis if request.param == "valkey" else {})) as opened:
        yield opened
