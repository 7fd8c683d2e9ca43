"""The keys that seal what the server keeps, by name, and rotation. Part of `Client`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from onward.client.wire import Wire


class Keys(msgspec.Struct, frozen=True):
    sealing: str | None  # None: nothing is encrypted
    keys: tuple[str, ...] = ()


class RotationStep(msgspec.Struct, frozen=True, kw_only=True):
    looked_at: int
    resealed: int
    unreadable: int
    held: Mapping[str, int]  # texts by the key they rest under, as found; "none" if under none
    next: str | None = None


class Encryption:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def keys(self) -> Keys:
        return await self._wire.ask(Keys, self._wire.request("GET", _PATH))

    async def step(self, after: str = "", *, dry_run: bool = False) -> RotationStep:
        """Seal some texts anew, or only count them; `next` says where the next step begins."""
        body = {"after": after, "dry_run": dry_run}
        request = self._wire.request("POST", f"{_PATH}/rotate", body=body)
        return await self._wire.ask(RotationStep, request)


_PATH = "/api/v2/encryption"
