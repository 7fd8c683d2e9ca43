"""One bad item never costs its neighbours anything: over every ledger, in every kind of batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onward.core.clock import ManualClock
from onward.core.contract import Backend, LeaseRenewal, LeaseStatus, Verdict
from onward.core.dispatch import Dispatcher
from onward.core.outcome import Failed, Outcome, Parked, Succeeded
from onward.core.slots import WorkerSlots
from onward.core.task import Claimed, State, Task, fault_of, new_id
from onward.faults import Fault
from tests.support import LEASE_MS, NOW, PROFILES, a_task, wait_until

LONE = "\ud800"  # half of a pair: no text that a ledger could keep


class Post(Dispatcher):
    """A Dispatcher with a worker who keeps what is delivered."""

    def __init__(self, backend: Backend) -> None:
        self.clock: ManualClock
        super().__init__(backend, PROFILES, ManualClock())
        self.inbox: list[Claimed] = []

    async def held(self, count: int, **fields: Any) -> list[Claimed]:
        """So many tasks in the worker's hands; only these are in the inbox."""
        self.inbox.clear()
        worker = new_id()
        seat = WorkerSlots(
            worker,
            [worker],
            lease_ms=LEASE_MS,
            deliver=self.inbox.append,
            stop=lambda task, revoked: None,
        )
        self.slots.add(seat, count)
        await self.submit_all([a_task(queue=worker, **fields) for _ in range(count)])
        await wait_until(lambda: len(self.inbox) == count)
        self.slots.remove(seat)
        return list(self.inbox)

    async def task(self, id: str) -> Task:
        (task,) = await self.backend.tasks.get([id])
        assert task is not None
        return task


@pytest.fixture
async def post(backend: Backend) -> AsyncIterator[Post]:
    dispatcher = Post(backend)
    yield dispatcher
    await dispatcher.finish(10_000)


def failing(**fault: Any) -> Outcome:
    return Failed(Fault(**{"kind": "Error", "message": "no", **fault}))


def parking(**more: Any) -> Outcome:
    return Parked(**{"seen": 0, "journal": "{}", "waiting_for": "children", **more})


# What an executor in this process can come back with, and no ledger can keep as it is.
OUTCOMES: dict[str, Outcome] = {
    "a wait in words": failing(retry_after_ms="30000"),
    "half a millisecond": failing(retry_after_ms=1500.5),
    "a wait beyond all numbers": failing(retry_after_ms=10**30),
    "a status in words": failing(status="503"),
    "details that are no JSON": failing(details=object()),
    "a message with half a character": failing(message=LONE),
    "a kind with half a character": failing(kind=LONE),
    "a message that is no text": failing(message=7),
    "a result with half a character": Succeeded(f'"{LONE}"'),
    "a result that is no text": Succeeded({"a": 1}),  # type: ignore[arg-type]
    "a note with half a character": Succeeded("1", notes=(("node.finished", f'"{LONE}"'),)),
    "a journal with half a character": parking(journal=f'"{LONE}"'),
    "a child with half a character": parking(spawn=[a_task(payload=f'"{LONE}"')]),
    "a child of an unknown profile": parking(spawn=[a_task(profile="unheard of")]),
    "no outcome at all": None,  # type: ignore[dict-item]
}


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
async def test_an_outcome_that_cannot_be_kept_ends_its_own_attempt_and_no_other(
    post: Post, outcome: Outcome
) -> None:
    held = await post.held(8)
    outcomes: list[Outcome] = [Succeeded(str(n)) for n in range(8)]
    outcomes[3] = outcome
    verdicts = await asyncio.gather(
        *(post.settle(task, one) for task, one in zip(held, outcomes, strict=True))
    )
    assert verdicts == [Verdict.APPLIED] * 8
    for n, task in enumerate(held):
        found = await post.task(task.id)
        if n == 3:
            assert found.state in (State.DEAD, State.SCHEDULED), "over, and not left to its lease"
            fault = fault_of(found.error)
            assert fault is not None
            assert fault.message
        else:
            assert (found.state, found.result) == (State.SUCCEEDED, str(n))


async def test_a_fault_keeps_what_can_be_kept_of_it(post: Post) -> None:
    (held,) = await post.held(1)
    bad = failing(
        kind="Err\0r",
        message=f"no {LONE} here",
        retry_after_ms=90_000.7,
        details=object(),
        status=503,
    )
    assert await post.settle(held, bad) is Verdict.APPLIED
    found = await post.task(held.id)
    fault = fault_of(found.error)
    assert fault is not None
    assert (fault.kind, fault.message, fault.status) == ("Err?r", "no ? here", 503)
    assert (found.state, found.run_at) == (State.SCHEDULED, NOW + 90_000)


async def test_a_submission_that_cannot_be_kept_is_refused_alone(post: Post) -> None:
    tasks = [a_task(payload=f'"{LONE}"' if n == 2 else str(n)) for n in range(6)]
    found = await asyncio.gather(*map(post.submit, tasks), return_exceptions=True)
    assert [n for n, one in enumerate(found) if isinstance(one, BaseException)] == [2]
    kept = await post.backend.tasks.get([task.id for task in tasks])
    assert [task and task.payload for task in kept] == ["0", "1", None, "3", "4", "5"]


async def test_a_note_that_cannot_be_kept_costs_no_other_task_its_lease(post: Post) -> None:
    held = await post.held(6)
    until = NOW + 2 * LEASE_MS
    holds = [
        LeaseRenewal(
            task.id, task.fence, until, notes=(("task.chunk", f'"{LONE}"' if n == 4 else "1"),)
        )
        for n, task in enumerate(held)
    ]
    found = await asyncio.gather(*map(post.extend, holds), return_exceptions=True)
    assert [one for one in found if not isinstance(one, BaseException)] == [LeaseStatus.HELD] * 5
    leases = [(await post.task(task.id)).lease_until for task in held]
    assert [n for n, lease in enumerate(leases) if lease == until] == [0, 1, 2, 3, 5]


async def test_a_letter_that_cannot_be_kept_is_its_senders_alone(post: Post) -> None:
    held = await post.held(3)
    bodies = ["1", f'"{LONE}"', "3"]
    found = await asyncio.gather(
        *(post.signal(task.id, "go", body) for task, body in zip(held, bodies, strict=True)),
        return_exceptions=True,
    )
    assert [isinstance(one, BaseException) for one in found] == [False, True, False]


@pytest.mark.slow
@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data(), count=st.integers(2, 24))
async def test_a_poisoned_item_in_a_batch_leaves_its_neighbours_results(
    post: Post, data: st.DataObject, count: int
) -> None:
    """Submitted, held and settled together, with something bad in each of the three."""
    held = await post.held(count)
    bad = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=count - 1))
    outcome = data.draw(st.sampled_from(list(OUTCOMES.values())))
    until = NOW + 2 * LEASE_MS
    news = [a_task(payload=f'"{LONE}"' if n in bad else f'"{n}"') for n in range(count)]
    submitted = await asyncio.gather(*map(post.submit, news), return_exceptions=True)
    notes = ["1" if n not in bad else f'"{LONE}"' for n in range(count)]
    holds = [
        LeaseRenewal(task.id, task.fence, until, notes=(("task.chunk", note),))
        for task, note in zip(held, notes, strict=True)
    ]
    statuses = await asyncio.gather(*map(post.extend, holds), return_exceptions=True)
    verdicts = await asyncio.gather(
        *(
            post.settle(task, outcome if n in bad else Succeeded(str(n)))
            for n, task in enumerate(held)
        )
    )
    assert verdicts == [Verdict.APPLIED] * count
    good = [n for n in range(count) if n not in bad]
    assert not [submitted[n] for n in good if isinstance(submitted[n], BaseException)]
    assert [statuses[n] for n in good] == [LeaseStatus.HELD] * len(good)
    results = await post.backend.tasks.get([held[n].id for n in good])
    assert [task and task.result for task in results] == [str(n) for n in good]
    there = await post.backend.tasks.get([news[n].id for n in good])
    assert [task and task.payload for task in there] == [f'"{n}"' for n in good]
    for n in bad:
        assert (await post.task(held[n].id)).state is not State.RUNNING
