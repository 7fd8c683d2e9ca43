"""Ledgers behind one contract; a deployment has exactly one, picked by its URL."""

from __future__ import annotations

from hashlib import sha256
from urllib.parse import urlsplit

from onward.backends.sealed.cells import Resealable
from onward.core.contract import Backend
from onward.core.errors import Invalid
from onward.core.urls import shown

EXTRA = "pip install 'onward[redis]'"


def open_backend(
    url: str,
    *,
    durable: bool = True,
    prefix: str = "",
    archive: str = "",
    keys: str = "",
    keys_file: str | None = None,
) -> Backend:
    """`durable` is SQLite's; Redis has a `prefix` before every key, and the URL of an archive,
    in which `{ledger}` stands for a mark of this ledger.

    With `keys` given, here or in a file, what people wrote is sealed before any of them sees it.
    """
    if not keys and keys_file is None:
        return _open(url, durable=durable, prefix=prefix, archive=archive)
    from onward.backends.sealed import sealed
    from onward.backends.sealed.keyring import Keyring

    keyring = Keyring.read(keys, keys_file)
    return sealed(_open(url, durable=durable, prefix=prefix, archive=archive), keyring)


def _mark(url: str, prefix: str) -> str:
    """Tells one Redis ledger's archive from another's, whoever logs in there."""
    parts = urlsplit(url)
    place = f"{parts.hostname}:{parts.port or 6379}{parts.path}?{parts.query} {prefix}"
    return sha256(place.encode()).hexdigest()[:8]


def _open(url: str, *, durable: bool, prefix: str, archive: str) -> Resealable:
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite":
        from onward.backends.sqlite import SqliteBackend

        # As SQLAlchemy has it: three slashes before a relative path, four before an absolute one.
        return SqliteBackend(rest.removeprefix("/") or ":memory:", durable=durable)
    if scheme in ("redis", "rediss", "unix"):
        try:
            from onward.backends.redis import RedisBackend
        except ModuleNotFoundError as error:
            raise Invalid("the Redis ledger needs redis-py", hint=EXTRA) from error

        ledger = RedisBackend(url, prefix=prefix)
        if not archive:
            return ledger
        from onward.backends.archive import Archive, ArchivedBackend

        file = archive.replace("{ledger}", _mark(url, prefix))
        return ArchivedBackend(ledger, ledger.tasks, Archive(file))
    raise Invalid(
        f"no ledger is known for {shown(url)!r}",
        hint="use sqlite:///onward.db or redis://host:6379/0",
    )
