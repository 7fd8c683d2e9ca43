"""When there are traces, and what it costs when there are none."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry import trace

from onward.core.errors import Invalid
from onward.tracing import handling, inside, switch

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


@pytest.mark.contract("N-9")
@pytest.mark.parametrize(
    ("wanted", "environment", "on"),
    [
        ("auto", {}, False),
        ("auto", {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ("auto", ENDPOINT, True),
        ("auto", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1/t"}, True),
        ("auto", {**ENDPOINT, "OTEL_SDK_DISABLED": "true"}, False),
        ("auto", {**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, False),
        ("on", {}, True),
        ("on", {"OTEL_SDK_DISABLED": "TRUE"}, False),
        ("off", ENDPOINT, False),
    ],
)
def test_traces_are_on_where_the_standard_environment_says_so(
    wanted: switch.Wanted, environment: dict[str, str], on: bool
) -> None:
    assert switch.traced(wanted, environment) is on


def test_without_the_library_only_who_insists_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switch, "installed", lambda: False)
    assert switch.traced("auto", ENDPOINT) is False
    with pytest.raises(Invalid) as refused:
        switch.traced("on", {})
    assert refused.value.hint == "pip install 'onward[otel]'"


def modules_after(code: str, **environment: str) -> set[str]:
    """What a fresh process has imported when it has run this."""
    said = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print('\\n'.join(sys.modules))"],
        env={"PATH": "", **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return set(said.split())


SERVER = """
import asyncio
from onward.app import build
from onward.settings import Settings
async def main():
    app = build(Settings(ledger="sqlite:///:memory:"), builtin_worker=True)
    async with app.onward:
        pass
asyncio.run(main())
"""
CLIENT = """
import asyncio
from onward.client.api import ServerApi
from onward import Client, Worker
async def main():
    api = ServerApi("http://127.0.0.1:1")
    api.request("POST", "/api/v2/tasks", body={})
    await api.close()
asyncio.run(main())
"""


@pytest.mark.contract("N-9")
def test_a_server_without_traces_imports_nothing_for_them() -> None:
    off = modules_after(SERVER)
    assert "onward.tracing.server" not in off
    assert not [name for name in off if name.startswith(("opentelemetry.sdk", "opentelemetry.exp"))]
    on = modules_after(SERVER, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    assert "opentelemetry.sdk.trace" in on, "or the check above says nothing"


@pytest.mark.contract("N-9")
def test_a_client_that_is_part_of_no_trace_does_not_import_the_library() -> None:
    assert not [name for name in modules_after(CLIENT) if name.startswith("opentelemetry")]


def test_a_task_pays_for_no_span_where_none_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    """FastAPI imports OpenTelemetry in every server."""
    nobody = trace.ProxyTracerProvider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: nobody)
    assert handling(None, "resize", "a", 1) is inside(None)
