"""Any order of events, on readings that may be old: the ledger and a dict say the same.

The dict holds the whole Task as the contract says it must be, so every field is compared after each
step, and the guards, the order of the queue, the counts and the log with it.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from onward.core import machine
from onward.core.contract import Ask, Backend, LeaseRenewal, LeaseStatus, Move, Submission, Verdict
from onward.core.limits import Bound, Rate
from onward.core.outcome import Failed, Lost, Outcome, Parked, Released, Succeeded
from onward.core.task import FINAL, FINAL_EVENTS, Claimed, Letter, State, Task
from onward.faults import Fault
from tests.contract.driver import Driver
from tests.contract.ledgers import LEDGERS
from tests.contract.model import Model
from tests.support import LEASE_MS, NOW, PROFILES, a_task, an_ask, ids, replay

# One ledger walks far; the others, slower, only need to show that they walk the same way. In full,
# each of them walks far.
FULL = "ONWARD_FULL_FAULTS" in os.environ
FAR, FAR_STEPS = 460, 20_000
EXAMPLES = {"sqlite-memory": FAR}
LEAST_STEPS = {"sqlite-memory": FAR_STEPS}
STEPS = 50

which = st.integers(0, 40)
queues = st.sampled_from(["a", "b", "turns", "bound"])
partitions = st.sampled_from(["", "x", "y", "z"])
# Of the queue "bound". They may change at any time, and hold for what runs already.
BOUNDS: Sequence[tuple[Bound, ...]] = [
    (Bound("total", False, 2, None, ("bound",)),),
    (Bound("each", True, 1, None, ("bound",)),),
    (Bound("each", True, 2, None, ("bound", "turns")), Bound("total", False, 4, None, ("bound",))),
    (Bound("rate", False, None, Rate(1, 5_000), ("bound",)),),
    (Bound("own", True, 2, Rate(1, 100_000, 0), ("bound",)),),
    (Bound("typed", False, 1, None, ("else",), ("odd",)), Bound("each", True, 2, None, ("bound",))),
    (
        Bound("lines", True, 1, None, ("else",), ("odd",)),
        Bound("total", False, 3, None, ("bound",)),
    ),
    (Bound("paced", False, None, Rate(1, 5_000), ("else",), ("odd",)),),
]
outcomes: st.SearchStrategy[Outcome] = st.sampled_from(
    [
        Succeeded("1"),
        Failed(Fault(kind="ServiceUnavailable", message="later")),
        Failed(Fault(kind="InvalidInput", message="never")),
        Parked(seen=0, journal="{}", waiting_for="event"),
        Parked(seen=0, journal="{}", waiting_for="timer", until=NOW + 90_000),
        Released(),
        Lost(),
    ]
)


HEARD = [
    Parked(seen=0, journal='{"again":1}', waiting_for="children"),
    Parked(seen=0, journal="{}", waiting_for="timer", until=NOW + 90_000),
    Succeeded("9", journal="{}"),
]


class LedgerMachine(RuleBasedStateMachine):
    steps = 0

    def __init__(self, backend: Backend, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.loop = loop
        self.backend = backend
        self.driver = Driver(backend)
        self.model = Model()
        self.held: list[Claimed] = []
        self.readings: list[Task] = []  # also old ones: whoever decides may have read long ago
        self.fences: Counter[str] = Counter()
        self.numbers: Counter[str] = Counter()
        self.finals: set[tuple[str, int]] = set()
        self.cursor = ""
        self.born = 0
        self.bounds = BOUNDS[0]

    def teardown(self) -> None:
        self.loop.run_until_complete(self.backend.close())

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def ask(self, queue: str, **more: Any) -> tuple[Ask, ...]:
        return (an_ask(queue, bounds=self.bounds if queue == "bound" else (), **more),)

    def new(self, **fields: Any) -> Submission:
        self.born += 1
        task = a_task(id=f"t{self.born}", created_at=self.driver.now, **fields)
        return Submission(*machine.born(task, PROFILES[task.profile]))

    def apply(self, *moves: Move | None, asks: tuple[Ask, ...] = ()) -> None:
        wanted = [move for move in moves if move is not None]
        moved = self.run(self.driver.apply(*wanted, asks=asks))
        expected, claimed = self.model.apply(wanted, self.driver.now, asks)
        assert list(moved.verdicts) == expected
        assert ids(moved.claimed) == claimed
        self.held += moved.claimed
        for move, verdict in zip(wanted, expected, strict=True):
            if verdict is Verdict.APPLIED and move.to is State.QUEUED:
                assert self.model.rows[move.task].task.queue in moved.awake

    @rule(
        queue=queues,
        profile=st.sampled_from(list(PROFILES)),
        clock=st.sampled_from(
            [None, "run_at", "start_by", "expires_at", "attempt_ms", "parent", "waiting_for"]
        ),
        hand=st.booleans(),
        cap=st.sampled_from([None, None, 3]),
        partition=partitions,
        strict=st.booleans(),
        odd=st.booleans(),
    )
    def submit(
        self,
        queue: str,
        profile: str,
        clock: str | None,
        hand: bool,
        cap: int | None,
        partition: str = "",
        strict: bool = False,
        odd: bool = False,
    ) -> None:
        fields: dict[str, Any] = {"type": "odd"} if odd else {}
        if queue in ("turns", "bound"):
            fields |= {"partition": partition, "strict": strict and queue == "bound"}
        if clock is not None:
            spans = {"parent": "t1", "attempt_ms": 20_000, "waiting_for": "approval"}
            fields[clock] = spans.get(clock, self.driver.now + 45_000)
        item = self.new(queue=queue, profile=profile, **fields)
        item = Submission(item.task, item.events, cap)
        asks = self.ask(queue) if hand else ()
        inserted = self.run(self.driver.insert(item, asks=asks))
        found = [task.id for task in inserted.claimed if task.id != item.task.id]
        claimed = self.model.claim(asks, self.driver.now, found)
        fate, running = self.model.insert(item, asks if not claimed else (), self.driver.now)
        assert (inserted.receipts[0].fate, inserted.receipts[0].running) == (fate, running)
        assert ids(inserted.claimed) == claimed + ([item.task.id] if running else [])
        self.held += inserted.claimed

    @initialize(profile=st.sampled_from(list(PROFILES)))
    def begin_with_work(self, profile: str) -> None:
        for queue in "aab":
            self.submit(queue, profile, None, hand=False, cap=None)
        self.claim("a", 2, offered=False)
        self.read(0)

    @rule(queue=queues, limit=st.integers(1, 4), offered=st.booleans())
    def claim(self, queue: str, limit: int, offered: bool) -> None:
        asks = self.ask(queue, limit=limit, lease_ms=None if offered else LEASE_MS)
        claimed: Sequence[Claimed] = self.run(self.driver.store.claim(asks, now=self.driver.now))
        expected = self.model.claim(asks, self.driver.now, ids(claimed))
        assert ids(claimed) == expected, "first in, first out"
        for one in claimed:
            assert [letter.body for letter in one.letters] == self.model.rows[one.id].letters
        self.held += claimed

    @rule(
        queue=st.sampled_from(["turns", "bound"]),
        many=st.lists(st.tuples(partitions, st.booleans()), min_size=2, max_size=6),
    )
    def submit_in_partitions(self, queue: str, many: list[tuple[str, bool]]) -> None:
        for partition, odd in many:
            self.submit(queue, "console", None, hand=False, cap=None, partition=partition, odd=odd)

    @rule(bounds=st.sampled_from(BOUNDS))
    def change_bounds(self, bounds: tuple[Bound, ...]) -> None:
        self.bounds = bounds

    @precondition(lambda self: self.held)
    @rule(at=which)
    def deliver(self, at: int) -> None:
        one = self.held[-1 - at % len(self.held)]
        self.apply(machine.delivered(one, "v", self.driver.now, self.driver.now + LEASE_MS))

    @precondition(lambda self: self.held)
    @rule(at=which, note=st.booleans())
    def extend(self, at: int, note: bool) -> None:
        one = self.held[-1 - at % len(self.held)]
        notes = (("task.chunk", None),) if note else ()
        renewal = LeaseRenewal(one.id, one.fence, self.driver.now + LEASE_MS, None, notes)
        (status,) = self.run(self.driver.store.extend([renewal], now=self.driver.now))
        assert status is self.model.extend(renewal)
        if status is LeaseStatus.LOST:
            self.held.remove(one)

    @precondition(lambda self: self.held)
    @rule(
        at=which,
        outcome=outcomes,
        spawn=st.booleans(),
        twice=st.booleans(),
        hand=st.booleans(),
        heard=st.sampled_from([None, *HEARD]),
    )
    def settle(
        self,
        at: int,
        outcome: Outcome,
        spawn: bool,
        twice: bool,
        hand: bool,
        heard: Parked | Succeeded | None,
    ) -> None:
        one = self.held[-1 - at % len(self.held)]
        children: list[Submission] = []
        if isinstance(outcome, Parked):
            outcome = Parked(
                seen=len(one.letters),
                journal=outcome.journal,
                waiting_for=outcome.waiting_for,
                until=outcome.until,
            )
            children = [self.new(queue="b", parent=one.id)] if spawn else []
        profile = PROFILES[one.profile]
        move = machine.settle(one, outcome, self.driver.now, profile, tuple(children))
        if heard is not None and move.letters:
            move = msgspec.structs.replace(move, answer=self.answer(move.letters[0].to, heard, at))
        asks = (an_ask("b"),) if hand else ()
        self.apply(move, *([move] if twice else []), asks=asks)

    def answer(self, parent: str, heard: Parked | Succeeded, at: int) -> Move | None:
        """Of a parent as it is now, or as somebody once read it."""
        known = [task for task in self.readings if task.id == parent]
        if parent in self.model.rows:
            known.append(self.model.rows[parent].task)
        if not known:
            return None
        task = known[-1 - at % len(known)]
        child = self.new(queue="b", parent=parent) if isinstance(heard, Parked) else None
        profile, spawn = PROFILES[task.profile], () if child is None else (child,)
        return machine.answer(task, heard, self.driver.now, profile, spawn)

    @precondition(lambda self: self.model.rows)
    @rule(at=which)
    def read(self, at: int) -> None:
        tasks = list(self.model.rows.values())
        self.readings.append(tasks[-1 - at % len(tasks)].task)

    @precondition(lambda self: self.readings and self.model.rows)
    @rule(
        at=which,
        fresh=st.booleans(),
        verb=st.sampled_from(["cancel", "replay", "abandon", "approve", "reject"]),
    )
    def intervene(self, at: int, fresh: bool, verb: str) -> None:
        rows = list(self.model.rows.values())
        task = self.readings[-1 - at % len(self.readings)]
        if fresh:
            task = rows[-1 - at % len(rows)].task
        if verb == "replay":
            later = self.driver.now + 20_000 if at % 2 else None
            self.apply(replay(task, self.driver.now, run_at=later))
        else:
            decide = getattr(machine, verb)
            self.apply(decide(task, self.driver.now, PROFILES[task.profile]))

    @precondition(lambda self: self.readings)
    @rule(at=which)
    def event_only(self, at: int) -> None:
        self.apply(
            machine.event_only(self.readings[-1 - at % len(self.readings)], "task.late", None)
        )

    @rule(to=which)
    def post(self, to: int) -> None:
        letter = Letter(to=f"t{to % (self.born + 1)}", name="signal", body=f"{to}")
        moved = self.run(self.driver.store.post([letter], now=self.driver.now))
        verdict = self.model.post(letter, self.driver.now)
        assert list(moved.verdicts) == [verdict]

    @rule(ms=st.sampled_from([1, 5_000, LEASE_MS, 100_000, 3_600_000, 31 * 24 * 3_600_000]))
    def advance_and_sweep(self, ms: int) -> None:
        self.driver.now += ms
        due: Sequence[Task] = self.run(self.driver.store.due(now=self.driver.now, limit=100))
        assert sorted(ids(due)) == sorted(self.model.due(self.driver.now))
        over = [task.id for task in due if task.state in FINAL]
        live = [task for task in due if task.state not in FINAL]
        moves = [machine.on_due(t, self.driver.now, PROFILES[t.profile]) for t in live]
        self.readings += live[:2]
        self.apply(*moves)
        assert self.run(self.driver.store.purge(over, now=self.driver.now)) == self.model.purge(
            over
        )

    @rule(at=which)
    def late_sweep(self, at: int) -> None:
        """The clock's decision on an old reading: only the guard stands between it and the task."""
        live = [task for task in self.readings if task.state not in FINAL]
        if live:
            task = live[-1 - at % len(live)]
            self.apply(machine.on_due(task, self.driver.now, PROFILES[task.profile]))

    @rule(at=which)
    def purge(self, at: int) -> None:
        id = f"t{at % (self.born + 1)}"
        purged = self.run(self.driver.store.purge([id], now=self.driver.now))
        assert purged == self.model.purge([id])

    @invariant()
    def ledger_and_model_say_the_same(self) -> None:
        type(self).steps += 1
        self.run(self.compare())

    async def compare(self) -> None:
        tasks = await self.driver.all()
        expected = sorted(self.model.rows.values(), key=lambda row: row.number)
        assert tasks == [row.task for row in expected]
        for task in tasks:
            assert task.fence >= self.fences[task.id]
            self.fences[task.id] = task.fence
        assert await self.driver.store.counts() == await self.driver.recount()
        for id, position in self.model.positions().items():
            assert await self.driver.store.position(id) == position
        await self.compare_usage()
        await self.read_the_log()
        for task in tasks:
            assert self.numbers[task.id] == task.events
            assert ((task.id, task.generation) in self.finals) == (task.state in FINAL)

    async def compare_usage(self) -> None:
        for partition in ("", "x"):
            found = await self.driver.store.usage(self.bounds, partition, now=self.driver.now)
            assert [one.used for one in found] == [
                self.model.used(bound, partition) for bound in self.bounds
            ]

    async def read_the_log(self) -> None:
        page = await self.driver.store.events(after=self.cursor, limit=1_000)
        self.cursor = page.next or ""
        for event in page.items:
            self.numbers[event.task] += 1
            assert event.n == self.numbers[event.task], "no gap, and in order"
            if event.type in FINAL_EVENTS:
                assert (event.task, event.generation) not in self.finals, "one end a generation"
                self.finals.add((event.task, event.generation))


@pytest.mark.slow
@pytest.mark.timeout(3_600 if FULL else 900)
@pytest.mark.contract("S1-3", "S0-10", "L-2", "L-3", "L-4")
@pytest.mark.parametrize("ledger", LEDGERS)
def test_a_ledger_does_what_a_dict_would(
    ledger: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    examples = EXAMPLES.get(ledger, FAR if FULL else 20)
    loop = asyncio.new_event_loop()

    class Machine(LedgerMachine):
        steps = 0

        def __init__(self) -> None:
            super().__init__(LEDGERS[ledger](tmp_path_factory.mktemp("ledger")), loop)

    try:
        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=STEPS,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        loop.close()
    assert Machine.steps >= LEAST_STEPS.get(ledger, FAR_STEPS if FULL else 0)
