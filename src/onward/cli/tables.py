"""How results are shown: lists, cards, hints beside a result, progress bars, questions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import typer

from onward.cli.terminal import USAGE, ago, console, fail, format_duration, interruptible, plain

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

# One field of a thing: its name, or a function that returns markup.
Field: TypeAlias = str | Callable[[Any], str]
Fields: TypeAlias = Mapping[str, Field]


class HasItems(Protocol):
    @property
    def items(self) -> Sequence[Any]: ...

    @property
    def next(self) -> str | None: ...


def hint(text: str) -> None:
    """What the user may want to do next; on stderr, so never part of the result."""
    console(stderr=True).print(plain(text), style="bright_black", markup=False)


def print_page(
    page: HasItems, columns: Fields, *, none: str, folds: Sequence[str] = ("about",)
) -> None:
    """`none` is printed when there is nothing to list."""
    if not page.items:
        hint(none)
        return
    table = listing(*columns, folds=folds)
    for item in page.items:
        cells = ((name, shown(item, field)) for name, field in columns.items())
        table.add_row(*(text or ("–" if name not in ("", *folds) else "") for name, text in cells))
    console().print(table)
    if page.next is not None:
        hint(f"more: --cursor {quote(page.next)}")


def shown(item: Any, field: Field) -> str:
    """A field as markup; empty if it has no value."""
    if not isinstance(field, str):
        return field(item)
    value = value_of(item, field)
    if value is None:
        return ""
    return cell(", ".join(value) if isinstance(value, list | tuple) else str(value))


def value_of(item: Any, name: str) -> Any:
    return item[name] if isinstance(item, Mapping) else getattr(item, name)


def as_text(name: str) -> Callable[[Any], str]:
    """A field that holds any JSON value."""

    def text(item: Any) -> str:
        import msgspec

        return cell(msgspec.json.encode(value_of(item, name)).decode())

    return text


def since(name: str) -> Callable[[Any], str]:
    """A field that holds an instant in the past, or none."""
    return lambda item: "" if value_of(item, name) is None else ago(value_of(item, name))


def span(name: str) -> Callable[[Any], str]:
    """A field that holds a duration in ms, or none."""
    return lambda item: format_duration(value_of(item, name)) if value_of(item, name) else ""


def listing(*names: str, folds: Sequence[str] = ("about",)) -> Table:
    """A table under these headings; only the columns in `folds` are broken over lines."""
    from rich.table import Table

    table = Table(box=None, header_style="bright_black", pad_edge=False)
    for name in names:
        table.add_column(name, no_wrap=name not in folds, overflow="fold")
    return table


def card(rows: Iterable[tuple[str, str]]) -> Table:
    """One thing, a line for each of its fields, as markup."""
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bright_black")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def card_of(item: Any, fields: Fields) -> Table:
    """Fields without a value are left out."""
    return card((name, text) for name, field in fields.items() if (text := shown(item, field)))


def cell(text: str, most: int | None = None) -> str:
    """Text from outside as markup: it can neither style nor steer the terminal."""
    from rich.markup import escape

    return escape(plain(text)[:most])


def welcome(title: str, rows: Iterable[tuple[str, str]], last: str) -> None:
    """The first screen of a command that runs until Ctrl-C."""
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


def progress_bar(*, counts: bool = True) -> Progress:
    """On a terminal only, and gone when the work is done; `counts` adds 3/10."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        *([MofNCompleteColumn()] if counts else []),
        TimeElapsedColumn(),
        console=console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def confirm(question: str) -> None:
    """Anything but yes ends the command."""
    from rich.prompt import Confirm

    try:
        with interruptible():
            agreed = Confirm.ask(question, console=console(stderr=True), default=False)
    except EOFError:
        fail(USAGE, "there was no answer", question, "in a script, add --yes")
    if not agreed:
        raise typer.Abort
