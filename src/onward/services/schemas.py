"""JSON Schemas of payloads: whether one can be used, and whether a payload fits it."""

from __future__ import annotations

from typing import Any

import jsonschema_rs

from onward.core.errors import Invalid, NextStep
from onward.core.task import encode

MOST_READY = 1_000
MOST_KNOWN = 100


class Schemas:
    """Makes each schema ready once, and asks it for every payload."""

    def __init__(self) -> None:
        self._ready: dict[tuple[str, str | None], Any] = {}
        # The same by identity: with the schemas, so that none of them is another by now.
        self._known: dict[tuple[int, str | None], tuple[Any, Any]] = {}

    def check(
        self, schema: Any, payload: Any, name: str, step: NextStep, *, mask: str | None = None
    ) -> None:
        """Invalid: the payload does not fit the schema of `name`. Its values are quoted, unless
        there is a mask for them.
        """
        validator = self._validator(schema, name, mask)
        if validator.is_valid(payload):
            return
        for error in validator.iter_errors(payload):
            path = "".join(f"/{_escaped(part)}" for part in error.instance_path)
            raise Invalid(
                f"payload{path} does not fit {name!r}: {error.message}",
                pointer=f"/payload{path}",
                step=step,
            )

    def _validator(self, schema: Any, name: str, mask: str | None) -> Any:
        known = self._known.get((id(schema), mask))
        if known is not None:
            return known[1]
        ready = (encode(schema), mask)
        validator = self._ready.get(ready)
        if validator is None:
            if len(self._ready) >= MOST_READY:
                self._ready.clear()
            validator = checked(schema, f"the schema of {name!r}", mask=mask)
            self._ready[ready] = validator
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[id(schema), mask] = (schema, validator)
        return validator


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
