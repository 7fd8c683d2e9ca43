"""One trace from whoever hands work in to whoever does it, whatever happens in between."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.trace import SpanKind, Tracer

from onward.client.api import ServerApi
from onward.client.execution import Execution
from onward.client.service import Service
from onward.client.task_context import TaskContext
from onward.engine import Onward
from onward.flow.runs import QUEUE
from onward.settings import Settings
from onward.tracing import server
from onward.wire.frames import TaskFrame
from tests.push.conftest import Hire, hire, register
from tests.running_app import App, running_app
from tests.runs.flow_app import call, chain, open_flow_app
from tests.streams.stream_app import open_stream_app
from tests.support import a_task, wait_until
from tests.tracing.collector import Collector, Seen

__all__ = ["hire"]

LAST_WORDS_S = server.LAST_WORDS_S  # as it is outside of tests
PRODUCER, CONSUMER = 4, 5  # as OTLP numbers them
TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"


def said(flags: str = "01") -> dict[str, str]:
    return {"traceparent": f"00-{TRACE}-{CALLER}-{flags}"}


async def submit(app: App, **body: Any) -> str:
    more = {"headers": said(), **body.pop("more", {})}
    answer = await app.post("/api/v2/tasks", {"type": "mail", **body}, **more)
    assert answer.status_code == 202, answer.text
    id: str = answer.json()["id"]
    return id


def below(span: Seen, parent: Seen) -> bool:
    return (span.trace, span.parent) == (parent.trace, parent.id)


@pytest.mark.contract("N-9")
async def test_a_submission_its_wait_and_its_attempt_are_spans_of_the_callers_trace(
    collector: Collector,
) -> None:
    async with running_app() as app:
        task = await submit(app, payload={"to": "a-secret-address"})
        app.clock.advance(1_500)
        worker = await app.worker(group=None, services=["mail"])
        frame = await worker.task()
        app.clock.advance(250)
        await worker.answer(task, {"sent": "a-secret-answer"})
        await app.settled()
        began_at = app.clock.now() - 250

    submitted = collector.one("onward.submit mail")
    queued, ran = collector.one("onward.queue mail"), collector.one("onward.run mail")
    assert (submitted.trace, submitted.parent) == (TRACE, CALLER)
    assert below(queued, submitted)
    assert below(ran, submitted)
    assert (submitted.kind, ran.kind) == (PRODUCER, CONSUMER)
    assert (queued.start_ms, queued.end_ms) == (began_at - 1_500, began_at)
    assert (ran.start_ms, ran.end_ms) == (began_at, began_at + 250)
    assert frame["traceparent"] == f"00-{TRACE}-{ran.id}-01"
    assert ran.attributes == {
        "messaging.system": "onward",
        "messaging.destination.name": "mail",
        "messaging.operation.type": "process",
        "messaging.message.id": task,
        "onward.task.id": task,
        "onward.task.type": "mail",
        "onward.queue": "mail",
        "onward.attempt": 1,
        "onward.generation": 1,
        "onward.worker": worker.id,
        "onward.outcome": "succeeded",
    }
    assert {span.service for span in collector.spans} == {"onward"}
    assert b"a-secret" not in collector.raw


@pytest.mark.contract("N-9")
async def test_each_attempt_has_a_span_and_the_last_says_that_it_died(collector: Collector) -> None:
    async with running_app() as app:
        worker = await app.worker(group=None, services=["mail"])
        task = await submit(app, payload={}, max_retries=1, backoff_ms=[5_000])
        first = await worker.task()
        await worker.answer(task, error="secret words", errorType="RateLimitError")
        await app.settled()
        await app.advance(5_000)
        second = await worker.task()
        await worker.answer(task, error="secret words", errorType="RateLimitError")
        await app.settled()

    one, two = collector.named("onward.run mail")
    assert [first["traceparent"], second["traceparent"]] == [
        f"00-{TRACE}-{span.id}-01" for span in (one, two)
    ]
    assert [span.attributes["onward.attempt"] for span in (one, two)] == [1, 2]
    assert [span.attributes["onward.outcome"] for span in (one, two)] == ["retrying", "dead"]
    assert one.failed
    assert two.failed
    assert two.attributes["error.type"] == "RateLimitError"
    assert one.events[-1][0] == "task.retrying"
    assert [name for name, _ in two.events] == ["task.failed", "task.dlq"]
    # The pause before a retry is not time in the queue.
    assert [s.end_ms - s.start_ms for s in collector.named("onward.queue mail")] == [0, 0]
    assert b"secret" not in collector.raw


async def test_a_replay_goes_on_in_the_trace_of_its_task(collector: Collector) -> None:
    async with running_app() as app:
        worker = await app.worker(group=None, services=["mail"])
        task = await submit(app, payload={}, max_retries=0)
        await worker.task()
        await worker.answer(task, error="no")
        await app.settled()
        assert (await app.post(f"/api/v2/tasks/{task}/retry", {})).status_code == 200
        frame = await worker.task()
        await worker.answer(task, "yes")
        await app.settled()

    _, again = collector.named("onward.run mail")
    assert again.trace == TRACE
    assert again.attributes["onward.generation"] == 2
    assert frame["traceparent"] == f"00-{TRACE}-{again.id}-01"


async def test_a_task_that_no_worker_took_ends_in_its_wait(collector: Collector) -> None:
    async with running_app() as app:
        task = await submit(app, payload={})
        app.clock.advance(700)
        assert (await app.post(f"/api/v2/tasks/{task}/cancel", {})).status_code == 200

    waited = collector.one("onward.queue mail")
    assert (waited.trace, waited.attributes["onward.outcome"]) == (TRACE, "canceled")
    assert waited.end_ms - waited.start_ms == 700
    assert not collector.named("onward.run mail")


async def test_the_same_key_from_another_trace_is_the_same_submission(collector: Collector) -> None:
    async with running_app() as app:
        worker = await app.worker(group=None, services=["mail"])
        first = await submit(app, payload={}, idempotency_key="k")
        other = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
        again = await submit(app, payload={}, idempotency_key="k", more={"headers": other})
        assert again == first
        frame = await worker.task()
        await worker.answer(first)
        await app.settled()

    assert frame["traceparent"].startswith(f"00-{TRACE}-")
    known = [s.attributes["onward.fate"] for s in collector.named("onward.submit mail")]
    assert sorted(known) == ["fresh", "known"]
    assert collector.one("onward.run mail").trace == TRACE


async def test_a_submission_that_is_refused_says_so(collector: Collector) -> None:
    async with running_app() as app:
        await submit(app, payload=1, idempotency_key="k")
        body = {"type": "mail", "payload": 2, "idempotency_key": "k"}
        assert (await app.post("/api/v2/tasks", body, headers=said())).status_code == 422

    spans = collector.named("onward.submit mail")
    assert sorted(span.failed for span in spans) == [False, True]


async def test_a_caller_that_is_not_sampled_is_followed_and_not_written_of(
    collector: Collector,
) -> None:
    async with running_app() as app:
        worker = await app.worker(group=None, services=["mail"])
        task = await submit(app, payload={}, more={"headers": said("00")})
        frame = await worker.task()
        await worker.answer(task)
        await app.settled()

    assert frame["traceparent"].startswith(f"00-{TRACE}-")
    assert frame["traceparent"].endswith("-00")
    assert not collector.spans


@pytest.mark.parametrize("nonsense", ["", "00-zz", f"00-{'0' * 32}-{CALLER}-01", "x" * 5_000])
async def test_a_header_that_cannot_be_read_begins_a_trace(
    collector: Collector, nonsense: str
) -> None:
    async with running_app() as app:
        await submit(app, payload={}, more={"headers": {"traceparent": nonsense}})

    begun = collector.one("onward.submit mail")
    assert begun.parent == ""
    assert int(begun.trace, 16)


@pytest.mark.contract("N-9")
async def test_the_steps_of_a_run_are_below_the_run(collector: Collector) -> None:
    async with open_flow_app() as flows:
        await flows.serve()
        steps = chain(("a", call("echo")), ("b", call("echo")), ("c", call("echo")))
        flow = {"name": "three", "definition": steps}
        assert (await flows.app.post("/api/v2/flows", flow)).status_code == 200
        begun = await flows.app.post("/api/v2/runs", {"flow": "three"}, headers=said())
        assert (await flows.ended(begun.json()["id"]))["state"] == "succeeded"

    runs = [span for span in collector.spans if span.kind == CONSUMER]
    (run,) = [span for span in runs if span.attributes["onward.queue"] == QUEUE]
    calls = collector.named("onward.run echo")
    assert run.trace == TRACE
    assert len(calls) == 3
    assert all(below(each, run) for each in calls)


async def test_a_worker_that_is_called_has_the_place_of_its_attempt_in_a_header(
    collector: Collector, hire: Hire
) -> None:
    async with running_app() as app:
        worker = hire()
        await register(app, worker)
        body = {"type": "echo", "payload": 1}
        answer = await app.post("/api/v2/tasks?wait_ms=10000", body, headers=said())
        assert answer.json()["state"] == "succeeded", answer.text

    (request,) = worker.calls
    assert request.headers["traceparent"] == f"00-{TRACE}-{collector.one('onward.run echo').id}-01"


@pytest.mark.contract("N-9")
@pytest.mark.parametrize("ledger", ["sqlite", "redis"])
async def test_a_stream_worker_finds_the_place_of_its_attempt_in_the_entry(
    collector: Collector, ledger: str
) -> None:
    async with open_stream_app(ledger) as streams:
        body = {"type": "t", "queue": "streams", "payload": {}}
        answer = await streams.http.post("/api/v2/tasks", json=body, headers=said())
        entry, fields = await streams.take()
        await streams.succeed(entry, fields)
        await streams.over(answer.json()["id"])
        foreign = await streams.add_foreign("theirs", **said())
        await streams.phase("theirs", "offered")
        entry, theirs = await streams.take()
        await streams.succeed(entry, theirs)
        await streams.over("theirs")

    assert foreign == entry
    ran = {span.attributes["onward.task.id"]: span for span in collector.named("onward.run t")}
    ours = ran[answer.json()["id"]]
    assert fields["traceparent"] == f"00-{TRACE}-{ours.id}-01"
    (adopted,) = [
        s
        for s in collector.spans
        if s.attributes["onward.task.id"] == "theirs" and s.kind == CONSUMER
    ]
    assert (adopted.trace, adopted.parent) == (TRACE, CALLER)


async def test_a_function_in_the_server_itself_runs_inside_its_attempt(
    collector: Collector, caller: Tracer
) -> None:
    made: list[Any] = []

    async def mail() -> None:
        with caller.start_as_current_span("inside") as span:
            made.append(span)

    settings = Settings(ledger="sqlite:///:memory:")
    async with Onward(settings, services={"mail": Service(mail)}) as onward:
        task = a_task(queue="mail", created_at=onward.clock.now())
        await onward.dispatcher.submit_and_wait(task, timeout_ms=10_000)

    (inside,) = made
    assert f"{inside.parent.span_id:016x}" == collector.one("onward.run mail").id


@pytest.mark.parametrize("plain", [False, True])
async def test_spans_of_a_handler_hang_below_the_attempt(caller: Tracer, plain: bool) -> None:
    made: list[Any] = []

    async def handle() -> None:
        with caller.start_as_current_span("inside") as span:
            made.append(span)

    def handle_plainly() -> None:
        with caller.start_as_current_span("inside") as span:
            made.append(span)

    link: Any = SimpleNamespace(keeps_logs=False)
    task = TaskFrame(task_id="t", traceparent=said()["traceparent"])
    execution = Execution(Service(handle_plainly if plain else handle), TaskContext(task, link))
    with ThreadPoolExecutor(1) as threads:
        await execution.call("{}", threads)
    after: Any = caller.start_span("after")

    (span,) = made
    assert f"{span.parent.trace_id:032x}-{span.parent.span_id:016x}" == f"{TRACE}-{CALLER}"
    assert after.parent is None, "the trace ends with the handler"


async def test_a_client_tells_of_its_current_span_and_of_nothing_else(caller: Tracer) -> None:
    wire = ServerApi("http://127.0.0.1:1")
    with caller.start_as_current_span("asks", kind=SpanKind.CLIENT) as span:
        at = span.get_span_context()
        sent = wire.request("POST", "/api/v2/tasks", body={}).headers
        assert (
            sent["traceparent"] == f"00-{at.trace_id:032x}-{at.span_id:016x}-{at.trace_flags:02x}"
        )
    assert "traceparent" not in wire.request("POST", "/api/v2/tasks", body={}).headers
    await wire.close()


# Nobody is disturbed by a collector.


async def test_a_collector_that_never_answers_costs_nothing(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector.mute.set()
    monkeypatch.setattr(server, "LAST_WORDS_S", LAST_WORDS_S)
    # Without a bound of ours, the last spans would be waited for as long as this: no test may last
    # that long.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600000")
    async with running_app(builtin_worker=True) as app:
        body = {"type": "echo", "payload": {"text": "hi"}}
        answer = await app.post("/api/v2/tasks?wait_ms=10000", body)
        assert answer.json()["state"] == "succeeded"
        await wait_until(collector.asked.is_set)


async def test_no_collector_at_all_costs_nothing(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600000")
    monkeypatch.setattr(server, "LAST_WORDS_S", LAST_WORDS_S)
    async with running_app(builtin_worker=True) as app:
        body = {"type": "echo", "payload": {"text": "hi"}}
        answer = await app.post("/api/v2/tasks?wait_ms=10000", body)
        assert answer.json()["state"] == "succeeded"
