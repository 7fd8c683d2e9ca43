"""What commands show in one way: lists that go on, cards, hints beside a result, a first screen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Protocol, TypeVar

import typer

from onward.cli.terminal import console, duration_ms, plain, print_json

if TYPE_CHECKING:
    from rich.table import Table

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Cursor = Annotated[str | None, typer.Option("--cursor", help="Where to go on.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000)]
Timeout = Annotated[
    int | None,
    typer.Option("--timeout", parser=duration_ms, metavar="30s|5m", help="Wait at most so long."),
]


class Page(Protocol[T_co]):
    @property
    def items(self) -> Sequence[T_co]: ...

    @property
    def next(self) -> str | None: ...


def hint(text: str) -> None:
    """What somebody may want to know or do now; beside the result, never in it."""
    console(stderr=True).print(plain(text), style="bright_black", markup=False)


def show_page(
    page: Page[T], table: Callable[[Sequence[T]], Table], *, none: str, as_json: bool
) -> None:
    """`none` is said where there is nothing to list."""
    if as_json:
        print_json(page)
        return
    if not page.items:
        hint(none)
        return
    console().print(table(page.items))
    if page.next is not None:
        hint(f"more: --cursor {quote(page.next)}")


def listing(*names: str, folds: Sequence[str] = ("about",)) -> Table:
    """A list under these headings; only the columns in `folds` are broken over lines."""
    from rich.table import Table

    table = Table(box=None, header_style="bright_black", pad_edge=False)
    for name in names:
        table.add_column(name, no_wrap=name not in folds, overflow="fold")
    return table


def card(rows: Iterable[tuple[str, str]]) -> Table:
    """One thing, a line for each of its sides; what others wrote cannot steer the terminal."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bright_black")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, escape(plain(value)))
    return table


def cell(text: str, most: int | None = None) -> str:
    """What somebody else wrote, as it stands in a list."""
    from rich.markup import escape

    return escape(plain(text)[:most])


def welcome(title: str, rows: Iterable[tuple[str, str]], last: str) -> None:
    """The first screen of something that goes on until Ctrl-C."""
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2))
    table.add_column(style="bright_black")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    out = console(stderr=True)
    out.print(f"\n  [bold cyan]Onward[/] {title}\n")
    out.print(table)
    out.print(f"\n  [bright_black]{last}[/]\n")
