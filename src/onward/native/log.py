"""Who reads the event log, how far each has read, and forgetting one that is gone."""

from __future__ import annotations

import msgspec

from onward.core.errors import NotFound
from onward.core.readers import Readers
from onward.native.caller import SEES_ALL, Caller, Scope, needs
from onward.wire.base import Name, Page
from onward.wire.log import ReaderView


class Log:
    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    @needs(*SEES_ALL)
    async def readers(self, caller: Caller) -> Page[ReaderView]:
        found = await self._readers.list()
        return Page(
            items=tuple(msgspec.convert(one, ReaderView, from_attributes=True) for one in found)
        )

    @needs(Scope.OPERATE)
    async def forget(self, caller: Caller, name: Name) -> None:
        """Finished tasks no longer wait for it; if it comes back, it begins anew."""
        if not await self._readers.forget(name):
            raise NotFound("no reader of the log has this name")
