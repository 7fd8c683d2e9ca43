"""Where a definition comes from: a file, stdin, or a Flow in a Python module.

The parser of definitions names the node and the field of a fault; here they become a line and a
column of the text, for people and for scripts.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import typer

from onward.cli.terminal import FAILED, USAGE, console, fail, plain

if TYPE_CHECKING:
    from onward.flow.parts import Definition, Flaw

JsonPath: TypeAlias = tuple[str, ...]  # keys, and indices as text

NOWHERE = (sys.maxsize, 0)

_STEP = re.compile(r"[^.\[\]]+")  # of a field such as choice_cases[0].expr
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


class Source:
    """A definition, and the text it was written in, if it was."""

    def __init__(self, name: str, raw: Any, text: str = "") -> None:
        self.name = name  # the file's, or module:attr
        self.raw = raw
        self._text = text
        self._positions = positions(text)

    @property
    def flow(self) -> str | None:
        """The name of the flow: from the definition, or else from the file."""
        name = self.raw.get("name") if isinstance(self.raw, Mapping) else None
        if isinstance(name, str) and name:
            return name
        return Path(self.name).stem if self._text and self.name != "stdin" else None

    def read(self) -> Definition:
        """Its parts; DefinitionFaults if they do not fit."""
        from onward.flow.definition import parse

        return parse(self.raw)

    def sound(self) -> Definition:
        """Its parts; if it has faults, they are printed and the command ends."""
        from rich.text import Text

        from onward.flow.definition import DefinitionFaults

        try:
            return self.read()
        except DefinitionFaults as error:
            flaws = error.flaws
        faults = "one fault" if len(flaws) == 1 else f"{len(flaws)} faults"
        title = Text.assemble(("✗ ", "bold red"), (f"{plain(self.name)}: {faults}", "bold"))
        console(stderr=True).print(title)
        self.print_flaws(flaws, "red")
        raise typer.Exit(FAILED)

    def print_flaws(self, flaws: Sequence[Flaw], colour: str = "yellow") -> None:
        """Where, in which node, and what; as compilers do, so that editors can jump there."""
        from rich.table import Table
        from rich.text import Text

        if not flaws:
            return
        table = Table.grid(padding=(0, 2, 0, 0))
        # In the order of the file, as they are mended; a fault without a place comes last.
        for at, flaw in sorted(
            ((self.position(flaw), flaw) for flaw in flaws), key=lambda each: each[0] or NOWHERE
        ):
            where = "" if at is None else f"{self.name}:{at[0]}:{at[1]}"
            node = "" if flaw.node is None else f"node {flaw.node}"
            table.add_row(
                Text(f"  {plain(where)}" if where else " ", style="bright_black"),
                Text(plain(node), style="bold"),
                Text(plain(flaw.message), style=colour),
            )
        console(stderr=True).print(table)

    def rows(self, flaws: Sequence[Flaw]) -> list[Mapping[str, Any]]:
        """For scripts."""
        places = [self.position(flaw) or (None, None) for flaw in flaws]
        return [
            {**msgspec.structs.asdict(flaw), "line": line, "column": column}
            for flaw, (line, column) in zip(flaws, places, strict=True)
        ]

    def position(self, flaw: Flaw) -> tuple[int, int] | None:
        """Line and column of what a flaw is about, or of what it lies in, as far as known."""
        path: tuple[str, ...] = ()
        for key in flaw.node.split("/") if flaw.node is not None else ():
            path += (*(("subflow",) if path else ()), "nodes", key)
        path += tuple(_STEP.findall(flaw.field))
        while path and path not in self._positions:
            path = path[:-1]
        if path not in self._positions:
            return None
        offset = self._positions[path]
        line = self._text.count("\n", 0, offset)
        return line + 1, offset - self._text.rfind("\n", 0, offset)


def positions(text: str) -> Mapping[JsonPath, int]:
    """Where each value of a JSON text stands, by its path: an object and an item of a list where
    they begin, any other member where its key does. The text is known to be JSON.
    """
    found: dict[JsonPath, int] = {}
    inside: list[list[Any]] = []  # of each open object or list: its path, and the key or index now
    key_at = 0
    for token in _TOKEN.finditer(text):
        sign = token[0]
        if sign in "}]":
            inside.pop()
        elif sign == ",":
            last = inside[-1]
            last[1] = last[1] + 1 if isinstance(last[1], int) else None
        elif inside and inside[-1][1] is None:
            inside[-1][1], key_at = json.loads(sign), token.start()
        elif sign != ":":
            path = (*inside[-1][0], str(inside[-1][1])) if inside else ()
            member = bool(inside) and isinstance(inside[-1][1], str) and sign != "{"
            found[path] = key_at if member else token.start()
            if sign in "{[":
                inside.append([path, None if sign == "{" else 0])
    return found


def is_source(text: str) -> bool:
    """Whether this names a definition, and not a flow on the server."""
    return text == "-" or ":" in text or text.endswith((".json", ".py")) or Path(text).is_file()


def load(where: str) -> Source:
    """A text that cannot be read ends the command, with the line at which it fails."""
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

    try:
        raw = json.loads(text)
        strict_json.parse(text.encode())
    except json.JSONDecodeError as error:
        what = f"{name}:{error.lineno}:{error.colno}: {error.msg}"
        fail(FAILED, f"{name} is not JSON", what, "correct it, then try again")
    except (Invalid, RecursionError, ValueError) as error:
        fail(FAILED, f"{name} is not JSON that a server takes", str(error), "correct it")
    return Source(name, raw, text)


def _built(where: str) -> Source:
    from onward.cli.worker import load_module
    from onward.flow.builder import Flow

    module, _, attr = where.rpartition(":")
    if not module:
        then = "name a JSON file, - for stdin, or a Flow as module:attr"
        fail(USAGE, f"{where} cannot be read", "there is no such file", then)
    found: Any = getattr(load_module(module), attr, None)
    if isinstance(found, Flow):
        return Source(where, found.definition())
    if isinstance(found, Mapping):
        return Source(where, dict(found))
    what = "missing" if found is None else f"a {type(found).__name__}"
    then = "name an onward.flow.builder.Flow, or a dict with start and nodes"
    return fail(USAGE, f"{where} is not a flow", f"{attr!r} is {what} there", then)
