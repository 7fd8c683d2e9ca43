"""Errors as every client of /api/v2 reads them (RFC 9457), and what a wrong field is called."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from msgspec import UNSET, UnsetType, inspect

from onward.wire.base import CURSOR, KEY, NAME, Wire


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
    "int": "a whole number", "float": "a number", "str": "text", "bool": "true or false",
    "array": "a list", "object": "an object", "null": "null",
}  # fmt: skip
_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<at>[^`]*)`)?$", re.DOTALL)
_FIELD = re.compile(r"^Object (?P<how>missing required|contains unknown) field `(?P<name>[^`]*)`$")
_TYPES = re.compile(r"`([a-z |]+)`")
_LENGTH = re.compile(r"of length (?P<how>[<>]=) (?P<most>\d+)")
_PATTERN = re.compile(r"matching regex '(?P<pattern>.*)'$", re.DOTALL)
_FORMS = {
    NAME: "without control characters",
    KEY: "of printable ASCII characters",
    CURSOR: "that is `next` of the page before",
}


def fault_of(text: str, kind: Any = None) -> WrongField:
    """What msgspec finds wrong with a value of this kind, as a JSON pointer and a sentence."""
    found = _AT.match(text)
    what, at = (found["what"], found["at"] or "$") if found else (text, "$")
    pointer = re.sub(r"\[(\d+|\.\.\.)\]|\.", lambda part: f"/{part[1] or ''}", at[1:])
    if field := _FIELD.match(what):
        unknown = field["how"] == "contains unknown"
        pointer = f"{pointer}/{field['name']}"
        return WrongField(pointer, "is not a field of this request" if unknown else "is required")
    if what.startswith("Invalid enum value"):
        # Without the value, which msgspec quotes: it may be a secret in the wrong field.
        values = ", ".join(str(value) for value in _values_at(pointer, kind) if value != "")
        return WrongField(pointer, f"must be one of {values}" if values else "has an unknown value")
    what = _PATTERN.sub(_form, _LENGTH.sub(_length, _TYPES.sub(_types, what)))
    return WrongField(pointer, f"{what[:1].lower()}{what[1:]}")


def _values_at(pointer: str, kind: Any) -> Iterable[Any]:
    """What may stand at this place of such a value, where that is one of a few words."""
    found = [] if kind is None else [inspect.type_info(kind)]
    for part in [*pointer.split("/")[1:], None]:
        found = [one for kind in found for one in getattr(kind, "types", [kind])]
        if part is not None:
            found = [one for kind in found for one in _inside(kind, part)]
    return (value for one in found for value in getattr(one, "values", ()))


def _inside(kind: Any, part: str) -> Iterable[Any]:
    fields = (one.type for one in getattr(kind, "fields", ()) if one.encode_name == part)
    items = (getattr(kind, name, None) for name in ("item_type", "value_type"))
    return (one for one in (*fields, *items) if one is not None)


def _types(found: re.Match[str]) -> str:
    return " or ".join(_WORDS.get(name, name) for name in found[1].split(" | "))


def _length(found: re.Match[str]) -> str:
    if found["how"] == ">=" and found["most"] == "1":
        return "that is not empty"
    return f"of length {found['how']} {found['most']}"


def _form(found: re.Match[str]) -> str:
    forms = (words for form, words in _FORMS.items() if repr(form)[1:-1] == found["pattern"])
    return next(forms, "in the form that GET /openapi.json shows")
