"""Who asks, at any door."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from onward.native.caller import OPERATOR, Caller


def caller_of(request: HTTPConnection) -> Caller:
    """As the guard found it; while there are no keys, the operator."""
    return getattr(request.state, "caller", OPERATOR)
