from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onward.core.contract import Backend
from tests.contract.driver import Driver
from tests.contract.ledgers import LEDGERS


@pytest.fixture(params=LEDGERS)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    backend = LEDGERS[request.param](tmp_path)
    yield backend
    await backend.close()


@pytest.fixture
def driver(backend: Backend) -> Driver:
    return Driver(backend)
