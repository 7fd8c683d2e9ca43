"""`onward keys …`: who may call, through a server or on the ledger itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import typer

from onward.cli.commands import REQUIRED, Options, argument, command, duration, option
from onward.cli.encryption_keys import encryption
from onward.cli.tables import Fields, print_page, since
from onward.cli.terminal import (
    NOT_FOUND,
    REFUSED,
    USAGE,
    ago,
    console,
    count_per_ms,
    fail,
    plain,
    print_json,
)
from onward.cli.terminal import with_client as through_server
from onward.urls import shown

if TYPE_CHECKING:
    from onward.client.http import Client
    from onward.native.key_store import KeyStore
    from onward.wire.base import Page
    from onward.wire.keys import KeyCreated, KeyRate, KeyView

T = TypeVar("T")

app = typer.Typer(help="Make, list and revoke the keys of callers.", no_args_is_help=True)
app.add_typer(encryption, name="encryption")

OPTIONS: Options = {
    "name": argument("NAME", "The name, which stands in approvals and in the audit."),
    "id": argument("ID", "The id of the key."),
    "scope": option("--scope", "What it may do; again for each further one.", list[str], REQUIRED),
    "expires": duration("--expires", "When it ends by itself, from now: 90d."),
    "rate": option("--rate", "How many calls it may make, as 100/s, 1000/m or 10000/h."),
    "ledger": option("--ledger", "Work on this ledger, without a server.", metavar="URL"),
}
SCOPES = "onward keys create --help lists the scopes"


@command(app, OPTIONS)
def create(
    name: str,
    scope: list[str],
    expires: int | None,
    rate: str | None,
    ledger: str | None,
    as_json: bool,
    server: str | None,
) -> None:
    """Make a key, and print its token: this once, and never again.

    Scopes: submit, read, reveal, work, work:NAME, operate, approve, approve:own, admin.

    $ onward keys create admin --scope admin --ledger sqlite:///onward.db
    $ onward keys create web --scope submit --rate 100/s --expires 90d
    $ onward keys create gpu-box --scope work:gpu
    """
    expires_at = None if expires is None else int(time.time() * 1000) + expires
    limit = None if rate is None else _rate(rate)

    async def call(client: Client) -> KeyCreated:
        return await client.keys.create(name, scope, expires_at=expires_at, rate=limit)

    async def directly(store: KeyStore) -> KeyCreated:
        from onward.native.caller import Action
        from onward.native.keys import created_view
        from onward.wire.keys import CreateKey

        body = CreateKey(name=name, scopes=tuple(scope), expires_at=expires_at, rate=limit)
        made = await store.create(body)
        detail = {"name": name, "scopes": scope}
        await store.trail.write(None, Action.KEY_CREATE, made.key.id, detail)
        return created_view(made.key, made.token)

    made = _done(ledger, server, f"make key {name}", directly, call)
    if as_json:
        print_json(made)
        return
    print(made.token)
    text = f"key {made.id} ({plain(made.name)}): {', '.join(map(plain, made.scopes))}"
    console(stderr=True).print(f"{text}; its token is not shown again", style="cyan")


@command(app, OPTIONS)
def list_(ledger: str | None, as_json: bool, server: str | None) -> None:
    """List the keys, also those that are revoked or expired.

    $ onward keys list
    """

    async def call(client: Client) -> Page[KeyView]:
        return await client.keys.list()

    async def directly(store: KeyStore) -> Page[KeyView]:
        from onward.native.keys import key_view
        from onward.wire.base import Page

        return Page(items=tuple(map(key_view, await store.all())))

    found = _done(ledger, server, "list the keys", directly, call)
    if as_json:
        print_json(found)
        return
    print_page(found, COLUMNS, none="there are no keys: everybody on this machine is the operator")


@command(app, OPTIONS)
def revoke(id: str, ledger: str | None, as_json: bool, server: str | None) -> None:
    """Revoke a key: dead within two seconds on every server, its connections closed.

    $ onward keys revoke 3f2a9c41d07b
    """

    async def call(client: Client) -> None:
        await client.keys.revoke(id)

    async def directly(store: KeyStore) -> None:
        from onward.native.caller import Action

        key = await store.revoke(id, last_too=True)
        await store.trail.write(None, Action.KEY_REVOKE, key.id, {"name": key.name})

    _done(ledger, server, f"revoke key {id}", directly, call)
    if as_json:
        print_json({"id": id, "revoked": True})
    else:
        console().print(f"{plain(id)} is revoked")


def _done(
    ledger: str | None,
    server: str | None,
    doing: str,
    directly: Callable[[KeyStore], Awaitable[T]],
    call: Callable[[Client], Awaitable[T]],
) -> T:
    if ledger is None:
        return through_server(
            server, doing, call, see_also="onward keys list", after_refusal=SCOPES
        )
    from onward.core.errors import Invalid, NotFound
    from onward.errors import OnwardError
    from onward.ledgers.sqlite.files import InUse

    try:
        return asyncio.run(_on_ledger(ledger, directly))
    except OnwardError as error:
        kinds = {Invalid: USAGE, NotFound: NOT_FOUND}
        code = next((kinds[kind] for kind in kinds if isinstance(error, kind)), REFUSED)
        hint = error.hint or (SCOPES if code == USAGE else "onward keys list")
        if isinstance(error, InUse):
            # A key in another file would be none of that server's.
            hint = "if that is the server, let it do this: leave out --ledger, name it by --server"
        fail(code, f"cannot {doing}", shown(str(error)), hint)


async def _on_ledger(url: str, work: Callable[[KeyStore], Awaitable[T]]) -> T:
    from onward.cli.serve import read_settings
    from onward.core.clock import SharedClock
    from onward.ledgers import open_backend
    from onward.native.audit import AuditTrail
    from onward.native.key_store import KeyStore

    settings = read_settings(ledger=url)
    backend = open_backend(
        settings.ledger,
        prefix=settings.redis_prefix,
        volatile=settings.redis_volatile,
        **settings.encryption(),
    )
    try:
        await backend.maintain()
        clock = SharedClock(lambda: backend.ahead_ms)
        clock.adopt()  # as the ledger's was just measured
        return await work(KeyStore(backend, clock, AuditTrail(backend, clock)))
    finally:
        await backend.close()


def _rate(text: str) -> KeyRate:
    from onward.wire.keys import KeyRate

    count, per_ms = count_per_ms(text)
    return KeyRate(count=count, per_ms=per_ms)


def _state(key: KeyView) -> str:
    if key.revoked_at is not None:
        return f"revoked {ago(key.revoked_at)}"
    if key.expires_at is None:
        return "live"
    if key.expires_at <= time.time() * 1000:
        return "expired"
    return f"until {time.strftime('%F %R', time.localtime(key.expires_at / 1000))}"


COLUMNS: Fields = {
    "id": "id",
    "name": "name",
    "scopes": "scopes",
    "created": since("created_at"),
    "state": _state,
}
