"""Traces over real processes: a server, a worker with spans of its own, and a kill between them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import Tracer

from onward.client.http import Client
from tests.processes import Process, Server, serving
from tests.support import wait_until
from tests.tracing.collector import Collector, Seen

pytestmark = pytest.mark.slow

WAIT_S = 60.0


@contextmanager
def working(server: Server, folder: Path) -> Iterator[Process]:
    process = Process(
        *(sys.executable, "-m", "tests.tracing.worker_process", server.url),
        env={"OTEL_SERVICE_NAME": "worker"},
        log=folder / "worker.log",
    )
    try:
        yield process
    finally:
        process.kill()


@pytest.mark.contract("N-9")
@pytest.mark.parametrize("service", ["greet", "greet_plainly"])
async def test_one_trace_from_the_caller_into_the_handler_of_a_worker_process(
    tmp_path: Path, collector: Collector, caller: Tracer, service: str
) -> None:
    with serving(tmp_path) as server, working(server, tmp_path):
        async with Client(server.url) as client:
            with caller.start_as_current_span("caller") as span:
                assert await client.run(service, {"name": "Ada"}) == "hello Ada"
        await wait_until(lambda: collector.named(f"onward.run {service}"), timeout=WAIT_S)
        await wait_until(lambda: collector.named(f"onward.submit {service}"), timeout=WAIT_S)
        await wait_until(lambda: collector.named(f"onward.handle {service}"), timeout=WAIT_S)

    submitted, ran = (collector.one(f"onward.{stage} {service}") for stage in ("submit", "run"))
    inside, handled = collector.one(f"inside {service}"), collector.one(f"onward.handle {service}")
    at = span.get_span_context()
    assert {s.trace for s in collector.spans} == {f"{at.trace_id:032x}"}
    assert submitted.parent == f"{at.span_id:016x}"
    assert (ran.parent, handled.parent, inside.parent) == (submitted.id, ran.id, handled.id)
    assert (ran.service, handled.service) == ("onward", "worker")


@pytest.mark.contract("N-9")
async def test_the_trace_survives_a_server_that_is_killed(
    tmp_path: Path, collector: Collector, caller: Tracer
) -> None:
    options: dict[str, Any] = {"ONWARD_LEASE_MS": 3_000}
    server = Server(tmp_path, **options)
    with working(server, tmp_path):
        try:
            server.wait_ready()
            async with Client(server.url) as client:
                with caller.start_as_current_span("caller"):
                    task = await client.submit("stay", {}, backoff_ms=[0])
                await wait_until(lambda: collector.named("inside stay 1"), timeout=WAIT_S)
                server.kill()
                server = Server(tmp_path, port=server.port, **options).wait_ready()
                ended = await client.wait(task.id, timeout_ms=int(WAIT_S * 1000))
                last = ended.result  # the second attempt, unless this machine stalls
                assert last >= 2
            runs: dict[int, Seen] = {}

            def all_told() -> bool:
                runs.update({s.attributes["onward.attempt"]: s for s in ran(collector)})
                told = {
                    s.attributes["onward.attempt"] for s in collector.named("onward.handle stay")
                }
                return {1, last} <= runs.keys() and last in told

            await wait_until(all_told, timeout=WAIT_S)
        finally:
            server.kill()

    outcomes = [runs[attempt].attributes["onward.outcome"] for attempt in (1, last)]
    assert outcomes == ["lost", "succeeded"]
    for attempt in (1, last):
        inside = collector.one(f"inside stay {attempt}")
        assert inside.trace == runs[attempt].trace
    assert collector.one(f"inside stay {last}").parent == handled(collector, last).id
    assert handled(collector, last).parent == runs[last].id
    assert len({span.trace for span in collector.spans}) == 1


def handled(collector: Collector, attempt: int) -> Seen:
    spans = collector.named("onward.handle stay")
    return next(span for span in spans if span.attributes["onward.attempt"] == attempt)


def ran(collector: Collector) -> list[Seen]:
    return collector.named("onward.run stay")


@pytest.mark.contract("N-9")
async def test_a_worker_exports_its_spans_also_where_the_server_writes_none(
    tmp_path: Path, collector: Collector
) -> None:
    """What fails is marked by its class alone, and the last spans go out as the worker ends."""
    with serving(tmp_path, ONWARD_TRACES="off") as server, working(server, tmp_path) as process:
        async with Client(server.url) as client:
            task = await client.submit("refuse", {"why": "4111 1111"})
            await client.wait(task.id, timeout_ms=int(WAIT_S * 1000))
        process.stop()
    refused = collector.one("onward.handle refuse")
    assert (refused.failed, refused.attributes["error.type"]) == (True, "Refused")
    assert refused.attributes["onward.task.id"] == task.id
    assert refused.parent == ""
    assert b"4111" not in collector.raw
