"""Durations: a timedelta for people, milliseconds on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any


def ms(duration: timedelta) -> int:
    if not isinstance(duration, timedelta):
        raise TypeError(
            f"a duration is a timedelta, not {duration!r}; milliseconds go where a name ends in _ms"
        )
    return round(duration.total_seconds() * 1000)


def either(duration: timedelta | None, duration_ms: int | None) -> int | None:
    """The one that is given, in milliseconds."""
    return duration_ms if duration is None else ms(duration)


def in_ms(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The same options with each of these under its name with `_ms`."""
    spelled = {**options}
    for name in names:
        given = spelled.pop(name, None)
        if given is not None:
            listed = isinstance(given, list | tuple)
            spelled[f"{name}_ms"] = [ms(each) for each in given] if listed else ms(given)
    return spelled
