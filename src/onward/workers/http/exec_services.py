"""The services of the worker that ships with flows: `transform`, `sum` and `route` (S4-5)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import WithJsonSchema

from onward.client.failures import Refused
from onward.client.service import Service

# Anything; the schema makes a flow send its input and params side by side.
Payload = Annotated[
    Any, WithJsonSchema({"properties": {"input": {}, "params": {"type": "object"}}})
]


class InvalidInput(Refused):
    """Not something this service works on."""


def transform(payload: Payload) -> Any:
    """A text in capitals (`upper`) or without (`lower`), a number times `mul`; of a list, each.

    In `params`: `{"op": "upper"}` or `{"upper": true}`, `{"mul": 2}`. Without any of these
    the input comes back as it is.
    """
    value, params = _parts(payload)
    case = _case(params)
    factor = params.get("mul")
    if factor is not None and not _is_number(factor):
        raise InvalidInput("params.mul must be a number")
    return _each(value, case, factor)


def sum_(payload: Payload) -> Any:
    """The sum of an array of numbers."""
    value, _ = _parts(payload)
    if not isinstance(value, list) or not all(map(_is_number, value)):
        raise InvalidInput("the input must be an array of numbers")
    return _number(math.fsum(value) if any(isinstance(n, float) for n in value) else sum(value))


def route(payload: Payload) -> dict[str, str]:
    """Which way to go on: `{"action": params.action}`."""
    _, params = _parts(payload)
    action = params.get("action")
    if not isinstance(action, str) or not action:
        raise InvalidInput("params.action must name an action")
    return {"action": action}


def _parts(payload: Any) -> tuple[Any, Mapping[str, Any]]:
    """A flow sends input and params; anything else is the input itself."""
    if isinstance(payload, dict) and {"input"} <= payload.keys() <= {"input", "params"}:
        params = payload.get("params") or {}
        if isinstance(params, dict):
            return payload["input"], params
    return payload, {}


def _case(params: Mapping[str, Any]) -> str | None:
    op = params.get("op")
    if op not in (None, "upper", "lower", "mul"):
        raise InvalidInput(f"params.op must be upper, lower or mul, not {op!r}")
    if op == "mul" and "mul" not in params:
        raise InvalidInput("params.mul must be a number")
    for name in ("upper", "lower"):
        if op == name or (op is None and params.get(name) is True):
            return name
    return None


def _each(value: Any, case: str | None, factor: float | None) -> Any:
    if isinstance(value, list):
        return [_each(item, case, factor) for item in value]
    if isinstance(value, str) and case is not None:
        return value.upper() if case == "upper" else value.lower()
    if _is_number(value) and factor is not None:
        return _number(value * factor)
    if case is None and factor is None:
        return value
    kind = "an object" if isinstance(value, dict) else type(value).__name__
    raise InvalidInput(f"nothing in params applies to {kind}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: float) -> float:
    """A whole number without a decimal point, as other JSON writers have it."""
    if not math.isfinite(value):
        raise InvalidInput("the result is too large for a number")
    return int(value) if value == int(value) and abs(value) < 2**53 else value


SERVICES = (Service(transform), Service(sum_, name="sum"), Service(route))
