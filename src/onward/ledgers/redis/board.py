"""What the ledger has been told of this server's free hands (docs/adr/0018).

It rides along in calls that are made anyway, one at a time: what was said last is what stands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from onward.core.contract import Ask, Spare
from onward.core.task import Claimed

_encode = msgspec.msgpack.Encoder().encode


class Board:
    def __init__(self) -> None:
        self.spare: Callable[[], Mapping[str, Spare]] | None = None  # we cannot be given anything
        self._told: dict[str, Spare | None] = {}  # by queue; None: whether it stands is not known
        self._telling = False

    def doubt(self) -> None:
        """The ledger may have forgotten: everything is said again."""
        self._told = dict.fromkeys(self._told)

    def filled(self, queue: str) -> None:
        self._told.pop(queue, None)

    def close(self) -> Sequence[str]:
        """Nothing is free any more. Returns the queues for which something may still stand."""
        self.spare = None
        queues, self._told = list(self._told), {}
        return queues

    def note_full(self, asks: Sequence[Ask], claimed: Sequence[Claimed]) -> None:
        """Hands that were filled have been taken down by the claim that filled them."""
        found = Counter(task.worker for task in claimed)
        for ask in asks:
            if found[ask.worker] >= ask.limit:
                for want in ask.wants:
                    self.filled(want.queue)

    @contextmanager
    def telling(self) -> Iterator[tuple[bytes, ...]]:
        """The last argument of the call that is made inside: what has changed, or empty.

        A server that others cannot give anything gives nothing, and has no such argument.
        """
        if self.spare is None:
            yield ()
            return
        spare = self.spare()
        if self._telling or spare == self._told:
            yield (b"",)
            return
        free = {queue: hand for queue, hand in spare.items() if self._told.get(queue) != hand}
        gone = [queue for queue in self._told if queue not in spare]
        self._told = dict(spare)
        self._telling = True
        try:
            yield (_encode({"free": free, "gone": gone}),)
        except BaseException:
            self._told |= dict.fromkeys((*free, *gone))
            raise
        finally:
            self._telling = False
