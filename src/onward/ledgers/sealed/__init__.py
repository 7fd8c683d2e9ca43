"""Encryption at rest around any ledger (docs/adr/0013): the ledger keeps what it cannot read."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import msgspec
import structlog

from onward.core.contract import (
    Backend,
    Bell,
    Document,
    Documents,
    Effect,
    Effects,
    PeerEvents,
)
from onward.core.errors import Unreadable
from onward.core.task import Ending, Held, Instant, Json, TaskId
from onward.ledgers.sealed.chosen import Asks
from onward.ledgers.sealed.fields import Sealing, opens
from onward.ledgers.sealed.keyring import Keyring
from onward.ledgers.sealed.rotation import ResealStep, Rotation
from onward.ledgers.sealed.store import SealedStore
from onward.ledgers.sealed.texts import CLEAR, Resealable, document_owner, effect_owner, owner_of

RotateFn = Callable[[str, bool], Coroutine[Any, Any, ResealStep]]

log = structlog.get_logger("onward.sealed")


class SealedDocuments:
    def __init__(self, inner: Documents, keyring: Keyring) -> None:
        self._inner = inner
        self._keyring = keyring
        self.delete = inner.delete

    async def put(
        self,
        kind: str,
        key: str,
        body: Json,
        *,
        now: Instant,
        expect: int | None = None,
        expires_at: Instant | None = None,
    ) -> Document | None:
        kept = body if kind in CLEAR else self._keyring.seal(body, document_owner(kind), key)
        put = await self._inner.put(kind, key, kept, now=now, expect=expect, expires_at=expires_at)
        return None if put is None else Document(key, body, put.version)

    async def get(self, kind: str, key: str, *, now: Instant) -> Document | None:
        found = await self._inner.get(kind, key, now=now)
        return None if found is None else self._opened(kind, found)

    async def list(self, kind: str, *, now: Instant) -> Sequence[Document]:
        """Without those that do not open: the others go on."""
        found: list[Document] = []
        for document in await self._inner.list(kind, now=now):
            try:
                found.append(self._opened(kind, document))
            except Unreadable as error:
                log.error("a document is left out", kind=kind, error=str(error))
        return found

    def _opened(self, kind: str, found: Document) -> Document:
        body = self._keyring.open(found.body, document_owner(kind), found.key)
        return found if body is found.body else msgspec.structs.replace(found, body=body)


class SealedEffects:
    def __init__(self, inner: Effects, keyring: Keyring) -> None:
        self._inner = inner
        self._keyring = keyring
        self.undo = inner.undo

    async def begin(self, task: Held, name: str, *, now: Instant) -> Effect | None:
        found = await self._inner.begin(task, name, now=now)
        if found is None or found.value is None:
            return found
        value = self._keyring.open(found.value, _effect_owner(task), name)
        return msgspec.structs.replace(found, value=value)

    async def finish(self, task: Held, name: str, value: Json, *, fence: int) -> bool:
        kept = self._keyring.seal(value, _effect_owner(task), name)
        return await self._inner.finish(task, name, kept, fence=fence)


def _effect_owner(task: Held) -> str:
    return effect_owner(task.key or task.id)


class SealedBell:
    """Endings in its messages come out of the ledger sealed, as they are kept there."""

    def __init__(self, inner: Bell, keyring: Keyring) -> None:
        self._inner = inner
        self._opens = opens(keyring)
        self.ring, self.listen = inner.ring, inner.listen

    def attach(self, peer: PeerEvents) -> None:
        self._inner.attach(_SealedPeer(peer, self._opens))


class _SealedPeer:
    def __init__(self, peer: PeerEvents, opens: Sealing) -> None:
        self._peer = peer
        self._opens = opens

    def on_news(
        self, queues: Sequence[str], tasks: Sequence[TaskId], ended: Mapping[TaskId, Ending | None]
    ) -> None:
        self._peer.on_news(
            queues, tasks, {task: self._opened(ending) for task, ending in ended.items()}
        )

    def _opened(self, ending: Ending | None) -> Ending | None:
        try:
            return None if ending is None else self._opens.ending(ending)
        except Unreadable:  # callers that wait read the task, and get the reason
            return None


class SealedBackend:
    def __init__(self, inner: Resealable, keyring: Keyring) -> None:
        self.inner = inner
        self.keyring = keyring
        self.shared, self.redis, self.enqueued = inner.shared, inner.redis, inner.enqueued
        self.rotation = Rotation(inner.sealed_texts, keyring)
        self.tasks = SealedStore(inner.tasks, keyring)
        self.documents = SealedDocuments(inner.documents, keyring)
        self.effects = SealedEffects(inner.effects, keyring)
        self.sessions = inner.sessions
        self.bell: Bell = SealedBell(inner.bell, keyring)
        self.gauges, self.maintain, self.close = inner.gauges, inner.maintain, inner.close

    @property
    def ahead_ms(self) -> int:
        return self.inner.ahead_ms

    @property
    def warnings(self) -> Sequence[str]:
        return self.inner.warnings


def seal_only(backend: Backend, asks: Asks) -> None:
    """From now on of tasks only those for which it is asked; the rest of the ledger as before."""
    if isinstance(backend, SealedBackend):
        backend.tasks.chosen.asks = asks
        backend.rotation.leaves_clear = True


def unwrap(backend: Backend) -> Backend:
    """The ledger itself, with what is sealed in it left sealed."""
    return backend.inner if isinstance(backend, SealedBackend) else backend


def rotating(backend: Backend) -> tuple[Sequence[str], RotateFn | None]:
    """The keys' names, the one that seals first, and a step of a rotation; ((), None): off."""
    if not isinstance(backend, SealedBackend):
        return (), None
    rotation = backend.rotation
    return backend.keyring.ids, lambda after, dry_run: rotation.step(after, dry_run=dry_run)


def at_rest(backend: Backend) -> Callable[[TaskId, str, Json], str] | None:
    """How a copy of a task's text is sealed that is kept outside the ledger. None: it is not."""
    if not isinstance(backend, SealedBackend):
        return None
    keyring, is_sealed = backend.keyring, backend.tasks.chosen.seals

    def seal(task: TaskId, field: str, text: Json) -> str:
        owner = owner_of(task)
        return keyring.seal(text, owner, field) if is_sealed(owner) else text

    return seal
