"""What new tasks meet in the ledger: others with their unique key, or their debounce key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from onward.core.contract import Fate, Receipt, Submission
from onward.core.task import STATES, State, TaskId
from onward.ledgers.sql.dialect import Step
from onward.ledgers.sql.write_batch import Plan, WriteBatch


class Rivals:
    def __init__(self) -> None:
        self.unique: dict[str, list[tuple[TaskId, State]]] = defaultdict(list)  # oldest first
        self.waiting: dict[str, TaskId] = {}
        self.untaken: dict[TaskId, Receipt] = {}
        self._heirs: dict[TaskId, TaskId] = {}

    def verdict(self, one: Submission) -> Receipt | None:
        """None: it meets none."""
        task = one.task
        if one.unique is not None and task.unique_key in self.unique:
            for id, state in reversed(self.unique[task.unique_key]):
                if state in one.unique.states:
                    return Receipt(Fate.HELD, id)
        if task.debounce_key in self.waiting and task.state is State.SCHEDULED:
            return Receipt(Fate.WAITS, self.waiting[task.debounce_key])
        return None

    def note(self, one: Submission, receipt: Receipt) -> None:
        """What became of it: those after it meet it too."""
        task = one.task
        if receipt.fate is not Fate.FRESH:
            self.untaken[task.id] = receipt
            if receipt.fate is Fate.HELD and one.unique is not None and one.unique.returns:
                self._heirs[task.id] = receipt.task
            return
        if task.unique_key is not None:
            state = State.RUNNING if receipt.running else task.state
            self.unique[task.unique_key].append((task.id, state))
        if task.debounce_key is not None and task.state is State.SCHEDULED:
            self.waiting[task.debounce_key] = task.id

    def free_keys(self, held: Collection[TaskId]) -> Plan[None]:
        """The idempotency keys of those that were not taken: one whose answer is another task goes
        to that one, so that the same call once more gets the same answer.
        """
        lost = [id for id in self.untaken if id in held and id not in self._heirs]
        if lost:
            yield Step("drop_keys", values=lost)
        heirs = [(id, heir) for id, heir in self._heirs.items() if id in held]
        if heirs:
            yield Step("hand_keys_on", rows=heirs)


def find_rivals(submissions: Sequence[Submission], batch: WriteBatch) -> Plan[Rivals]:
    rivals = Rivals()
    tasks = [one.task for one in submissions]
    unique = {
        (one.task.unique_key, str(state))
        for one in submissions
        if one.unique is not None and one.task.unique_key is not None
        for state in one.unique.states
    }
    debounced = {task.debounce_key for task in tasks} - {None}
    if not unique and not debounced:
        return rivals
    # Two servers that insert at once would each find none.
    yield from batch.lock(
        [*{f"unique {key}" for key, _ in unique}, *(f"wait {key}" for key in debounced)]
    )
    if unique:
        for key, id, state in (yield Step("rivals", rows=sorted(unique))):
            rivals.unique[key].append((id, STATES[state]))
    if debounced:
        found = yield Step("waiting_rivals", values=sorted(filter(None, debounced)))
        rivals.waiting.update(found)
    return rivals
