"""JSON at the door: what no ledger, worker or browser could pass on unchanged never comes in.

Valid UTF-8, at most 64 levels, integers of 64 bits, finite numbers, no NUL, no lone surrogate, no
key twice. The same verdict whichever ledger is behind, and never any other error than Invalid.
msgspec reads; what it lets pass is found by counting, and only a doubtful body is read twice.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from onward.core.errors import Invalid

MAX_DEPTH = 64
TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
TOO_LARGE = "an integer of more than 64 bits; send it as text"
MOST_DIGITS = 40  # read of an integer that is to be cut
MIN_INTEGER, MAX_INTEGER = -(2**63), 2**63 - 1

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
# An odd run of backslashes makes an escape; an even one is text about an escape.
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_LONE = re.compile(
    rb"(?<!\\)(?:\\\\)*(\\u[dD](?:[89abAB]..(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB]..\\u[dD])[c-fC-F]))"
)


def parse(body: bytes) -> object:
    try:
        value = _decode(body)
        if b"\\" in body and b"\\u0000" in body:
            _refuse_nul(body)
        keys = _measure(value)
        # Each key that was kept has its colon; only a dropped twin, or a colon inside a text, makes
        # more of them. Written out again, the texts are the same and the twin is gone.
        colons = body.count(b":")
        if keys != colons and (b"\\u003" in body or _encode(value).count(b":") != colons):
            json.loads(body, object_pairs_hook=_refuse_twins)
    except msgspec.DecodeError as error:
        raise Invalid(fault(body, str(error))) from None
    except UnicodeDecodeError:
        raise Invalid(_not_utf8(body)) from None
    except RecursionError:
        raise Invalid(TOO_DEEP) from None
    return value


def parse_object(body: bytes, *, clamped: str | None = None) -> dict[str, Any]:
    """`clamped` names a member whose integer may have any size, and is cut to 64 bits."""
    try:
        value = parse(body)
    except Invalid as refused:
        if clamped is None or str(refused) != TOO_LARGE:
            raise
        value = parse(_clamped(body, clamped))
    if type(value) is not dict:
        raise Invalid("the body must be a JSON object")
    return value


def _clamped(body: bytes, name: str) -> bytes:
    # By another reader: msgspec refuses an integer of thousands of digits wherever it stands.
    try:
        value = json.loads(body.decode(), parse_int=_cut, object_pairs_hook=_refuse_twins)
    except (ValueError, RecursionError):
        return body  # it is refused for another reason
    if type(value) is dict and type(value.get(name)) is int:
        value[name] = max(MIN_INTEGER, min(value[name], MAX_INTEGER))
        return json.dumps(value).encode()
    return body


def _cut(digits: str) -> int:
    return int(digits[:MOST_DIGITS])  # of this length it is over 64 bits, as it was


def _measure(value: object) -> int:  # noqa: C901 one pass over every body that comes in
    """How many keys there are, level by level, so that depth costs no recursion."""
    keys = 0
    level = [[value]]  # a box of ours around it, so that a bare number is looked at too
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        box: Any
        for box in level:
            if type(box) is dict:
                keys += len(box)
                box = box.values()
            for item in box:
                kind = type(item)
                if kind is str:
                    continue
                if kind is dict or kind is list:
                    below.append(item)
                elif kind is int and not MIN_INTEGER <= item <= MAX_INTEGER:
                    raise Invalid(TOO_LARGE)
        if not below:
            return keys
        level = below
    raise Invalid(TOO_DEEP)


def _refuse_nul(body: bytes) -> None:
    if found := _NUL.search(body):
        raise Invalid(f"a NUL character (\\u0000) in a text, byte {found.end() - 6}")


def _refuse_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise Invalid(f"the key {key[:40]!r} comes twice in one object")
        seen[key] = value
    return seen


def _not_utf8(body: bytes) -> str:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8, byte {error.start}"
    return "not UTF-8"


def fault(body: bytes, reason: str) -> str:
    """Why msgspec could not read this, in the words of every door."""
    if body.startswith(b"\xef\xbb\xbf"):
        return "the body starts with a byte order mark"
    if reason.startswith("Number out of range"):
        return "a number that is not finite"
    if reason.startswith("Integer value out of range"):
        return TOO_LARGE
    if found := _LONE.search(body):
        return f"a lone surrogate in a text, byte {found.start(1)}"
    if reason == "Input data was truncated":
        return "not JSON: it ends too early"
    return f"not JSON: {reason.removeprefix('JSON is malformed: ')}"
