"""One house a test, and a worker who serves `report.generate` in it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.agents.lobby import Lobby
from tests.house import open_house


@pytest.fixture
async def lobby() -> AsyncIterator[Lobby]:
    async with open_house() as house:
        yield Lobby(house)
