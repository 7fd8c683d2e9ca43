"""Which tasks are sealed, where only those are for which it is asked (docs/adr/0081).

Decided when a task is born, and read from its payload ever after: a task whose payload is sealed
is sealed in all its parts. What is not known is sealed: too much can be opened as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from onward.core.task import Json, Task, TaskId
from onward.ledgers.sealed.keyring import key_of
from onward.ledgers.sealed.texts import owner_of

Asks = Callable[[Task], bool]

RUNS = frozenset({"flow", "node"})  # their texts pass from one to the other
MOST = 100_000  # tasks that are remembered


class _Kept(Protocol):
    @property
    def id(self) -> TaskId: ...

    @property
    def payload(self) -> Json: ...


class ClearOwners:
    def __init__(self) -> None:
        self.asks: Asks | None = None  # None: every task is sealed
        self._clear: dict[str, None] = {}  # owners, as the texts name them

    def seals(self, owner: str) -> bool:
        return owner not in self._clear

    def born(self, task: Task) -> None:
        if self.asks is not None and task.profile not in RUNS and not self.asks(task):
            self._remember(task.id)

    def read(self, tasks: Iterable[_Kept | None]) -> None:
        """As they rest in the ledger."""
        if self.asks is not None:
            for task in tasks:
                if task is not None and key_of(task.payload) is None:
                    self._remember(task.id)

    def _remember(self, task: TaskId) -> None:
        if len(self._clear) >= MOST:
            self._clear.clear()
        self._clear[owner_of(task)] = None
