"""A caller's idempotency key, as the ledger, the workers and the effects know it (S2-9, K-5).

Two sessions, and two owners, may think of the same key. Marked with whose it is, neither gets the
other's task, nor what a handler once did for the other.
"""

from __future__ import annotations

import hashlib


def marked(key: str | None, session: str | None, owner: str | None) -> str | None:
    return None if key is None else f"{_mark(session, owner)}{key}"


def as_given(key: str | None, session: str | None, owner: str | None) -> str | None:
    return None if key is None else key.removeprefix(_mark(session, owner))


def scope_of(scope: str, session: str | None, owner: str | None) -> str:
    """A scope of their own: no key that has no mark can be made to look like one that has."""
    whose = [name for name, given in (("session", session), ("owner", owner)) if given is not None]
    return ":".join([scope, *whose])


def _mark(session: str | None, owner: str | None) -> str:
    if session is None and owner is None:
        return ""
    # Hashed, because a name may hold any sign, also the one that parts it from the key.
    whose = session if owner is None else f"{owner}\n{session or ''}"
    return f"{hashlib.sha256((whose or '').encode()).hexdigest()[:32]}:"
