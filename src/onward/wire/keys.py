"""Keys: who may call, and what they may do; and what was done with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from onward.wire.base import YEAR_MS, Body, Instant, Limit, Name, Query, Wire

ScopeText = Annotated[str, Meta(min_length=1, max_length=160)]
Token = Annotated[str, Meta(min_length=1, max_length=1024)]


class KeyRate(Body, frozen=True):
    count: Annotated[int, Meta(ge=1, le=1_000_000)]
    per_ms: Annotated[int, Meta(ge=1, le=YEAR_MS)]


class CreateKey(Body, frozen=True):
    name: Name
    scopes: Annotated[tuple[ScopeText, ...], Meta(min_length=1, max_length=100)]
    expires_at: Instant | None = None
    rate: KeyRate | None = None


class KeyCreated(Wire, frozen=True):
    """The only time that the token is shown."""

    id: str
    name: str
    scopes: tuple[str, ...]
    token: str
    expires_at: Instant | None


class KeyView(Wire, frozen=True):
    """A key without its token."""

    id: str
    name: str
    scopes: tuple[str, ...]
    rate: KeyRate | None
    created_at: Instant
    expires_at: Instant | None
    revoked_at: Instant | None


class OwnKey(Wire, frozen=True):
    id: str
    name: str
    scopes: tuple[str, ...]


class Me(Wire, frozen=True):
    open: bool  # no key is needed here
    key: OwnKey | None


class Login(Body, frozen=True):
    token: Token


class AuditQuery(Query, frozen=True):
    by: str | None = None  # the name of a key
    action: str | None = None
    since: Instant = 0
    cursor: Annotated[str, Meta(max_length=64)] | None = None
    limit: Limit = 100


class AuditEntry(Wire, frozen=True):
    at: Instant
    by: str | None  # the name of the key; null: there were no keys
    action: str
    target: str
    detail: Mapping[str, Any]
