"""JSON Schemas of payloads: whether one can be used, and whether a payload fits it."""

from __future__ import annotations

from typing import Any

import jsonschema_rs

from onward.core.errors import Invalid, NextStep
from onward.core.task import encode

MOST_READY = 1_000


class Schemas:
    """Makes each schema ready once, and asks it for every payload."""

    def __init__(self) -> None:
        self._ready: dict[tuple[str, str | None], Any] = {}

    def check(
        self, schema: Any, payload: Any, name: str, step: NextStep, *, mask: str | None = None
    ) -> None:
        """Invalid: the payload does not fit the schema of `name`. Its values are quoted, unless
        there is a mask for them.
        """
        ready = (encode(schema), mask)
        validator = self._ready.get(ready)
        if validator is None:
            if len(self._ready) >= MOST_READY:
                self._ready.clear()
            validator = checked(schema, f"the schema of {name!r}", mask=mask)
            self._ready[ready] = validator
        for error in validator.iter_errors(payload):
            path = "".join(f"/{_escaped(part)}" for part in error.instance_path)
            raise Invalid(
                f"payload{path} does not fit {name!r}: {error.message}",
                pointer=f"/payload{path}",
                step=step,
            )


def _escaped(part: str | int) -> str:
    return str(part).replace("~", "~0").replace("/", "~1")


def checked(schema: Any, name: str, *, mask: str | None = None, pointer: str = "") -> Any:
    """Its validator, which reads nothing but the schema itself: no URL, no file."""
    try:
        return jsonschema_rs.validator_for(encode(schema), mask=mask, offline=True)
    except ValueError as error:
        why = getattr(error, "message", error)
        hint = "a $ref may point into the schema itself ('#/…'), nowhere else"
        message = f"{name} is no JSON Schema that can be used: {why}"
        raise Invalid(message, pointer=pointer, hint=hint) from error
