"""`onward log …`: who reads the event log, and forgetting a reader that is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from onward.cli.tables import cell, listing, show_page
from onward.cli.terminal import FAILED, AsJson, Server, ago, console, converse, fail

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from rich.table import Table

    from onward.core.readers import Readers
    from onward.wire.base import Page
    from onward.wire.log import ReaderView

T = TypeVar("T")

app = typer.Typer(
    help="Show the readers of the event log; forget one that is gone.", no_args_is_help=True
)

LOOK = "onward log readers"
Ledger = Annotated[
    str | None,
    typer.Option("--ledger", help="Open this ledger itself; no server need run.", metavar="URL"),
]


@app.command("readers")
def readers(ledger: Ledger = None, as_json: AsJson = False, server: Server = None) -> None:
    """List the readers of the event log. Finished tasks stay until all of them have read their end.

    Examples:

    [cyan]onward log readers[/]

    [cyan]onward log readers --ledger sqlite:////data/onward.db[/]
    """
    if ledger is None:
        page = converse(server, "list readers", lambda client: client.log.readers())
    else:
        page = _directly(ledger, "list readers", _page)
    show_page(page, _rows, none="the log has no readers", as_json=as_json)


@app.command("forget")
def forget(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The reader's name.")],
    ledger: Ledger = None,
    server: Server = None,
) -> None:
    """Forget a reader that is gone for good: finished tasks no longer wait for it.

    Example: [cyan]onward log forget archive:4f1c[/]
    """
    if ledger is None:
        converse(server, f"forget {name}", lambda client: client.log.forget(name), look=LOOK)
    elif not _directly(ledger, f"forget {name}", lambda found: found.forget(name)):
        fail(FAILED, f"cannot forget {name}", "no reader of the log has this name", LOOK)
    console().print(f"{cell(name)} is forgotten")


def _directly(ledger: str, doing: str, ask: Callable[[Readers], Awaitable[T]]) -> T:
    import asyncio

    from onward.core.clock import SystemClock
    from onward.core.errors import OnwardError
    from onward.core.readers import Readers
    from onward.ledgers import open_backend
    from onward.ledgers.sqlite.files import InUse
    from onward.settings import Settings

    async def whole() -> T:
        settings = Settings(ledger=ledger)
        backend = open_backend(
            settings.ledger, prefix=settings.redis_prefix, **settings.encryption()
        )
        try:
            await backend.maintain()
            return await ask(Readers(backend, SystemClock()))
        finally:
            await backend.close()

    try:
        return asyncio.run(whole())
    except OnwardError as error:
        in_use = "leave out --ledger: then the server that has the file is asked"
        then = in_use if isinstance(error, InUse) else error.hint or ""
        fail(FAILED, f"cannot {doing}", str(error), then)


async def _page(found: Readers) -> Page[ReaderView]:
    from onward.native.caller import OPERATOR
    from onward.native.log import Log

    return await Log(found).readers(OPERATOR)


def _rows(items: Sequence[ReaderView]) -> Table:
    table = listing("name", "behind", "seen", "state", folds=("name",))
    for item in items:
        table.add_row(
            cell(item.name),
            f"{item.behind_ms / 1000:,.0f} s",
            "-" if item.seen_at is None else ago(item.seen_at),
            "[yellow]retired[/]" if item.retired else "[green]waited for[/]",
        )
    return table
