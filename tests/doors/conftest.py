"""A real server behind the guard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.doors.guarded_server import GuardedServer


@pytest.fixture(scope="module")
def guarded() -> Iterator[GuardedServer]:
    started = GuardedServer()
    yield started
    started.stop()
