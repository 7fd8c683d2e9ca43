"""What makes a call safe to send again, and how long a server that is away is waited for."""

from __future__ import annotations

import asyncio
import random
import uuid
from time import monotonic
from typing import TYPE_CHECKING

from onward.client.errors import ProblemError, Unreachable, WorkerRefused

if TYPE_CHECKING:
    from onward.client.api import ServerApi

PASSING = frozenset({"stopping", "ledger_unavailable"})  # problems that are soon over


def new_key() -> str:
    """An idempotency key of one call: it may be sent again after a cut."""
    return str(uuid.uuid4())


class RetryWindow:
    """A server that was there a moment ago may be restarting: this much we bear with it."""

    LIMIT_S = 30.0
    FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0

    def __init__(self, api: ServerApi) -> None:
        self._api = api
        self.reset()

    def reset(self) -> None:
        """It is there, and well."""
        self._pause = self.FIRST_PAUSE_S
        self._since: float | None = None

    async def retry_or_raise(self, error: Unreachable | ProblemError) -> None:
        """Raises what cannot be borne, or no longer."""
        if isinstance(error, ProblemError) and error.code not in PASSING:
            raise error
        if not self._api.reached:
            raise error
        self._since = self._since or self._api.away_since or monotonic()
        if monotonic() - self._since > self.LIMIT_S:
            raise error
        await asyncio.sleep(self._pause * random.uniform(0.5, 1))
        self._pause = min(self._pause * 2, self.LONGEST_PAUSE_S)


class Admission:
    """Whether a worker with a key that is refused tries again: for a while, because one that was
    just made may not be known to every server yet; and for ever once it was let in, because its
    servers may have lost their keys for a time.
    """

    LIMIT_S = 5.0

    def __init__(self, api: ServerApi) -> None:
        self._api = api
        self._granted = False
        self._refused_at: float | None = None  # the first time

    def grant(self) -> None:
        self._granted = True

    def refuse(self, why: str) -> None:
        """Raises WorkerRefused if it is not to be tried again."""
        if self._granted:
            return
        self._refused_at = self._refused_at or monotonic()
        if monotonic() - self._refused_at >= self.LIMIT_S:
            raise WorkerRefused(self._api.url, why)
