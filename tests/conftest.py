"""What every test may rely on: a clock that stands still, and Hypothesis without a stopwatch."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

from onward.core.clock import ManualClock
from onward.core.contract import Backend
from onward.ledgers import open_backend
from tests.running_app import App, running_app
from tests.servers import FLAVOURS, fresh_url, postgres_ledger_url

# The machine is shared: how long an example takes says nothing about the code.
settings.register_profile("onward", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("onward")

# Tracebacks as a server writes them. structlog's own draw each frame with all its variables, which
# takes 50 ms of processor time: nine tenths of a test that logs many.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)

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


LEDGERS = ("sqlite", *FLAVOURS, "postgres15", "postgres18")


def pytest_collection_finish() -> None:
    """Thousands of collected tests stay to the end: the garbage collector need not walk them again
    and again while the tests run.
    """
    gc.collect()
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that are marked `every_ledger` run with an `app` on each of them."""
    marked = any(metafunc.definition.iter_markers("every_ledger"))
    if marked and "ledger_kind" in metafunc.fixturenames:
        metafunc.parametrize("ledger_kind", LEDGERS, indirect=True)


@pytest.fixture
def ledger_kind(request: pytest.FixtureRequest) -> str:
    return str(getattr(request, "param", "sqlite"))


@pytest.fixture
def app_settings(ledger_kind: str) -> dict[str, Any]:
    """The settings of `app`; a module that needs others defines this fixture again."""
    if ledger_kind == "sqlite":
        return {}
    if ledger_kind in FLAVOURS:
        return {"ledger": fresh_url(ledger_kind), "archive": ""}
    return {"ledger": postgres_ledger_url(ledger_kind)}


@pytest.fixture
async def app(app_settings: dict[str, Any]) -> AsyncIterator[App]:
    async with running_app(**app_settings) as app:
        yield app


# Whoever runs us in the background of a shell has us ignore Ctrl-C, and every process that we start
# would inherit that: those that are to be stopped by it never would be.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
