"""Where a trace goes through this process: out with a request, around a handler.

For clients and workers. OpenTelemetry is never needed here, and is imported only where this process
exports spans of its own, or the code in it, or the task, is part of a trace.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING

from onward.tracing import environment

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from onward.tracing.exporting import WorkerSpans

_NOWHERE: AbstractContextManager[None] = nullcontext()


def outgoing() -> dict[str, str]:
    """Headers that tell the other side of the current span; none without one."""
    if "opentelemetry.trace" not in sys.modules:
        return {}  # no code here can have begun a span
    from opentelemetry import propagate

    headers: dict[str, str] = {}
    propagate.inject(headers)
    return headers


def worker_spans() -> WorkerSpans | None:
    """This process exports its spans, if its environment names a collector. None: it does not."""
    named, off = environment.named(os.environ), environment.turned_off(os.environ)
    if not named or off or not environment.installed():
        return None
    from onward.tracing.exporting import WorkerSpans

    return WorkerSpans()


def handling(
    traceparent: str | None, type_: str, task: str, attempt: int
) -> AbstractContextManager[None]:
    """A span around a handler, for those who export this process' spans; of an error, its class."""
    if not _recorded():
        return inside(traceparent)
    return _handling(traceparent, type_, task, attempt)


def _recorded() -> bool:
    """Whether spans are wanted here: without one, a task should not pay for any."""
    trace = sys.modules.get("opentelemetry.trace")  # FastAPI imports it, for instance
    if trace is None:
        return False
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


@contextmanager
def _handling(traceparent: str | None, type_: str, task: str, attempt: int) -> Iterator[None]:
    from opentelemetry.trace import StatusCode

    with (
        inside(traceparent),
        _tracer().start_as_current_span(
            f"onward.handle {type_}",
            attributes={
                "onward.task.type": type_,
                "onward.task.id": task,
                "onward.attempt": attempt,
            },
            record_exception=False,  # its text may quote a payload
            set_status_on_exception=False,
        ) as span,
    ):
        try:
            yield
        except BaseException as error:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(StatusCode.ERROR, type(error).__name__)
            raise


@cache
def _tracer() -> Tracer:
    from opentelemetry.trace import get_tracer

    return get_tracer("onward.worker")


def inside(traceparent: str | None) -> AbstractContextManager[None]:
    """While this lasts, new spans hang below that one."""
    return _NOWHERE if traceparent is None else _inside(traceparent)


@contextmanager
def _inside(traceparent: str) -> Iterator[None]:
    try:
        from opentelemetry import context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ModuleNotFoundError:
        yield  # without the library no spans are made here
        return
    token = context.attach(TraceContextTextMapPropagator().extract({"traceparent": traceparent}))
    try:
        yield
    finally:
        context.detach(token)
