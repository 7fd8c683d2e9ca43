"""Tests of programs that use Onward: a whole server in the test's process, and its time in hand.

The pytest fixture `onward` is a `Sandbox`; other frameworks write `async with Sandbox() as onward`.
Needs what a server needs: pip install 'onward[server]'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.testing.fakes import Fake, FakeContext
    from onward.testing.sandbox import Sandbox

__all__ = ["Fake", "FakeContext", "Sandbox"]

_HOMES = {
    "Fake": "onward.testing.fakes",
    "FakeContext": "onward.testing.fakes",
    "Sandbox": "onward.testing.sandbox",
}


# Loaded when first asked for: pytest imports this package wherever Onward is installed.
def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'onward.testing' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
