"""Keys: make, list, revoke; who one is, and the page's log-in (K-1, K-3)."""

from __future__ import annotations

from typing import NamedTuple

from onward.native.caller import ANY_KEY, Action, Caller, Scope, needs
from onward.native.key_store import ApiKey, KeyStore
from onward.wire.base import Page
from onward.wire.keys import CreateKey, KeyCreated, KeyView, Login, Me, OwnKey


class LoggedIn(NamedTuple):
    me: Me
    token: str


class Keys:
    def __init__(self, store: KeyStore) -> None:
        self._store = store

    @needs(Scope.ADMIN)
    async def create(self, caller: Caller, body: CreateKey) -> KeyCreated:
        """The token is in this response, and nowhere else."""
        made = await self._store.create(body)
        detail = {"name": body.name, "scopes": body.scopes}
        await self._store.trail.write(caller.name, Action.KEY_CREATE, made.key.id, detail)
        return created_view(made.key, made.token)

    @needs(Scope.ADMIN)
    async def list(self, caller: Caller) -> Page[KeyView]:
        """Oldest first; also those that are revoked or expired."""
        return Page(items=tuple(key_view(key) for key in await self._store.all()))

    @needs(Scope.ADMIN)
    async def revoke(self, caller: Caller, key_id: str) -> None:
        """Within two seconds it is dead on every server, and its connections are closed."""
        key = await self._store.revoke(key_id)
        await caller.audit(Action.KEY_REVOKE, key.id, name=key.name)

    @needs(*ANY_KEY)
    async def me(self, caller: Caller) -> Me:
        """Whose key this is."""
        return self._me(caller)

    @needs()
    async def login(self, caller: Caller, body: Login) -> LoggedIn:
        """For browsers: from here on the token comes as a cookie that no script can read."""
        found = self._store.caller(body.token)
        await found.audit(Action.LOGIN, found.key or "")
        return LoggedIn(self._me(found), body.token)

    @needs(*ANY_KEY)
    async def logout(self, caller: Caller) -> None:
        """The cookie is removed; the key goes on."""

    def _me(self, caller: Caller) -> Me:
        key = self._store.own(caller)
        shown = None if key is None else OwnKey(id=key.id, name=key.name, scopes=key.scopes)
        return Me(open=self._store.open, key=shown)


def created_view(key: ApiKey, token: str) -> KeyCreated:
    return KeyCreated(
        id=key.id, name=key.name, scopes=key.scopes, token=token, expires_at=key.expires_at
    )


def key_view(key: ApiKey) -> KeyView:
    return KeyView(
        id=key.id,
        name=key.name,
        scopes=key.scopes,
        rate=key.rate,
        created_at=key.created_at,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
    )
