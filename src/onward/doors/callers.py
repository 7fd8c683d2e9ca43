"""Who asks, at any door."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.native.caller import OPERATOR, Caller


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """Whom the guard found in this ASGI scope; the operator, while there are no keys."""
    caller: Caller = scope.get("state", {}).get("caller", OPERATOR)
    return caller
