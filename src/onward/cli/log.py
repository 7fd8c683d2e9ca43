"""`onward log …`: the readers of the event log, and forgetting one that is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from onward.cli.commands import Resource, Verb, argument, option
from onward.cli.tables import since
from onward.cli.terminal import FAILED, fail

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from onward.client.http import Client
    from onward.core.readers import Readers

T = TypeVar("T")


async def _readers(client: Client, ledger: str | None) -> Any:
    return await (client.log.readers() if ledger is None else _directly(ledger, "list", _page))


async def _forget(client: Client, key: str, ledger: str | None) -> None:
    if ledger is None:
        await client.log.forget(key)
    elif not await _directly(ledger, "forget", lambda readers: readers.forget(key)):
        fail(FAILED, f"cannot forget {key}", "no reader has this name", LOG.see_also)


async def _directly(ledger: str, doing: str, ask: Callable[[Readers], Awaitable[T]]) -> T:
    from onward.core.clock import SystemClock
    from onward.core.readers import Readers
    from onward.errors import OnwardError
    from onward.ledgers import open_backend
    from onward.ledgers.sqlite.files import InUse
    from onward.settings import Settings

    try:
        settings = Settings(ledger=ledger)
        backend = open_backend(
            settings.ledger, prefix=settings.redis_prefix, **settings.encryption()
        )
        try:
            await backend.maintain()
            return await ask(Readers(backend, SystemClock()))
        finally:
            await backend.close()
    except OnwardError as error:
        in_use = "leave out --ledger: then the server that has the file is asked"
        then = in_use if isinstance(error, InUse) else error.hint or ""
        fail(FAILED, f"cannot {doing} readers", str(error), then)


async def _page(readers: Readers) -> Any:
    from onward.wire.base import Page

    return Page(items=tuple(await readers.list()))


LOG = Resource(
    "log",
    "See which programs read the event log; forget a reader that is gone.",
    noun="reader",
    key=argument("NAME", "The reader's name."),
    example="archive:4f1c",
    see_also="onward log readers",
    columns={
        "name": "name",
        "behind": lambda reader: f"{reader.behind_ms / 1000:,.0f} s",
        "seen": since("seen_at"),
        "state": lambda reader: "[yellow]retired[/]" if reader.retired else "[green]waited for[/]",
    },
    folds=("name",),
    options={"ledger": option("--ledger", "Open this ledger; no server need run.", metavar="URL")},
    verbs=(
        Verb(
            "readers",
            """List the readers of the log. Finished tasks are kept until all have read them.

            $ onward log readers
            $ onward log readers --ledger sqlite:////data/onward.db""",
            _readers,
            none="the log has no readers",
        ),
        Verb(
            "forget",
            "Forget a reader that is gone for good: finished tasks no longer wait for it.",
            _forget,
            done="forgotten",
        ),
    ),
)
