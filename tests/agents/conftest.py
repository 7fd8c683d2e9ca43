"""A running application, used by the sessions of agents."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.agents.sessions import Sessions
from tests.running_app import running_app


@pytest.fixture
async def sessions() -> AsyncIterator[Sessions]:
    async with running_app() as app:
        yield Sessions(app)
