"""Which keys there are by name, and sealing anew what older ones have sealed. Never shows a key.

One call is one step of a rotation: a caller can show how far it is, and stop anywhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from onward.core.errors import Conflict, NextStep, Step
from onward.native.caller import SEES_ALL, Caller, Scope, needs
from onward.wire.encryption import KeyNames, Rotate, RotationStep

Turn = Callable[[str, bool], Awaitable[Any]]  # where to begin, and whether only to count


class Encryption:
    """Without keys nothing is sealed, and there is no step to make."""

    def __init__(self, keys: Sequence[str], step: Turn | None) -> None:
        self._keys = tuple(keys)
        self._step = step

    @needs(*SEES_ALL)
    async def read(self, caller: Caller) -> KeyNames:
        return KeyNames(sealing=self._keys[0] if self._keys else None, keys=self._keys)

    @needs(Scope.ADMIN)
    async def rotate(self, caller: Caller, body: Rotate | None = None) -> RotationStep:
        given = body or Rotate()
        if self._step is None:
            raise Conflict(
                "nothing is encrypted here: the server has no keys", step=NextStep(Step.MAKE_KEY)
            )
        done = await self._step(given.after, given.dry_run)
        return msgspec.convert(done, RotationStep, from_attributes=True)
