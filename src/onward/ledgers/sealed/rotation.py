"""Rotation: what rests under an older key, or under none, is sealed under the one that seals now.

A step at a time, each with a cursor for the next: the caller may stop anywhere, and begin again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from onward.core.errors import Invalid, Unreadable
from onward.ledgers.sealed.fields import WRITTEN, opens, seals
from onward.ledgers.sealed.keyring import Keyring, key_of
from onward.ledgers.sealed.texts import SealedText, SealedTexts, owner_of

STEP = 500  # texts: a step must not keep a server from its work
TASKS = owner_of("")  # begins their owners
UNSEALED = "none"  # the id under which texts are counted that no key has sealed


class ResealStep(msgspec.Struct, frozen=True, kw_only=True):
    looked_at: int
    resealed: int
    unreadable: int
    held: Mapping[str, int]  # how many rest under which key, as found
    next: str | None  # where the next step begins; None: this was the last


class Rotation:
    def __init__(self, ledger: Sequence[SealedTexts], keyring: Keyring) -> None:
        self._ledger = ledger
        self._keyring = keyring
        self.leaves_clear = False  # tasks whose callers did not ask for encryption
        self._opens, self._seals = opens(keyring), seals(keyring)

    async def step(self, after: str = "", *, dry_run: bool = False) -> ResealStep:
        part, at = _cursor(after, len(self._ledger))
        texts, next_ = await self._ledger[part].read(at, STEP)
        held: Counter[str] = Counter()
        changes: list[tuple[SealedText, str]] = []
        unreadable = 0
        for one in texts:
            under = {key_of(text) for text in _texts(one)}
            held.update(key or UNSEALED for key in under)
            if self.leaves_clear and under <= {None} and one.owner.startswith(TASKS):
                continue
            if under <= {self._keyring.sealing} or not one.place:
                continue
            try:
                changes.append((one, self._renewed(one)))
            except Unreadable:
                unreadable += 1
        resealed = 0
        if changes and not dry_run:
            resealed = await self._ledger[part].rewrite(changes)
        if next_ is not None:
            more: str | None = f"{part}|{next_}"
        else:
            more = f"{part + 1}|" if part + 1 < len(self._ledger) else None
        return ResealStep(
            looked_at=len(texts), resealed=resealed, unreadable=unreadable, held=held, next=more
        )

    def _renewed(self, one: SealedText) -> str:
        if one.field != "approval":
            opened = self._keyring.open(one.text, one.owner, one.field)
            return self._keyring.seal(opened, one.owner, one.field)
        task = one.owner.partition(":")[2]
        return self._seals.text(task, "approval", self._opens.text(task, "approval", one.text))


def _texts(one: SealedText) -> Sequence[str]:
    """What of it is sealed: of an approval, what people wrote."""
    if one.field != "approval":
        return [one.text]
    asked: dict[str, Any] = msgspec.json.decode(one.text)
    return [asked[name] for name in WRITTEN if asked.get(name)]


def _cursor(after: str, parts: int) -> tuple[int, str]:
    if not after:
        return 0, ""
    part, _, at = after.partition("|")
    if not part.isdecimal() or int(part) >= parts:
        raise Invalid(f"{after!r} is no place to begin at", pointer="/after")
    return int(part), at
