"""What every test may rely on: a clock that stands still, and Hypothesis without a stopwatch."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from onward.core.clock import ManualClock
from onward.core.contract import Backend
from onward.ledgers import open_backend
from tests.running_app import App, running_app

# The machine is shared: how long an example takes says nothing about the code.
settings.register_profile("onward", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("onward")


# The suite's Redis keeps nothing, and is meant to: no server here need complain of it.
os.environ.setdefault("ONWARD_REDIS_VOLATILE", "yes")
# What a server keeps by default: never in the home folder of whoever runs the tests.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="onward-tests-")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    backend = open_backend("sqlite:///:memory:")
    yield backend
    await backend.close()


@pytest.fixture
def app_settings() -> dict[str, Any]:
    """The settings of `app`; a module that needs others defines this fixture again."""
    return {}


@pytest.fixture
async def app(app_settings: dict[str, Any]) -> AsyncIterator[App]:
    async with running_app(**app_settings) as app:
        yield app


# Whoever runs us in the background of a shell has us ignore Ctrl-C, and every process that we start
# would inherit that: those that are to be stopped by it never would be.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
