"""Ledgers behind one contract; a deployment has exactly one, picked by its URL."""

from __future__ import annotations

from onward.core.contract import Backend
from onward.core.errors import Invalid


def open_backend(url: str, *, durable: bool = True) -> Backend:
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite":
        from onward.backends.sqlite import SqliteBackend

        # As SQLAlchemy has it: three slashes before a relative path, four before an absolute one.
        return SqliteBackend(rest.removeprefix("/") or ":memory:", durable=durable)
    raise Invalid(
        f"no ledger is known for {url!r}",
        hint="use sqlite:///onward.db",
    )
