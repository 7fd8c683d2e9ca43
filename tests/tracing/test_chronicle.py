"""Who tells of what has happened: one server at a time, everything once, from where it stopped."""

from __future__ import annotations

from functools import partial

import pytest

from onward.core.clock import ManualClock
from onward.core.contract import Backend
from onward.core.dispatch import Dispatcher
from onward.core.duty import LEASE_MS, Duty
from onward.core.outcome import Failed, Outcome, Succeeded
from onward.core.slots import WorkerSlots
from onward.core.task import Claimed, Task, new_id
from onward.core.trace import RUN, placed
from onward.faults import Fault
from onward.tracing.chronicle import Chronicle
from onward.tracing.stages import Stage
from tests.support import PROFILES, a_task, wait_until

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def dispatcher(backend: Backend, clock: ManualClock) -> Dispatcher:
    return Dispatcher(backend, PROFILES, clock)


class Teller:
    """A server's chronicle, and what it wrote."""

    def __init__(self, backend: Backend, clock: ManualClock, server: str | None = None) -> None:
        self.told: list[tuple[str, int, str | None]] = []
        duty = None if server is None else Duty(backend.documents, clock, "traces", server)
        self.chronicle = Chronicle(backend, clock, self._write, duty)

    def _write(self, task: Task, traceparent: str, stage: Stage) -> None:
        if stage.kind == RUN:
            self.told.append((task.id, stage.attempt, stage.outcome))


async def attempts(dispatcher: Dispatcher, task: Task, *outcomes: Outcome) -> str:
    """Submitted, and run as often as there are outcomes."""
    taken: list[Claimed] = []
    worker_slots = WorkerSlots(
        "w", [task.queue], lease_ms=1_000, deliver=taken.append, stop=lambda *_: None
    )
    await dispatcher.submit(task)
    dispatcher.slots.add(worker_slots, 1)
    for at, outcome in enumerate(outcomes):
        await wait_until(partial(_has_more, taken, at))
        await dispatcher.settle(taken[at], outcome)
        dispatcher.slots.free(worker_slots)
    dispatcher.slots.remove(worker_slots)
    return task.id


def _has_more(taken: list[Claimed], than: int) -> bool:
    return len(taken) > than


def traced(**fields: object) -> Task:
    id = new_id()
    return placed(a_task(id=id, queue=id, **fields), TRACEPARENT)


async def test_what_was_before_the_first_look_is_not_told(
    backend: Backend, dispatcher: Dispatcher, clock: ManualClock
) -> None:
    await attempts(dispatcher, traced(), Succeeded("1"))
    teller = Teller(backend, clock)
    await teller.chronicle.step()
    after = await attempts(dispatcher, traced(), Succeeded("1"))
    await teller.chronicle.step()
    assert teller.told == [(after, 1, "succeeded")]


async def test_only_what_is_part_of_a_sampled_trace_is_told(
    backend: Backend, dispatcher: Dispatcher, clock: ManualClock
) -> None:
    teller = Teller(backend, clock)
    await teller.chronicle.step()
    await attempts(dispatcher, a_task(), Succeeded("1"))
    await attempts(dispatcher, placed(a_task(queue="other"), TRACEPARENT[:-1] + "0"), Succeeded(""))
    await teller.chronicle.step()
    assert teller.told == []


@pytest.mark.contract("N-9")
async def test_a_server_that_comes_after_another_goes_on_where_it_stopped(
    backend: Backend, dispatcher: Dispatcher, clock: ManualClock
) -> None:
    before = Teller(backend, clock)
    await before.chronicle.step()
    first = await attempts(dispatcher, traced(), Succeeded("1"))
    await before.chronicle.step()
    second = await attempts(dispatcher, traced(), Succeeded("1"))
    after = Teller(backend, clock)  # the first was killed
    await after.chronicle.step()
    assert before.told == [(first, 1, "succeeded")]
    assert after.told == [(second, 1, "succeeded")]


@pytest.mark.contract("N-9")
async def test_of_two_servers_one_tells_and_the_other_when_that_is_gone(
    backend: Backend, dispatcher: Dispatcher, clock: ManualClock
) -> None:
    a, b = Teller(backend, clock, "a"), Teller(backend, clock, "b")
    await a.chronicle.step()
    await b.chronicle.step()
    first = await attempts(dispatcher, traced(), Succeeded("1"))
    for teller in (a, b, a, b):
        await teller.chronicle.step()
    assert (a.told, b.told) == ([(first, 1, "succeeded")], [])
    clock.advance(LEASE_MS + 1)
    second = await attempts(dispatcher, traced(), Succeeded("1"))
    await b.chronicle.step()
    await a.chronicle.step()
    assert (a.told[1:], b.told) == ([], [(second, 1, "succeeded")])


async def test_an_attempt_that_began_long_before_is_found_in_the_log(
    backend: Backend, dispatcher: Dispatcher, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.tracing.chronicle.BATCH", 1)  # each event comes alone
    teller = Teller(backend, clock)
    await teller.chronicle.step()
    failed = Failed(Fault(kind="K", message="m", retryable=True))
    task = traced(overrides='{"max_retries":1,"backoff_ms":[0]}')
    id = await attempts(dispatcher, task, failed, failed)
    await teller.chronicle.step()
    assert teller.told == [(id, 1, "retrying"), (id, 2, "dead")]


@pytest.mark.parametrize("batch", [1, 2, 3, 4])
async def test_a_death_is_told_of_wherever_the_log_is_cut(
    backend: Backend,
    dispatcher: Dispatcher,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    batch: int,
) -> None:
    monkeypatch.setattr("onward.tracing.chronicle.BATCH", batch)
    teller = Teller(backend, clock)
    await teller.chronicle.step()
    fault = Fault(kind="K", message="m", retryable=False)
    id = await attempts(dispatcher, traced(), Failed(fault))
    await teller.chronicle.step()
    assert teller.told == [(id, 1, "dead")]


async def test_the_ledger_waits_for_no_trace(backend: Backend, clock: ManualClock) -> None:
    """What is kept for readers is kept for those of the kind `cursor`."""
    await Teller(backend, clock).chronicle.step()
    assert not await backend.documents.list("cursor", now=clock.now())
    clock.advance(25 * 3_600_000)
    assert not await backend.documents.list("trace", now=clock.now()), "nor is it kept for ever"
