"""How many may listen at a time, and what one who listens is given."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from onward.core.errors import TooBusy
from onward.wire.live import ServerEvent


class Places:
    """A place is taken within a `with`."""

    def __init__(self, most: int, full: str) -> None:
        self.most = most
        self._full = full
        self.taken = 0

    @contextmanager
    def take(self) -> Iterator[None]:
        # Compared and counted in one turn: with an await in between, all who come at once get in.
        if self.taken >= self.most:
            raise TooBusy(self._full, hint="try again shortly")
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


class Subscription(NamedTuple):
    """`place` is entered before the first event is read, and left after the last."""

    events: AsyncGenerator[ServerEvent, None]
    place: AbstractContextManager[object]
