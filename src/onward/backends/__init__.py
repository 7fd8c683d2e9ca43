"""Ledgers behind one contract; a deployment has exactly one, picked by its URL."""

from __future__ import annotations

from onward.core.contract import Backend
from onward.core.errors import Invalid

EXTRA = "pip install 'onward[redis]'"


def open_backend(url: str, *, durable: bool = True, prefix: str = "", archive: str = "") -> Backend:
    """`durable` is SQLite's; Redis has a `prefix` before every key, and the URL of an archive."""
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

        return ArchivedBackend(ledger, ledger.tasks, Archive(archive))
    raise Invalid(
        f"no ledger is known for {url!r}",
        hint="use sqlite:///onward.db or redis://host:6379/0",
    )
