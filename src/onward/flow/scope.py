"""What a node may read and write: paths into `$params`, `$shared` and `$input`.

A path walks object keys and list indexes, nothing else. One that leads nowhere is ABSENT. A key
with dots of its own is found by its whole name first. `_rt`, the engine's own records, is out of
reach: it is never in a scope, a path into it is ABSENT, and a write to it is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from onward.flow.parts import Post, Prep

ABSENT: Final = msgspec.UNSET
ROOTS = ("$params", "$shared", "$input")
RESERVED = "_rt"

_INDEX = re.compile(r"[0-9]{1,9}")


class FlowScope(msgspec.Struct, frozen=True):
    params: Mapping[str, Any]
    shared: Mapping[str, Any]
    input: Any = ABSENT

    def find(self, path: str) -> Any:
        """What a path leads to; a bare name is a shared key."""
        root, rest = parted(path)
        if reserved(rest):
            return ABSENT
        if root == "$params":
            return descend(self.params, rest)
        if root == "$input":
            return descend(self.input, rest)
        return descend(self.shared, rest)

    def with_input(self, value: Any) -> FlowScope:
        return FlowScope(self.params, self.shared, value)


def parted(path: str) -> tuple[str, str]:
    """Root and rest; whatever names no root is a shared key."""
    root, _, rest = path.partition(".")
    return (root, rest) if root in ROOTS else ("$shared", path)


def is_path(text: str) -> bool:
    """Whether a text in an expression, or in a node's params, is meant as a path."""
    return text.partition(".")[0] in ROOTS


def reserved(key: str) -> bool:
    return key == RESERVED or key.startswith(RESERVED + ".")


def shared_key(path: str | None) -> str | None:
    """The shared key that a path names. None: it names something else."""
    if path is None:
        return None
    root, rest = parted(path)
    return rest if root == "$shared" and rest and not reserved(rest) else None


def path_flaw(path: str) -> str | None:
    """What is wrong with a path, if anything."""
    if path.startswith("$") and not is_path(path):
        root = path.partition(".")[0]
        return f"has the unknown root {root!r}; there are {', '.join(ROOTS)}"
    return "reaches into _rt, which belongs to the engine" if reserved(parted(path)[1]) else None


def key_flaw(key: str) -> str | None:
    """What is wrong with a shared key to write to, if anything."""
    if not key:
        return "is empty"
    if key.startswith("$"):
        return f"must be a plain key, not {key!r}"
    return "writes to _rt, which belongs to the engine" if reserved(key) else None


def descend(value: Any, rest: str) -> Any:
    if not rest:
        return value
    if isinstance(value, Mapping) and rest in value:
        return value[rest]
    for part in rest.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and _INDEX.fullmatch(part) and int(part) < len(value):
            value = value[int(part)]
        else:
            return ABSENT
    return value


def prepare(prep: Prep, scope: FlowScope) -> Any:
    """A node's input. With a map it is an object; `$input` there is what `input_key` found."""
    found = scope.input
    if prep.input_key is not None:
        found = scope.find(prep.input_key)
    elif not prep.input_map:
        return ABSENT
    if not prep.input_map:
        return found
    inner = scope.with_input(found)
    picked = {key: inner.find(path) for key, path in prep.input_map.items()}
    return {key: value for key, value in picked.items() if value is not ABSENT}


def outputs(post: Post, result: Any) -> dict[str, Any]:
    """What a node's result writes into shared."""
    written: dict[str, Any] = {}
    if post.output_key is not None and result is not ABSENT:
        written[post.output_key] = result
    for key, field in post.output_map.items():
        value = descend(result, field)
        if value is not ABSENT:
            written[key] = value
    return written


def own(values: Any) -> dict[str, Any]:
    """A caller's object as the beginning of a shared state: a copy, without the engine's key."""
    if not isinstance(values, Mapping):
        return {}
    return {key: value for key, value in values.items() if not reserved(key)}
