"""Onward: hand off work and move on."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.client.http import Client
    from onward.client.worker import Worker
    from onward.services.function import Context, Refused, TryAgain

__version__ = "0.1.0"
__all__ = ["Client", "Context", "Refused", "TryAgain", "Worker", "__version__"]

# Loaded when first asked for: the command line must not pay for an SDK that it does not use.
_HOMES = {
    "Client": "onward.client.http",
    "Worker": "onward.client.worker",
    "Context": "onward.services.function",
    "Refused": "onward.services.function",
    "TryAgain": "onward.services.function",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'onward' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
