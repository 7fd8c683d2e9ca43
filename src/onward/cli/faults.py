"""The faults of a definition, for people and for scripts."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from onward.cli.terminal import FAILED, console, plain

NOWHERE = (sys.maxsize, 0)

if TYPE_CHECKING:
    from onward.cli.source import Source
    from onward.flow.parts import Definition, Flaw


def sound(source: Source) -> Definition:
    """The parts of a definition; if it has faults, they are printed and the command ends."""
    from onward.flow.definition import DefinitionFaults

    try:
        return source.read()
    except DefinitionFaults as error:
        _refuse(source, error.flaws)


def warn(source: Source, flaws: Sequence[Flaw]) -> None:
    if flaws:
        _tell(source, flaws, "yellow")


def rows(source: Source, flaws: Sequence[Flaw]) -> list[Mapping[str, Any]]:
    return [_row(source, flaw) for flaw in flaws]


def _refuse(source: Source, flaws: Sequence[Flaw]) -> NoReturn:
    from rich.text import Text

    out = console(stderr=True)
    faults = "one fault" if len(flaws) == 1 else f"{len(flaws)} faults"
    out.print(Text.assemble(("✗ ", "bold red"), (f"{plain(source.name)}: {faults}", "bold")))
    _tell(source, flaws, "red")
    raise typer.Exit(FAILED)


def _tell(source: Source, flaws: Sequence[Flaw], colour: str) -> None:
    """Where, in which node, and what; as compilers do, so that editors can jump there."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    # In the order of the file, as they are mended; a fault without a place comes last.
    for at, flaw in sorted(
        ((source.position(flaw), flaw) for flaw in flaws), key=lambda each: each[0] or NOWHERE
    ):
        where = "" if at is None else f"{source.name}:{at[0]}:{at[1]}"
        node = "" if flaw.node is None else f"node {flaw.node}"
        table.add_row(
            Text(f"  {plain(where)}" if where else " ", style="bright_black"),
            Text(plain(node), style="bold"),
            Text(plain(flaw.message), style=colour),
        )
    console(stderr=True).print(table)


def _row(source: Source, flaw: Flaw) -> Mapping[str, Any]:
    line, column = source.position(flaw) or (None, None)
    return {
        "node": flaw.node,
        "field": flaw.field,
        "message": flaw.message,
        "line": line,
        "column": column,
    }
