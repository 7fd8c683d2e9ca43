"""Keys as the ledger has them, in the memory of this server: a token becomes a `Caller`.

A key is a document with the SHA-256 of its secret; the token itself is nowhere. Read again at least
once a second, so that a revoked key is dead on every server within two, and its connections are
closed.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
import structlog

from onward.core.clock import Clock
from onward.core.contract import Backend, Document
from onward.core.errors import Conflict, Invalid, NotFound, RateLimited, Unauthorized
from onward.core.task import Instant, encode
from onward.native.audit import DAY_MS, KEPT_DAYS, AuditTrail
from onward.native.caller import Caller, Scope, spelled_out
from onward.wire.keys import CreateKey, KeyRate

log = structlog.get_logger("onward.keys")

KIND, NAMES = "key", "key_name"
TRIES = 20
CLOSED = "*"  # the document that says: here a key is needed, also when all are gone
PREFIX = "onward"
ADMIN = "admin"  # id and name of the key that is set by ONWARD_ADMIN_KEY
WORK = f"{Scope.WORK}:"
EVERY_S = 1.0
KNOWN = frozenset(Scope)  # a newer version may have more


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    name: str
    digest: str  # of the secret
    scopes: tuple[str, ...]
    created_at: Instant
    expires_at: Instant | None = None
    rate: KeyRate | None = None
    revoked_at: Instant | None = None

    def live(self, now: Instant) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    @property
    def forget_at(self) -> Instant | None:
        """Dead keys are listed as long as the audit names them."""
        over = [at for at in (self.revoked_at, self.expires_at) if at is not None]
        return min(over) + KEPT_DAYS * DAY_MS if over else None


class Closed(msgspec.Struct, frozen=True, omit_defaults=True):
    """What `CLOSED` holds: which keys with the scope admin are revoked, and since when.

    One document for all of them: of two servers that revoke each other's last admin key at once,
    only one can write it.
    """

    revoked: dict[str, Instant] = {}


_decode = msgspec.json.Decoder(ApiKey).decode
_decode_closed = msgspec.json.Decoder(Closed).decode


class Made(NamedTuple):
    key: ApiKey
    token: str


class Allowance:
    """How many calls a key has left: `count` at once, and as many again in `per_ms`."""

    def __init__(self, rate: KeyRate, now: Instant) -> None:
        self.rate = rate
        self._left, self._at = float(rate.count), now

    def spend(self, now: Instant) -> int:
        """The seconds after which the next call would be allowed; 0: this one is."""
        pace = self.rate.count / self.rate.per_ms
        self._left = min(self.rate.count, self._left + max(0, now - self._at) * pace)
        self._at = now
        if self._left >= 1:
            self._left -= 1
            return 0
        return max(1, math.ceil((1 - self._left) / pace / 1000))


class KeyStore:
    def __init__(
        self, backend: Backend, clock: Clock, trail: AuditTrail, admin_key: str | None = None
    ) -> None:
        self._documents = backend.documents
        self._clock = clock
        self.trail = trail
        self._admin = None if admin_key is None else _admin(admin_key)
        self.open = self._admin is None  # no key is needed here
        self._keys: dict[str, ApiKey] = {}
        self._closed, self._version = Closed(), 0  # the document of this name; 0: there is none
        self._callers: dict[str, Caller] = {}
        # By the digest of a whole token that fits: whose key has neither an end nor a rate, so that
        # it may call until the keys are read again.
        self._steady: dict[bytes, Caller] = {}
        self._allowances: dict[str, Allowance] = {}
        self._refreshing = asyncio.Lock()
        # Under way, by key; None: of callers who came while none was needed.
        self._calls: dict[str | None, set[asyncio.Task[object]]] = {}

    # A call.

    def caller(self, token: str | None) -> Caller:
        """Unauthorized: this token is none that counts here. RateLimited: too many calls."""
        digest = _sha256(token or "").digest()
        steady = self._steady.get(digest)
        if steady is not None:
            return steady
        now = self._clock.now()
        key = self._verified(token, now)
        caller = self._callers[key.id]
        if key.rate is not None:
            self._spend(key, key.rate, now)
        elif key.expires_at is None:
            self._steady[digest] = caller
        return caller

    def _verified(self, token: str | None, now: Instant) -> ApiKey:
        if not token:
            raise self._refusal("no_token", "a key is needed here")
        key, given = self._admin, token
        if key is None or not _fits(token, key):
            prefix, _, rest = token.partition("_")
            id, _, given = rest.partition("_")
            key = self._keys.get(id) if prefix == PREFIX else None
        if key is None or not _fits(given, key):
            raise self._refusal("unknown", "this key is not known here")
        if key.revoked_at is not None:
            raise self._refusal("revoked", "this key is revoked", key.id)
        if not key.live(now):
            raise self._refusal("expired", "this key has expired", key.id)
        return key

    def _refusal(self, reason: str, message: str, key: str | None = None) -> Unauthorized:
        self.trail.refuse(reason, key)
        return Unauthorized(message)

    def _spend(self, key: ApiKey, rate: KeyRate, now: Instant) -> None:
        allowance = self._allowances.get(key.id)
        if allowance is None or allowance.rate != rate:
            allowance = self._allowances[key.id] = Allowance(rate, now)
        wait_s = allowance.spend(now)
        if wait_s:
            self.trail.refuse("rate", key.id)
            raise RateLimited(f"this key may call {rate.count} times in {rate.per_ms} ms", wait_s)

    @contextmanager
    def calling(self, caller: Caller) -> Iterator[None]:
        """A call of this key goes on: canceled as soon as the key is dead."""
        task = asyncio.current_task()
        if not caller.scopes or task is None:
            yield
            return
        calls = self._calls.setdefault(caller.key, set())
        calls.add(task)
        try:
            yield
        finally:
            calls.discard(task)
            if not calls and self._calls.get(caller.key) is calls:
                del self._calls[caller.key]

    def is_dead(self, caller: Caller) -> bool:
        return bool(caller.scopes) and not self.admits(caller.key)

    def admits(self, id: str | None) -> bool:
        """Whether this key is live; None: whether those who have none are let in."""
        return self._is_live(id, self._clock.now())

    # What the ledger has.

    async def refresh(self) -> None:
        # One at a time: an older list that came last would bring back what is gone by now.
        async with self._refreshing:
            await self._refresh()

    async def _refresh(self) -> None:
        now = self._clock.now()
        if self._admin is not None and self._admin.id not in self._callers:
            # A server of this ledger that has no such setting must not stay open.
            await self._close(now)
            self._callers[self._admin.id] = self._made_caller(self._admin)
        found = await self._documents.list(KIND, now=now)
        self._steady.clear()  # one of them may be revoked
        self._closed, self._version = _read_closed(found)
        revoked = self._closed.revoked
        keys = [key for key in map(_read, found) if key is not None]
        self._keys = {
            key.id: key
            if key.revoked_at is not None or key.id not in revoked
            else msgspec.structs.replace(key, revoked_at=revoked[key.id])
            for key in keys
        }
        # Closed once, closed for good: documents that a Redis has lost must not open the server.
        self.open = self.open and not found
        for id, key in self._keys.items():
            known = self._callers.get(id)
            if known is None:  # scopes and names never change
                self._callers[id] = self._made_caller(key)
        for id in self._allowances.keys() - self._keys.keys():
            del self._allowances[id]
        self._close_dead(now)

    async def all(self) -> Sequence[ApiKey]:
        await self.refresh()
        return sorted(self._keys.values(), key=lambda key: key.created_at)

    async def create(self, body: CreateKey) -> Made:
        self._let_end()
        await self.refresh()
        now = self._clock.now()
        check_scopes(body.scopes)
        if not self._live_admins(now) and Scope.ADMIN not in body.scopes:
            raise Invalid(
                "the first key needs the scope admin: no other key could be made", pointer="/scopes"
            )
        if body.expires_at is not None and body.expires_at <= now:
            raise Invalid("expires_at is over already", pointer="/expires_at")
        secret = secrets.token_hex(32)
        key = ApiKey(
            **msgspec.structs.asdict(body),
            id=secrets.token_hex(6),
            digest=_digest(secret),
            created_at=now,
        )
        # Before its name: another server that meets the name must find a live key behind it.
        await self._put(key, now)
        try:
            await self._take_name(key, now)
        except BaseException:
            await self._documents.delete(KIND, key.id)
            raise
        await self._close(now)
        await self.refresh()
        return Made(key, f"{PREFIX}_{key.id}_{secret}")

    async def revoke(self, id: str, *, last_too: bool = False) -> ApiKey:
        """`last_too`: also the last key with the scope admin, after which only the ledger's owner
        can make one.
        """
        self._let_end()
        for _ in range(TRIES):
            await self.refresh()
            now = self._clock.now()
            key = self._keys.get(id)
            if key is None:
                raise NotFound(f"no key {id!r}")
            if Scope.ADMIN not in key.scopes or key.revoked_at is not None:
                break
            if not (last_too or self._live_admins(now) - {id}):
                raise Conflict(
                    "this is the last key with the scope admin",
                    hint="make another one first, or revoke it on the ledger: onward keys revoke "
                    "--ledger",
                )
            # As of the same reading: if another admin key was revoked since, it is refused.
            gone = {one: at for one, at in self._closed.revoked.items() if one in self._keys}
            body = encode(Closed({**gone, id: now}))
            if await self._documents.put(KIND, CLOSED, body, now=now, expect=self._version):
                break
        else:
            raise Conflict("keys are being revoked elsewhere", hint="try again")
        if key.revoked_at is None:
            key = msgspec.structs.replace(key, revoked_at=now)
        # Also if it was revoked before: the server that did it may have died before this write.
        await self._put(key, now)
        await self.refresh()
        return key

    def own(self, caller: Caller) -> ApiKey | None:
        if caller.key is None:
            return None
        return self._admin if caller.key == ADMIN else self._keys.get(caller.key)

    def _live_admins(self, now: Instant) -> set[str]:
        keys = [*self._keys.values(), *([] if self._admin is None else [self._admin])]
        return {key.id for key in keys if Scope.ADMIN in key.scopes and key.live(now)}

    def _is_live(self, id: str | None, now: Instant) -> bool:
        if id is None:
            return self.open
        key = self._admin if self._admin is not None and id == ADMIN else self._keys.get(id)
        return key is not None and key.live(now)

    def _close_dead(self, now: Instant) -> None:
        for id, calls in list(self._calls.items()):
            if not self._is_live(id, now):
                for call in calls:
                    call.cancel()

    def _let_end(self) -> None:
        """This call is answered, whatever becomes of its own key.

        Of the first key, or of one that revokes itself: between the write and the answer the keys
        may be read again. Canceled there, the first key's token would be lost, and all locked out.
        """
        if task := asyncio.current_task():
            for calls in self._calls.values():
                calls.discard(task)

    async def _take_name(self, key: ApiKey, now: Instant) -> None:
        """One document a name: of two who make keys of one name at once, on two servers, only one
        gets it.
        """
        if self._admin is not None and key.name == self._admin.name:
            raise _name_taken(key.name)
        before = await self._documents.get(NAMES, key.name, now=now)
        if before is not None:
            # By the ledger and not by memory: another server may have made it this moment.
            there = await self._documents.get(KIND, msgspec.json.decode(before.body), now=now)
            holder = None if there is None else _read(there)
            if holder is not None and holder.live(now):
                raise _name_taken(key.name)
        expect = 0 if before is None else before.version
        taken = await self._documents.put(
            NAMES, key.name, encode(key.id), now=now, expect=expect, expires_at=key.forget_at
        )
        if taken is None:
            raise _name_taken(key.name)

    async def _close(self, now: Instant) -> None:
        await self._documents.put(KIND, CLOSED, "{}", now=now, expect=0)

    async def _put(self, key: ApiKey, now: Instant) -> None:
        await self._documents.put(KIND, key.id, encode(key), now=now, expires_at=key.forget_at)

    def _made_caller(self, key: ApiKey) -> Caller:
        named = [scope.removeprefix(WORK) for scope in key.scopes if scope.startswith(WORK)]
        plain = {Scope(scope) for scope in key.scopes if scope in KNOWN}
        anything = Scope.WORK in plain or Scope.ADMIN in plain or not named
        return Caller(
            key.id,
            key.name,
            spelled_out(plain | ({Scope.WORK} if named else set())),
            None if anything else frozenset(named),
            self.trail,
        )


def _read(document: Document) -> ApiKey | None:
    """None: it is no key, or one that cannot be read: that costs the other keys nothing."""
    if document.key == CLOSED:
        return None
    try:
        return _decode(document.body)
    except msgspec.MsgspecError as error:
        log.warning("a key cannot be read", key=document.key, error=str(error))
        return None


def _read_closed(found: Sequence[Document]) -> tuple[Closed, int]:
    for document in found:
        if document.key == CLOSED:
            try:
                return _decode_closed(document.body), document.version
            except msgspec.MsgspecError as error:
                log.warning("which admin keys are revoked cannot be read", error=str(error))
                return Closed(), document.version
    return Closed(), 0


def check_scopes(scopes: Sequence[str]) -> None:
    for at, scope in enumerate(scopes):
        named = scope.startswith(WORK) and len(scope) > len(WORK)
        if not named and scope not in KNOWN:
            words = ", ".join([*Scope, f"{WORK}<service or group>"])
            raise Invalid(
                f"there is no scope {scope!r}; there are {words}", pointer=f"/scopes/{at}"
            )


def _admin(token: str) -> ApiKey:
    return ApiKey(
        id=ADMIN, name=ADMIN, digest=_digest(token), scopes=(Scope.ADMIN.value,), created_at=0
    )


def _digest(secret: str) -> str:
    return _sha256(secret).hexdigest()


def _sha256(text: str) -> hashlib._Hash:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass"))


def _fits(secret: str, key: ApiKey) -> bool:
    return hmac.compare_digest(_digest(secret), key.digest)


def _name_taken(name: str) -> Conflict:
    return Conflict(f"there is a live key called {name!r} already", hint="revoke it first")
