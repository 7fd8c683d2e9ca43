"""Ledgers behind one contract; a deployment has exactly one, picked by its URL."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from onward.core.contract import Backend
from onward.core.errors import Invalid
from onward.ledgers.sealed import SealedBackend
from onward.ledgers.sealed.keyring import Keyring
from onward.ledgers.sealed.texts import Resealable
from onward.urls import shown

REDIS_EXTRA = "pip install 'onward[redis]'"
POSTGRES_EXTRA = "pip install 'onward[postgres]'"


def open_backend(  # noqa: PLR0913 each is one setting
    url: str,
    *,
    durable: bool = True,
    prefix: str = "",
    volatile: bool = False,
    archive: str = "",
    state: Path | None = None,
    keys: str = "",
    keys_file: str | None = None,
) -> Backend:
    """`durable` is SQLite's; Redis has a `prefix` before every key, may be `volatile` on purpose,
    and has the URL of an archive, in which `{ledger}` stands for a mark of this ledger, and
    `{state}` for the folder `state`.

    With `keys` given, here or in a file, what people wrote is sealed before any of them sees it.
    """
    archive = _placed(archive.replace("{ledger}", _mark(url, prefix)), state)
    keyring = Keyring.read(keys, keys_file)
    ledger = _open(url, durable=durable, prefix=prefix, volatile=volatile, archive=archive)
    return ledger if keyring is None else SealedBackend(ledger, keyring)


def _mark(url: str, prefix: str) -> str:
    """Distinguishes one Redis ledger's archive from another's, with whatever login."""
    parts = urlsplit(url)
    place = f"{parts.hostname}:{parts.port or 6379}{parts.path}?{parts.query} {prefix}"
    return sha256(place.encode()).hexdigest()[:8]


def _placed(archive: str, state: Path | None) -> str:
    """An absolute place. Each file has a cursor of its own: one made anew in every folder that a
    server is started in would leave cursors behind that are never moved.
    """
    if "{state}" not in archive:
        return archive
    before = Path(archive.rpartition("/")[2]).absolute()  # where it was made by default once
    if before.exists():
        return f"sqlite:///{before}"
    return archive.replace("{state}", str((state or Path()).absolute()))


def _open(url: str, *, durable: bool, prefix: str, volatile: bool, archive: str) -> Resealable:
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite":
        from onward.ledgers.sqlite import SqliteBackend

        # As SQLAlchemy has it: three slashes before a relative path, four before an absolute one.
        return SqliteBackend(rest.removeprefix("/") or ":memory:", durable=durable)
    if scheme in ("redis", "rediss", "unix"):
        try:
            from onward.ledgers.redis import RedisBackend
        except ModuleNotFoundError as error:
            raise Invalid("the Redis ledger needs redis-py", hint=REDIS_EXTRA) from error

        ledger = RedisBackend(url, prefix=prefix, volatile=volatile)
        if not archive:
            return ledger
        from onward.ledgers.archive import Archive, ArchivedBackend

        return ArchivedBackend(ledger, Archive(archive))
    if scheme in ("postgresql", "postgres"):
        try:
            from onward.ledgers.postgres import PostgresBackend
        except ModuleNotFoundError as error:
            raise Invalid("the Postgres ledger needs asyncpg", hint=POSTGRES_EXTRA) from error

        return PostgresBackend(url)
    raise Invalid(
        f"no ledger is known for {shown(url)!r}",
        hint="use sqlite:///onward.db, redis://host:6379/0 or postgresql://host/database",
    )
