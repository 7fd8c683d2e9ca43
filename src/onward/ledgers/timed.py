"""A ledger whose calls are measured, as its server sees them: how long each took, which failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from time import perf_counter
from typing import Any, cast

from onward.core.contract import Backend, TaskStore
from onward.core.errors import LedgerUnavailable
from onward.core.measures import CALLS_MS, Histogram

OPERATIONS = tuple(name for name, call in vars(TaskStore).items() if iscoroutinefunction(call))


class LedgerCalls:
    """By operation; each of them is one round trip, of many items."""

    def __init__(self) -> None:
        self.took = {operation: Histogram(CALLS_MS) for operation in OPERATIONS}
        self.failed: Counter[str] = Counter(dict.fromkeys(OPERATIONS, 0))  # it did not answer


class _TimedStore:
    def __init__(self, inner: TaskStore, calls: LedgerCalls) -> None:
        self.inner = inner
        self.calls = calls


def _timed(operation: str) -> Callable[..., Awaitable[Any]]:
    async def call(self: _TimedStore, *args: Any, **named: Any) -> Any:
        began = perf_counter()
        try:
            return await getattr(self.inner, operation)(*args, **named)
        except LedgerUnavailable:
            self.calls.failed[operation] += 1
            raise
        finally:
            self.calls.took[operation].observe((perf_counter() - began) * 1000)

    return call


for _operation in OPERATIONS:
    setattr(_TimedStore, _operation, _timed(_operation))


class _TimedBackend:
    def __init__(self, inner: Backend, calls: LedgerCalls) -> None:
        self._inner = inner
        self.tasks = _TimedStore(inner.tasks, calls)
        self.bell = inner.bell
        self.effects = inner.effects  # looked at for every task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def timed(backend: Backend, calls: LedgerCalls) -> Backend:
    """The same ledger. What its calls took is in `calls`."""
    return cast(Backend, _TimedBackend(backend, calls))
