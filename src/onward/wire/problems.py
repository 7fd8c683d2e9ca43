"""Errors as every client of /api/v2 reads them (RFC 9457), and what a wrong field is called."""

from __future__ import annotations

import re
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from onward.wire.base import Wire


class FieldFault(Wire, frozen=True):
    pointer: str
    message: str


class Problem(Wire, frozen=True):
    type: str
    title: str
    status: int
    code: str  # stable, for machines
    detail: str
    request_id: str = ""
    hint: str | UnsetType = UNSET  # the next step
    errors: tuple[FieldFault, ...] | UnsetType = UNSET


class WrongField(NamedTuple):
    pointer: str
    message: str


_WORDS = {
    "`int`": "a whole number", "`float`": "a number", "`str`": "text", "`bool`": "true or false",
    "`array`": "a list", "`object`": "an object", "`null`": "null",
}  # fmt: skip
_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<at>[^`]*)`)?$", re.DOTALL)
_FIELD = re.compile(r"^Object (?P<how>missing required|contains unknown) field `(?P<name>[^`]*)`$")


def fault_of(text: str) -> WrongField:
    """What msgspec finds wrong, as a JSON pointer and a sentence."""
    found = _AT.match(text)
    what, at = (found["what"], found["at"] or "$") if found else (text, "$")
    pointer = re.sub(r"\[(\d+|\.\.\.)\]|\.", lambda part: f"/{part[1] or ''}", at[1:])
    if field := _FIELD.match(what):
        unknown = field["how"] == "contains unknown"
        pointer = f"{pointer}/{field['name']}"
        return WrongField(pointer, "is no field of this request" if unknown else "is required")
    if what.startswith("Invalid enum value"):
        # Without the value, which msgspec quotes: it may be a secret in the wrong field.
        return WrongField(pointer, "is none of the values that this may have")
    for name, word in _WORDS.items():
        what = what.replace(name, word)
    return WrongField(pointer, f"{what[:1].lower()}{what[1:]}")
