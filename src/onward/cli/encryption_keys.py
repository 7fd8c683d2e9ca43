"""`onward keys encryption …`: the keys that seal what the server keeps."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from onward.cli.commands import command, option
from onward.cli.tables import listing, progress_bar
from onward.cli.terminal import REFUSED, USAGE, console, fail, plain, print_json

if TYPE_CHECKING:
    from onward.client.http import Client
    from onward.wire.encryption import KeyNames

encryption = typer.Typer(
    help="Encryption at rest: make a key, see which keys are in use, rotate them.",
    no_args_is_help=True,
)
SETTING = "ONWARD_ENCRYPTION_KEYS"


@command(encryption, {"name": option("--name", "The key's name.", show_default="today's date")})
def new(name: str | None) -> None:
    """Print a new key. With it, everything can be read: keep it where you keep secrets.

    $ export ONWARD_ENCRYPTION_KEYS="$(onward keys encryption new)"
    $ export ONWARD_ENCRYPTION_KEYS="$(onward keys encryption new),$ONWARD_ENCRYPTION_KEYS"
    """
    from onward.core.errors import Invalid
    from onward.ledgers.sealed.keyring import new_key

    try:
        print(new_key(name or f"k{datetime.now(UTC):%Y%m%d}"))
    except Invalid as error:
        fail(USAGE, "cannot make a key", str(error), error.hint or "")


@command(encryption, doing="read the keys")
async def status(client: Client, as_json: bool) -> None:
    """Show which key encrypts, and how many texts each key holds; one that holds none may go.

    $ onward keys encryption status
    """
    keys = await client.encryption.keys()
    held, unreadable = Counter[str](), 0
    if keys.sealing is not None:
        held, _, unreadable = await _walk(client, dry_run=True)
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
        fail(REFUSED, f"{unreadable:,} texts do not open", f"check {missing} in {SETTING}")


@command(encryption, doing="rotate the keys", see_also="onward keys encryption new")
async def rotate(client: Client, as_json: bool) -> None:
    """Encrypt with the first key whatever is not yet; the server goes on meanwhile.

    If it is stopped half way, run it again: texts that are done are skipped.

    $ onward keys encryption rotate
    """
    keys = await client.encryption.keys()
    _, resealed, unreadable = await _walk(client, dry_run=False)
    if as_json:
        print_json({"sealing": keys.sealing, "resealed": resealed, "unreadable": unreadable})
    else:
        console().print(f"{resealed:,} texts are sealed anew, under {plain(keys.sealing or '')}")
    if unreadable:
        why = "their key is not among the server's, or they were changed"
        fail(REFUSED, f"{unreadable:,} texts do not open", why, "onward keys encryption status")


async def _walk(client: Client, *, dry_run: bool) -> tuple[Counter[str], int, int]:
    """Every text, in steps; returns their number by key, and of those sealed anew or unreadable."""
    held: Counter[str] = Counter()
    looked_at = resealed = unreadable = 0
    after: str | None = ""
    with progress_bar(counts=False) as progress:
        row = progress.add_task("reading" if dry_run else "sealing", total=None)
        while after is not None:
            step = await client.encryption.step(after, dry_run=dry_run)
            held.update(step.held)
            looked_at += step.looked_at
            resealed += step.resealed
            unreadable += step.unreadable
            after = step.next
            progress.update(row, completed=looked_at, description=f"{looked_at:,} read")
    return held, resealed, unreadable


def _table(keys: KeyNames, held: Counter[str]) -> None:
    table = listing("key", "texts", "")
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
