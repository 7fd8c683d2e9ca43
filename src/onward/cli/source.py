"""Where a definition comes from: a file, stdin, or a builder's flow in a module; and what is where.

The parser says which node and field are wrong. Here that becomes a line and a column, as far as
the text shows them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from json.decoder import JSONObject  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onward.cli.terminal import FAILED, USAGE, fail

if TYPE_CHECKING:
    from onward.flow.parts import Definition, Flaw

_STEP = re.compile(r"[^.\[\]]+")


class Source:
    """A definition as it was written."""

    def __init__(self, name: str, raw: Any, text: str = "", places: _Places | None = None) -> None:
        self.name = name  # as people know it: the file's, or module:attr
        self.raw = raw
        self._text = text
        self._places = places

    @property
    def flow(self) -> str | None:
        """What the flow is called: as the definition says, else as its file."""
        said = self.raw.get("name") if isinstance(self.raw, Mapping) else None
        if isinstance(said, str) and said:
            return said
        return Path(self.name).stem if self._text and self.name != "stdin" else None

    def read(self) -> Definition:
        """Its parts; DefinitionFaults if they do not fit."""
        from onward.flow.definition import parse

        return parse(self.raw)

    def position(self, flaw: Flaw) -> tuple[int, int] | None:
        """Line and column of what a flaw is about, or of what it lies in. None: nobody knows."""
        if self._places is None:
            return None
        offset = self._places.of(self.raw, flaw.node, flaw.field)
        if offset is None:
            return None
        line = self._text.count("\n", 0, offset)
        return line + 1, offset - (self._text.rfind("\n", 0, offset) + 1) + 1


class _Places(json.JSONDecoder):
    """A JSON decoder that remembers where each object began."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text
        self._began: dict[int, int] = {}

        def remembered(opened: tuple[str, int], *rest: Any) -> tuple[Any, int]:
            found: tuple[Any, int] = JSONObject(opened, *rest)
            # Every object stays part of the whole, so no id is given twice.
            self._began[id(found[0])] = opened[1] - 1
            return found

        self.parse_object = remembered
        self.scan_once = py_make_scanner(self)

    def of(self, raw: Any, node: str | None, field: str) -> int | None:
        at = raw
        if node is not None:
            for key in node.split("/"):
                inner = at.get("subflow", at) if at is not raw else at
                at = _down(_down(inner, "nodes"), key)
        offset = self._began.get(id(at))
        for step in _STEP.findall(field):
            if offset is None:
                return None
            inner = _down(at, step)
            if (found := self._began.get(id(inner))) is not None:
                offset = found
            elif isinstance(at, Mapping) and step in at:
                offset = self._key(step, offset)
            at = inner
        return offset

    def _key(self, key: str, offset: int) -> int:
        """Looked for from where its object began: the first that is written so, most likely it."""
        found = re.compile(rf"{re.escape(json.dumps(key, ensure_ascii=False))}\s*:").search(
            self._text, offset
        )
        return offset if found is None else found.start()


def _down(value: Any, step: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(step)
    if isinstance(value, list) and step.isdecimal() and int(step) < len(value):
        return value[int(step)]
    return None


def is_source(text: str) -> bool:
    """Whether this names a definition, and not a flow on the server."""
    return text == "-" or ":" in text or text.endswith((".json", ".py")) or Path(text).is_file()


def load(where: str) -> Source:
    """What cannot be read ends the command, and says where it stopped making sense."""
    if where != "-" and not Path(where).is_file():
        if where.endswith(".json"):
            fail(USAGE, f"{where} cannot be read", "there is no such file", "onward flow --help")
        return _built(where)
    if where.endswith(".py"):
        then = f"name the flow in it, as in {where}:flow"
        fail(USAGE, f"{where} is a Python file", "it may hold several flows", then)
    name = "stdin" if where == "-" else where
    try:
        body = sys.stdin.buffer.read() if where == "-" else Path(where).read_bytes()
        text = body.decode()
    except (OSError, UnicodeDecodeError) as error:
        fail(USAGE, f"{name} cannot be read", str(error), "onward flow --help")
    return _parsed(name, text)


def _parsed(name: str, text: str) -> Source:
    from onward.core import strict_json
    from onward.core.errors import Invalid

    places = _Places(text)
    try:
        raw = places.decode(text)
        strict_json.parse(text.encode())
    except json.JSONDecodeError as error:
        what = f"{name}:{error.lineno}:{error.colno}: {error.msg}"
        fail(FAILED, f"{name} is not JSON", what, "mend it, then try again")
    except (Invalid, RecursionError, ValueError) as error:
        fail(FAILED, f"{name} is not JSON that a server takes", str(error), "mend it")
    return Source(name, raw, text, places)


def _built(where: str) -> Source:
    from onward.cli.worker import load_module
    from onward.flow.builder import Flow

    module, _, attr = where.rpartition(":")
    if not module:
        then = "name a JSON file, - for stdin, or a builder's flow as module:attr"
        fail(USAGE, f"{where} cannot be read", "there is no such file", then)
    found: Any = getattr(load_module(module), attr, None)
    if isinstance(found, Flow):
        return Source(where, found.definition())
    if isinstance(found, Mapping):
        return Source(where, dict(found))
    what = "missing" if found is None else f"a {type(found).__name__}"
    then = "name an onward.flow.builder.Flow, or a dict with start and nodes"
    return fail(USAGE, f"{where} is no flow", f"{attr!r} is {what} there", then)
