"""Traces of a server, by OpenTelemetry: imported only when they are on.

A submission's span is written as it happens, every other after the fact (chronicle.py). What cannot
be delivered is dropped by the exporter's own thread: no task ever waits for a collector.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import structlog
from opentelemetry import context, propagate
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from onward import __version__
from onward.core.clock import Clock
from onward.core.contended import UniqueRule
from onward.core.contract import Backend, Key, Receipt, Verdict
from onward.core.decisions import Reader
from onward.core.dispatch import Dispatcher
from onward.core.duty import Duty
from onward.core.intake import NewTask
from onward.core.outcome import Outcome, Parked, Succeeded
from onward.core.policy import Profile
from onward.core.task import Claimed, Instant, Json, Letter, Task
from onward.core.trace import RUN, inherited, placed, span_id
from onward.tracing.chronicle import Chronicle
from onward.tracing.exporting import exporter as own_exporter
from onward.tracing.exporting import resource
from onward.tracing.stages import Stage

App: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]

log = structlog.get_logger("onward.tracing")

LAST_WORDS_S = 2.0  # how long a server that stops waits for its last spans to be taken
FAULTS = frozenset({"failed", "dead", "retrying", "lost"})

_W3C = TraceContextTextMapPropagator()


class Tracing:
    """The spans of this server, and where they go: as the OTEL_* variables say."""

    def __init__(self, exporter: SpanExporter | None = None) -> None:
        self._ids = _Ids()
        self._provider = TracerProvider(
            resource=resource("onward"), id_generator=self._ids, shutdown_on_exit=False
        )
        self._exporter = exporter or own_exporter()
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("onward", __version__)

    def dispatcher(
        self, backend: Backend, profiles: Mapping[str, Profile], clock: Clock, **more: Any
    ) -> Dispatcher:
        """One that gives every task that comes in its place in a trace."""
        return TracedDispatcher(self, backend, profiles, clock, **more)

    def inheriting(self, reader: Reader) -> Reader:
        """The same; what a parent spawns in its child's last move is placed in its trace, too."""

        def heard(
            letter: Letter, result: Json, now: Instant
        ) -> tuple[Claimed, Parked | Succeeded] | None:
            found = reader(letter, result, now)
            return None if found is None else (found[0], inherited(*found))

        return heard

    def inbound(self, app: App) -> App:
        """Before every door: a call that says where it stands in a trace is worked on there."""
        return Inbound(app)

    def chronicle(self, backend: Backend, clock: Clock, duty: Duty | None) -> Chronicle:
        return Chronicle(backend, clock, self.write, duty)

    @contextmanager
    def submission(self, tasks: Sequence[Task]) -> Iterator[tuple[list[Task], Span]]:
        """The tasks, placed in the trace of their submitter, or in one of their own."""
        first = tasks[0]
        attributes: dict[str, Any] = {**_of(first), "messaging.operation.type": "send"}
        if len(tasks) > 1:
            attributes["messaging.batch.message_count"] = len(tasks)
        else:
            attributes |= {"onward.task.id": first.id, "messaging.message.id": first.id}
        span = self._tracer.start_span(
            f"onward.submit {first.type}", kind=SpanKind.PRODUCER, attributes=attributes
        )
        try:
            here = _traceparent(span)
            yield [placed(task, here) for task in tasks], span
        except Exception as error:
            span.set_status(StatusCode.ERROR, type(error).__name__)
            raise
        finally:
            span.end()

    def write(self, task: Task, traceparent: str, stage: Stage) -> None:
        """The span of a stage that is over."""
        attributes: dict[str, Any] = {
            **_of(task),
            "messaging.message.id": task.id,
            "onward.task.id": task.id,
            "onward.attempt": stage.attempt,
            "onward.generation": stage.generation,
            "onward.outcome": stage.outcome,
            "onward.worker": stage.worker,
            "error.type": stage.fault,
            "messaging.operation.type": "process" if stage.kind == RUN else None,
        }
        self._ids.next = span_id(task.id, stage.generation, stage.attempt, stage.kind)
        span = self._tracer.start_span(
            f"onward.{stage.kind} {task.type}",
            context=_W3C.extract({"traceparent": traceparent}),
            kind=SpanKind.CONSUMER if stage.kind == RUN else SpanKind.INTERNAL,
            attributes={name: each for name, each in attributes.items() if each is not None},
            start_time=_ns(stage.start_at),
        )
        for note in stage.notes:
            attributes = {f"onward.{name}": value for name, value in note.attributes.items()}
            span.add_event(note.name, attributes, timestamp=_ns(note.at))
        if stage.outcome in FAULTS:
            span.set_status(StatusCode.ERROR, stage.fault)
        span.end(end_time=_ns(stage.end_at))

    async def close(self) -> None:
        """Hand over what is left, as far as it is taken soon."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def shut() -> None:
            try:
                self._provider.shutdown()
            finally:
                with suppress(RuntimeError):  # too late: the loop that waits for it is gone
                    loop.call_soon_threadsafe(done.set)

        # A daemon, which the end of the process does not wait for: an executor's thread would be.
        threading.Thread(target=shut, name="onward-last-spans", daemon=True).start()
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                await done.wait()
        except TimeoutError:
            log.warning("the last spans were not taken", waited_s=LAST_WORDS_S)
            self._exporter.shutdown()  # its thread would try again for half a minute


class TracedDispatcher(Dispatcher):
    def __init__(self, tracing: Tracing, *rest: Any, **more: Any) -> None:
        super().__init__(*rest, **more)
        self._tracing = tracing

    async def submit(
        self,
        task: Task,
        *,
        cap: int | None = None,
        key: Key | None = None,
        unique: UniqueRule | None = None,
    ) -> Receipt:
        with self._tracing.submission([task]) as ([placed_task], span):
            receipt = await super().submit(placed_task, cap=cap, key=key, unique=unique)
            span.set_attribute("onward.fate", receipt.fate.value)
            if receipt.task != task.id:  # its key was known: the task goes on in the first trace
                span.set_attribute("onward.task.id", receipt.task)
            return receipt

    async def submit_all(self, tasks: Sequence[Task]) -> Sequence[Receipt]:
        if not tasks:
            return ()
        with self._tracing.submission(tasks) as (placed_tasks, _):
            return await super().submit_all(placed_tasks)

    async def submit_each(self, items: Sequence[NewTask]) -> list[Receipt | Exception]:
        if not items:
            return []
        with self._tracing.submission([item.task for item in items]) as (placed, _):
            pairs = zip(items, placed, strict=True)
            return await super().submit_each([item._replace(task=task) for item, task in pairs])

    def settle_soon(self, task: Claimed, outcome: Outcome) -> asyncio.Future[Verdict]:
        return super().settle_soon(task, inherited(task, outcome))


class Inbound:
    def __init__(self, app: App) -> None:
        self._app = app
        self._names = {name.encode(): name for name in propagate.get_global_textmap().fields}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        carrier: dict[str, str] = {}
        if scope["type"] == "http":
            for name, value in scope["headers"]:
                if name in self._names:
                    carrier[self._names[name]] = value.decode("latin-1")
        if not carrier:
            await self._app(scope, receive, send)
            return
        token = context.attach(propagate.extract(carrier))
        try:
            await self._app(scope, receive, send)
        finally:
            context.detach(token)


class _Ids(RandomIdGenerator):
    """Random ids, except for a span whose id was known before it was written."""

    next: int | None = None

    def generate_span_id(self) -> int:
        given, self.next = self.next, None
        return super().generate_span_id() if given is None else given


def _of(task: Task) -> dict[str, Any]:
    return {
        "messaging.system": "onward",
        "messaging.destination.name": task.queue,
        "onward.task.type": task.type,
        "onward.queue": task.queue,
    }


def _traceparent(span: Span) -> str:
    at = span.get_span_context()
    return f"00-{at.trace_id:032x}-{at.span_id:016x}-{at.trace_flags:02x}"


def _ns(at: Instant) -> int:
    return at * 1_000_000
