"""Where a trace goes through this process: out with a request, around a handler.

For clients and workers, which have no traces of their own to write. OpenTelemetry is never needed
here, and is imported only where somebody in this process, or the task, is part of a trace.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

_NOWHERE: AbstractContextManager[None] = nullcontext()


def outgoing() -> dict[str, str]:
    """Headers that tell the other side of the current span; none without one."""
    if "opentelemetry.trace" not in sys.modules:
        return {}  # nobody here can have begun a span
    from opentelemetry import propagate

    headers: dict[str, str] = {}
    propagate.inject(headers)
    return headers


def inside(traceparent: str | None) -> AbstractContextManager[None]:
    """While this lasts, new spans hang below that one."""
    return _NOWHERE if traceparent is None else _inside(traceparent)


@contextmanager
def _inside(traceparent: str) -> Iterator[None]:
    try:
        from opentelemetry import context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ModuleNotFoundError:
        yield  # without the library nobody here makes spans
        return
    token = context.attach(TraceContextTextMapPropagator().extract({"traceparent": traceparent}))
    try:
        yield
    finally:
        context.detach(token)
