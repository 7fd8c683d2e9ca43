"""Onward: hand off work and move on."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.client.batch import Batch
    from onward.client.context import Context
    from onward.client.enqueueing import enqueue
    from onward.client.errors import ProblemError, StillRunning, TaskFailed, Unreachable
    from onward.client.failures import CallFailed, EffectUnknown, Refused, Retry, TryAgain
    from onward.client.http import Client
    from onward.client.sync import SyncClient
    from onward.client.worker import Worker
    from onward.errors import OnwardError
    from onward.flow.builder import Flow
    from onward.wire.limits import Concurrency, RateLimit

__version__ = "0.1.0"
__all__ = [
    "Batch", "CallFailed", "Client", "Concurrency", "Context", "EffectUnknown", "Flow",
    "OnwardError", "ProblemError", "RateLimit", "Refused", "Retry", "StillRunning", "SyncClient",
    "TaskFailed", "TryAgain", "Unreachable", "Worker", "__version__", "enqueue",
]  # fmt: skip

# Loaded when first asked for: who submits a task must not pay for workers, nor the command line
# for either.
_HOMES = {
    "onward.client.batch": ("Batch",),
    "onward.client.context": ("Context",),
    "onward.client.enqueueing": ("enqueue",),
    "onward.client.errors": ("ProblemError", "StillRunning", "TaskFailed", "Unreachable"),
    "onward.client.failures": ("CallFailed", "EffectUnknown", "Refused", "Retry", "TryAgain"),
    "onward.client.http": ("Client",),
    "onward.client.sync": ("SyncClient",),
    "onward.client.worker": ("Worker",),
    "onward.errors": ("OnwardError",),
    "onward.flow.builder": ("Flow",),
    "onward.wire.limits": ("Concurrency", "RateLimit"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'onward' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__]
