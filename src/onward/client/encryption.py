"""The keys that seal what the server keeps, by name, and rotation: `client.encryption`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.wire.encryption import KeyNames, Rotate, RotationStep

if TYPE_CHECKING:
    from onward.client.api import ServerApi

_PATH = "/api/v2/encryption"


class Encryption:
    def __init__(self, api: ServerApi) -> None:
        self._api = api

    async def keys(self) -> KeyNames:
        return await self._api.call(KeyNames, "GET", _PATH)

    async def step(self, after: str = "", *, dry_run: bool = False) -> RotationStep:
        """Seal some texts anew, or only count them; `next` says where the next step begins."""
        body = Rotate(after=after, dry_run=dry_run)
        return await self._api.call(RotationStep, "POST", f"{_PATH}/rotate", body=body)
