"""`onward keys …`: the keys that seal what the server keeps."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onward.cli.terminal import (
    REFUSED,
    USAGE,
    AsJson,
    Server,
    console,
    converse,
    fail,
    plain,
    print_json,
)

if TYPE_CHECKING:
    from rich.progress import Progress

    from onward.client.http import Client
    from onward.wire.encryption import KeyNames

app = typer.Typer(help="Keys of the server.", no_args_is_help=True)
encryption = typer.Typer(
    help="Encryption at rest: make a key, see what is sealed, seal anew.", no_args_is_help=True
)
app.add_typer(encryption, name="encryption")

SETTING = "ONWARD_ENCRYPTION_KEYS"


@encryption.command()
def new(
    name: Annotated[
        str | None, typer.Option("--name", help="What it is called.", show_default="today's date")
    ] = None,
) -> None:
    """Print a new key. Whoever has it can read everything: keep it where secrets are kept.

    Examples:

    [cyan]export ONWARD_ENCRYPTION_KEYS="$(onward keys encryption new)"[/]

    [cyan]export ONWARD_ENCRYPTION_KEYS="$(onward keys encryption new),$ONWARD_ENCRYPTION_KEYS"[/]
    """
    from onward.core.errors import Invalid
    from onward.ledgers.sealed.keyring import new_key

    try:
        print(new_key(name or f"k{datetime.now(UTC):%Y%m%d}"))
    except Invalid as error:
        fail(USAGE, "cannot make a key", str(error), error.hint or "")


@encryption.command()
def status(as_json: AsJson = False, server: Server = None) -> None:
    """Say which key seals, and how much rests under which; an old key with nothing left may go.

    Example: [cyan]onward keys encryption status[/]
    """

    async def talk(client: Client) -> tuple[KeyNames, Counter[str], int]:
        keys = await client.encryption.keys()
        if keys.sealing is None:
            return keys, Counter(), 0
        held, _, unreadable = await _walk(client, dry_run=True)
        return keys, held, unreadable

    keys, held, unreadable = converse(server, "look at the keys", talk)
    if as_json:
        print_json({"sealing": keys.sealing, "keys": keys.keys, "held": held})
        return
    if keys.sealing is None:
        console().print("encryption is off: the server has no keys")
        console(stderr=True).print(f"→ set {SETTING}; onward keys encryption new", style="cyan")
        return
    _table(keys, held)
    if unreadable:
        missing = ", ".join(sorted(held.keys() - {*keys.keys, "none"})) or "some key"
        fail(REFUSED, f"{unreadable:,} texts do not open", f"look at {missing} in {SETTING}")


@encryption.command()
def rotate(as_json: AsJson = False, server: Server = None) -> None:
    """Seal everything anew that rests under an older key, or under none; the server goes on.

    Stopped half way, it is begun again: what is done is passed by.

    Example: [cyan]onward keys encryption rotate[/]
    """

    async def talk(client: Client) -> tuple[KeyNames, Counter[str], int, int]:
        keys = await client.encryption.keys()
        return keys, *await _walk(client, dry_run=False)

    keys, _, resealed, unreadable = converse(
        server, "rotate the keys", talk, look="onward keys encryption new"
    )
    if as_json:
        print_json({"sealing": keys.sealing, "resealed": resealed, "unreadable": unreadable})
    else:
        console().print(f"{resealed:,} texts are sealed anew, under {plain(keys.sealing or '')}")
    if unreadable:
        why = "their key is not among the server's, or they were changed"
        fail(REFUSED, f"{unreadable:,} texts do not open", why, "onward keys encryption status")


async def _walk(client: Client, *, dry_run: bool) -> tuple[Counter[str], int, int]:
    """Through everything; returns what rests under which key, and how many were sealed or not."""
    held: Counter[str] = Counter()
    looked_at = resealed = unreadable = 0
    after: str | None = ""
    with _bar() as progress:
        row = progress.add_task("looking" if dry_run else "sealing", total=None)
        while after is not None:
            step = await client.encryption.step(after, dry_run=dry_run)
            held.update(step.held)
            looked_at += step.looked_at
            resealed += step.resealed
            unreadable += step.unreadable
            after = step.next
            progress.update(row, completed=looked_at, description=f"{looked_at:,} looked at")
    return held, resealed, unreadable


def _table(keys: KeyNames, held: Counter[str]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for heading in ("key", "texts", ""):
        table.add_column(heading)
    names = dict.fromkeys([*keys.keys, *sorted(held)])
    for name in names:
        table.add_row(plain(name), f"{held[name]:,}", _role(name, keys, held))
    console().print(table)


def _role(name: str, keys: KeyNames, held: Counter[str]) -> str:
    if name == keys.sealing:
        return "[green]seals[/]"
    if name == "none":
        return "[yellow]not sealed[/]: onward keys encryption rotate"
    if name not in keys.keys:
        return "[red]missing[/]: what it sealed cannot be read"
    return "opens" if held[name] else "[bright_black]opens nothing any more: it may go[/]"


def _bar() -> Progress:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns: tuple[Any, ...] = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TimeElapsedColumn(),
    )
    return Progress(
        *columns,
        console=console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
