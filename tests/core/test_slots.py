"""Free slots: who is asked, what is asked for, and that no slot is ever lost or invented."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from onward.core.contract import Ask
from onward.core.slots import LARGEST_CLAIM, NO_BOUNDS, USUAL_CLAIM, Slots, WorkerSlots, renewals_of
from onward.core.task import Claimed, Lane, new_id
from tests.support import LEASE_MS, NOW


def claimed(worker: str, queue: str = "q", *, id: str | None = None, fence: int = 1) -> Claimed:
    return Claimed(
        id=id or new_id(),
        worker=worker,
        fence=fence,
        rev=1,
        type="mail",
        queue=queue,
        profile="console",
        payload="{}",
        generation=1,
        attempt=1,
        failures=0,
        retries=0,
        lost=0,
        lane=Lane.PRIMARY,
        created_at=NOW,
        expires_at=None,
        attempt_by=None,
        attempt_ms=None,
        overrides=None,
        parent=None,
        key=None,
        journal=None,
    )


class CountedSlots:
    """Slots, with a count of how often they asked to go claiming."""

    def __init__(self) -> None:
        self.wakes = 0
        self.slots = Slots(wake=self._wake)
        self.delivered: dict[str, list[Claimed]] = {}
        self.stopped: list[tuple[str, bool]] = []

    def _wake(self) -> None:
        self.wakes += 1

    def add(
        self, worker: str, *queues: str, slots: int = 1, most: Mapping[str, int] = NO_BOUNDS
    ) -> WorkerSlots:
        inbox = self.delivered.setdefault(worker, [])
        worker_slots = WorkerSlots(
            worker,
            queues or ("q",),
            lease_ms=LEASE_MS,
            deliver=inbox.append,
            stop=lambda task, revoked: self.stopped.append((task.id, revoked)),
            most=most,
        )
        self.slots.add(worker_slots, slots)
        return worker_slots

    def cool(self) -> None:
        """Look once, find nothing."""
        self.slots.give_back(self.slots.ask_pending(), ())
        self.wakes = 0


def queues_of(ask: Ask) -> set[str]:
    return {want.queue for want in ask.wants}


def test_a_bounded_queue_gives_no_more_than_its_bound() -> None:
    counted = CountedSlots()
    counted.add("w", slots=8)
    counted.slots.bound("q", 2)
    (ask,) = counted.slots.ask_pending()
    assert (ask.limit, queues_of(ask)) == (2, {"q"})
    found = [claimed("w"), claimed("w")]
    counted.slots.give_back([ask], found)
    assert counted.slots.ask_pending() == [], "two are in hand"
    assert counted.slots.borrow({"q": 5}) == []
    counted.slots.put_down(found[0].id, 1)
    counted.slots.notify(["q"])
    assert [(ask.limit, queues_of(ask)) for ask in counted.slots.ask_pending()] == [(1, {"q"})]


def test_a_bounded_queue_is_asked_for_alone() -> None:
    counted = CountedSlots()
    counted.add("w", "q", "other", slots=8)
    counted.slots.bound("q", 2)
    asks = counted.slots.ask_pending()
    assert sum(ask.limit for ask in asks) == 8
    assert all(queues_of(ask) == {"other"} or ask.limit <= 2 for ask in asks)


def test_a_worker_takes_no_more_of_a_queue_than_it_lets() -> None:
    counted = CountedSlots()
    worker = counted.add("w", "gpu", "mail", slots=4, most={"gpu": 1})
    asks = counted.slots.ask_pending()
    assert sorted((ask.limit, *queues_of(ask)) for ask in asks) == [(1, "gpu"), (3, "mail")]
    held = claimed("w", "gpu")
    counted.slots.give_back(asks, [held])
    counted.slots.notify(["gpu", "mail"])
    asks = counted.slots.ask_pending()
    assert [(ask.limit, queues_of(ask)) for ask in asks] == [(3, {"mail"})]
    assert not counted.slots.idle("gpu")
    counted.slots.give_back(asks, [])
    assert counted.slots.borrow({"gpu": 2}) == []
    counted.wakes = 0
    counted.slots.put_down(held.id, held.fence)
    counted.slots.free(worker)
    assert counted.wakes > 0, "there was more to look for"
    assert [(ask.limit, queues_of(ask)) for ask in counted.slots.ask_pending()] == [(1, {"gpu"})]


def test_what_one_worker_may_not_take_another_is_asked_for() -> None:
    counted = CountedSlots()
    counted.add("busy", "gpu", slots=4, most={"gpu": 1})
    counted.slots.give_back(counted.slots.ask_pending(), [claimed("busy", "gpu")])
    counted.add("free", "gpu", slots=2)
    assert [(ask.worker, ask.limit) for ask in counted.slots.ask_pending()] == [("free", 2)]


def test_a_bound_that_grows_goes_claiming() -> None:
    counted = CountedSlots()
    counted.add("w", slots=4)
    counted.slots.bound("q", 0)
    assert counted.slots.ask_pending() == []
    counted.wakes = 0
    counted.slots.bound("q", 1)
    assert counted.wakes > 0
    assert [ask.limit for ask in counted.slots.ask_pending()] == [1]
    counted.slots.bound("q", None)
    assert [ask.limit for ask in counted.slots.ask_pending()] == [3]


def test_what_was_asked_for_before_the_bound_is_handed_back() -> None:
    counted = CountedSlots()
    worker_slots = counted.add("w", slots=2)
    asks = counted.slots.ask_pending()
    counted.slots.bound("q", 0)
    late = claimed("w")
    assert counted.slots.give_back(asks, [late]) == [late]
    assert counted.delivered["w"] == []
    assert worker_slots.free == 2


def test_a_worker_who_sits_down_is_asked_for_at_once() -> None:
    counted = CountedSlots()
    counted.add("w", "a", "b", slots=3)
    assert counted.wakes
    (ask,) = counted.slots.ask_pending()
    assert (ask.worker, ask.limit, queues_of(ask)) == ("w", 3, {"a", "b"})
    assert ask.lease_ms == LEASE_MS


def test_an_idle_process_asks_the_ledger_for_nothing() -> None:
    counted = CountedSlots()
    worker_slots = counted.add("w", slots=2)
    counted.cool()
    assert counted.slots.ask_pending() == []
    assert (counted.wakes, worker_slots.free) == (0, 2)


def test_a_bell_makes_only_its_queue_hot() -> None:
    counted = CountedSlots()
    counted.add("w", "a", "b")
    counted.cool()
    counted.slots.notify(["b", "elsewhere"])
    assert counted.wakes == 1
    (ask,) = counted.slots.ask_pending()
    assert queues_of(ask) == {"b"}


def test_a_bell_without_a_free_slot_is_remembered() -> None:
    counted = CountedSlots()
    worker_slots = counted.add("w")
    asks = counted.slots.ask_pending()
    counted.slots.give_back(asks, [claimed("w")])
    counted.cool()
    counted.slots.notify(["q"])
    assert counted.wakes == 0
    counted.slots.free(worker_slots)
    assert counted.wakes == 1
    assert len(counted.slots.ask_pending()) == 1


def test_a_queue_that_gave_all_it_was_asked_for_is_asked_again() -> None:
    counted = CountedSlots()
    worker_slots = counted.add("w")
    counted.slots.give_back(counted.slots.ask_pending(), [claimed("w")])
    counted.wakes = 0
    counted.slots.free(worker_slots)
    assert counted.wakes
    assert len(counted.slots.ask_pending()) == 1


def test_looking_again_asks_for_everything_that_has_a_free_slot() -> None:
    counted = CountedSlots()
    counted.add("w", "a", "b")
    counted.cool()
    counted.slots.notify_all()
    assert set().union(*map(queues_of, counted.slots.ask_pending())) == {"a", "b"}


def test_workers_take_turns() -> None:
    counted = CountedSlots()
    for name in "abc":
        counted.add(name, slots=2)
    counted.cool()
    order = [counted.slots.borrow({"q": 1})[0].worker for _ in range(6)]
    assert order == ["a", "b", "c", "a", "b", "c"]
    assert counted.slots.borrow({"q": 1}) == []


def test_new_work_is_lent_as_many_slots_as_it_needs() -> None:
    counted = CountedSlots()
    counted.add("a", slots=2)
    counted.add("b", slots=2)
    asks = counted.slots.borrow({"q": 3, "nobody serves": 5})
    assert Counter({ask.worker: ask.limit for ask in asks}) == {"a": 2, "b": 1}
    assert all(queues_of(ask) == {"q"} for ask in asks)


def test_one_claim_asks_for_a_bounded_number() -> None:
    counted = CountedSlots()
    for n in range(4):
        counted.add(f"w{n}", slots=100)
    assert sum(ask.limit for ask in counted.slots.ask_pending()) == USUAL_CLAIM


def test_a_claim_asks_for_as_many_as_are_held_up_to_a_bound() -> None:
    counted = CountedSlots()
    worker = counted.add("w", slots=2 * LARGEST_CLAIM)
    for held in (0, USUAL_CLAIM + 5, LARGEST_CLAIM + 5):
        while counted.slots.busy() < held:
            counted.slots.keep(worker, claimed("w"))
        asks = counted.slots.ask_pending()
        assert sum(ask.limit for ask in asks) == min(max(USUAL_CLAIM, held), LARGEST_CLAIM)
        counted.slots.give_back(asks, [])
        counted.slots.notify(["q"])


def test_what_was_found_is_delivered_and_held() -> None:
    counted = CountedSlots()
    counted.add("w", slots=2)
    task = claimed("w")
    assert counted.slots.give_back(counted.slots.ask_pending(), [task]) == []
    assert counted.delivered["w"] == [task]
    assert counted.slots.busy() == 1
    (hold,) = renewals_of(counted.slots.held(), NOW)
    assert (hold.task, hold.fence, hold.until) == (task.id, 1, NOW + LEASE_MS)
    counted.slots.put_down(task.id, task.fence)
    counted.slots.put_down(task.id, task.fence)
    assert renewals_of(counted.slots.held(), NOW) == []


def test_work_for_a_worker_who_has_left_comes_back() -> None:
    counted = CountedSlots()
    worker_slots = counted.add("w")
    asks = counted.slots.ask_pending()
    counted.slots.remove(worker_slots)
    task = claimed("w")
    assert counted.slots.give_back(asks, [task]) == [task]
    assert counted.slots.busy() == 0
    assert not counted.slots.served("q")
    counted.slots.free(worker_slots)
    assert counted.slots.borrow({"q": 1}) == [], "a worker_slots that is gone has no slots"


def test_who_replaces_a_worker_inherits_neither_its_slots_nor_its_work() -> None:
    """A second connection with a live worker id comes while the first one's claim is under way."""
    counted = CountedSlots()
    first = counted.add("w")
    asks = counted.slots.ask_pending()
    counted.slots.remove(first)
    second = counted.add("w")
    assert counted.slots.give_back(asks, ()) == []
    assert second.free == 1
    asks = counted.slots.ask_pending()
    counted.slots.remove(second)
    third = counted.add("w")
    task = claimed("w")
    assert counted.slots.give_back(asks, [task]) == [task]
    assert third.free == 1


def test_a_late_goodbye_of_a_replaced_worker_leaves_the_new_one_seated() -> None:
    counted = CountedSlots()
    first = counted.add("w")
    second = counted.add("w")
    counted.slots.remove(first)
    assert counted.slots.served("q")
    assert [ask.limit for ask in counted.slots.borrow({"q": 5})] == [1]
    assert second.free == 0


def test_a_worker_may_come_to_serve_other_queues() -> None:
    counted = CountedSlots()
    worker_slots = counted.add("w", "a")
    counted.cool()
    counted.slots.rearrange(worker_slots, ["b", "b", "c"])
    assert counted.wakes == 1
    assert not counted.slots.served("a")
    assert counted.slots.borrow({"a": 1}) == []
    (ask,) = counted.slots.ask_pending()
    assert queues_of(ask) == {"b", "c"}


def test_stopping_reaches_the_holder_of_this_very_claim() -> None:
    counted = CountedSlots()
    counted.add("w", slots=2)
    task = claimed("w", fence=2)
    counted.slots.give_back(counted.slots.ask_pending(), [task])
    counted.slots.stop(task.id, 1, revoked=True)
    assert counted.stopped == []
    counted.slots.stop(task.id, 2, revoked=False)
    assert counted.slots.busy() == 1, "asked to stop, still ours"
    counted.slots.stop(task.id, 2, revoked=True)
    counted.slots.stop(task.id, 2, revoked=True)
    assert counted.stopped == [(task.id, False), (task.id, True)]
    assert counted.slots.busy() == 0


class SlotsAddUp(RuleBasedStateMachine):
    """Free, lent and busy slots of everybody seated always add up to what they sat down with."""

    def __init__(self) -> None:
        super().__init__()
        self.counted = CountedSlots()
        self.by_worker: list[tuple[WorkerSlots, int]] = []
        self.lent: list[tuple[Sequence[Ask], dict[str, WorkerSlots]]] = []
        self.busy: Counter[WorkerSlots] = Counter()

    def keep(self, asks: Sequence[Ask]) -> None:
        self.lent.append(
            (asks, {worker_slots.worker: worker_slots for worker_slots, _ in self.by_worker})
        )

    @rule(worker=st.sampled_from("abc"), queues=st.sets(st.sampled_from("xyz"), min_size=1))
    def sit(self, worker: str, queues: set[str]) -> None:
        for worker_slots, _ in [pair for pair in self.by_worker if pair[0].worker == worker]:
            self.counted.slots.remove(worker_slots)
        self.by_worker = [pair for pair in self.by_worker if pair[0].worker != worker]
        slots = len(queues) + 1
        self.by_worker.append((self.counted.add(worker, *sorted(queues), slots=slots), slots))

    @precondition(lambda self: self.by_worker)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        pair = data.draw(st.sampled_from(self.by_worker))
        self.by_worker.remove(pair)
        self.counted.slots.remove(pair[0])

    @rule(needs=st.dictionaries(st.sampled_from("xyz"), st.integers(1, 6)))
    def borrow(self, needs: dict[str, int]) -> None:
        asks = self.counted.slots.borrow(needs)
        for queue, need in needs.items():
            assert sum(ask.limit for ask in asks if queues_of(ask) == {queue}) <= need
        self.keep(asks)

    @rule(rung=st.sets(st.sampled_from("xyz")))
    def ask_pending(self, rung: set[str]) -> None:
        self.counted.slots.notify(rung)
        self.keep(self.counted.slots.ask_pending())

    @precondition(lambda self: self.lent)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        asks, then = self.lent.pop(data.draw(st.integers(0, len(self.lent) - 1)))
        found = [
            claimed(ask.worker) for ask in asks for _ in range(data.draw(st.integers(0, ask.limit)))
        ]
        homeless = self.counted.slots.give_back(asks, found)
        here = {id(worker_slots) for worker_slots, _ in self.by_worker}
        gone = [task for task in found if id(then[task.worker]) not in here]
        assert homeless == gone
        self.busy.update(then[task.worker] for task in found if task not in gone)

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        busy = [worker_slots for worker_slots in self.busy if self.busy[worker_slots]]
        if busy:
            worker_slots = data.draw(st.sampled_from(busy))
            self.busy[worker_slots] -= 1
            self.counted.slots.free(worker_slots)

    @invariant()
    def nothing_is_lost_or_invented(self) -> None:
        lent: Counter[WorkerSlots] = Counter()
        for asks, then in self.lent:
            for ask in asks:
                lent[then[ask.worker]] += ask.limit
        for worker_slots, slots in self.by_worker:
            assert worker_slots.free >= 0
            assert worker_slots.free + lent[worker_slots] + self.busy[worker_slots] == slots


SlotsAddUp.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestSlotsAddUp = SlotsAddUp.TestCase


@given(slots=st.lists(st.integers(1, 5), min_size=1, max_size=6), need=st.integers(1, 40))
def test_lending_never_exceeds_what_is_free(slots: list[int], need: int) -> None:
    counted = CountedSlots()
    for n, count in enumerate(slots):
        counted.add(f"w{n}", slots=count)
    assert sum(ask.limit for ask in counted.slots.borrow({"q": need})) == min(need, sum(slots))
