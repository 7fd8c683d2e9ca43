"""A session's idempotency key, as the ledger, the workers and the effects know it (S2-9).

Two sessions may think of the same key. Marked with whose it is, neither gets the other's task, nor
what a handler once did for the other.
"""

from __future__ import annotations

import hashlib


def in_session(key: str | None, session: str | None) -> str | None:
    return key if key is None or session is None else f"{_mark(session)}{key}"


def as_given(key: str | None, session: str | None) -> str | None:
    return key if key is None or session is None else key.removeprefix(_mark(session))


def _mark(session: str) -> str:
    # Hashed, because a name may hold any sign, also the one that parts it from the key.
    return f"{hashlib.sha256(session.encode()).hexdigest()[:32]}:"
