"""One app a test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.running_app import RunningApp, running_app


@pytest.fixture
async def app() -> AsyncIterator[RunningApp]:
    async with running_app() as opened:
        yield opened
