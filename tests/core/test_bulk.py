"""Many at once through the Dispatcher: decided together, re-decided one by one where refused."""

from __future__ import annotations

import pytest

from onward.core.approval import Decision
from onward.core.dispatch import CHUNK
from onward.core.errors import Conflict, NotFound
from onward.core.task import State
from tests.core.dispatcher import BAD, Observed, before_applying, dispatcher
from tests.support import a_task

__all__ = ["dispatcher"]


async def dead(dispatcher: Observed) -> str:
    held = await dispatcher.running()
    await dispatcher.settle(held, BAD)
    return held.id


async def die_again(dispatcher: Observed, id: str) -> None:
    worker_slots = dispatcher.add_worker(worker="again")
    await dispatcher.idle()
    await dispatcher.settle(dispatcher.inbox[-1], BAD)
    dispatcher.slots.remove(worker_slots)
    assert (await dispatcher.task(id)).state is State.DEAD


@pytest.mark.contract("S1-10", "N-5")
async def test_of_two_who_replay_one_death_the_second_is_refused_though_it_died_again(
    dispatcher: Observed,
) -> None:
    for replay in (dispatcher.replay_all, dispatcher.replay):
        id = await dead(dispatcher)

        async def somebody_else(id: str = id) -> None:
            await Observed.replay(dispatcher, id)
            await die_again(dispatcher, id)

        before_applying(dispatcher, somebody_else)
        if replay == dispatcher.replay_all:
            assert await dispatcher.replay_all({id: 0}) == {id: "it has been replayed meanwhile"}
        else:
            with pytest.raises(Conflict):
                await dispatcher.replay(id)
        assert (await dispatcher.task(id)).generation == 2


@pytest.mark.contract("N-5")
async def test_what_changed_meanwhile_is_decided_again_and_the_rest_stands(
    dispatcher: Observed,
) -> None:
    ids = [await dead(dispatcher) for _ in range(3)]

    async def remark() -> None:
        await dispatcher.abandon(ids[1])

    before_applying(dispatcher, remark)
    refused = await dispatcher.replay_all(dict.fromkeys(ids, 0))
    assert refused == {ids[1]: "a task that is failed is no dead letter"}
    assert [(await dispatcher.task(id)).generation for id in ids] == [2, 1, 2]


@pytest.mark.contract("N-5")
async def test_more_than_a_chunk_keeps_its_pace(dispatcher: Observed) -> None:
    tasks = [a_task(state=State.QUEUED) for _ in range(CHUNK + 5)]
    await dispatcher.submit_all(tasks)
    dispatcher.add_worker(len(tasks))
    await dispatcher.idle()
    while len(dispatcher.inbox) < len(tasks):
        await dispatcher.idle()
    for held in dispatcher.inbox:
        await dispatcher.settle(held, BAD)
    ids = [task.id for task in tasks]
    now = dispatcher.clock.now()
    starts = {id: now + 10 * turn for turn, id in enumerate(["nobody", *ids])}
    assert await dispatcher.replay_all(starts) == {"nobody": "no such task"}
    found = [await dispatcher.task(id) for id in ids]
    assert [task.run_at for task in found] == [now + 10 * turn for turn in range(1, len(ids) + 1)]
    assert {task.state for task in found} == {State.SCHEDULED}
    assert await dispatcher.abandon_all(ids[:1]) == {
        ids[0]: "a task that is scheduled is no dead letter"
    }


@pytest.mark.contract("S1-11", "N-5")
async def test_a_word_is_about_what_its_speaker_has_seen(dispatcher: Observed) -> None:
    task = a_task(waiting_for="approval")
    await dispatcher.submit(task)
    with pytest.raises(Conflict):
        await dispatcher.approve(task.id, Decision(generation=2))
    with pytest.raises(Conflict):
        await dispatcher.approve(task.id, Decision(digest="another"))
    before_applying(dispatcher, lambda: dispatcher.reject(task.id, Decision(by="ada")))
    with pytest.raises(Conflict, match="already rejected by ada"):
        await dispatcher.approve(task.id, Decision(by="bob"))
    assert (await dispatcher.task(task.id)).state is State.FAILED
    plain = a_task()
    await dispatcher.submit(plain)
    with pytest.raises(NotFound):
        await dispatcher.reject(plain.id, Decision())


async def test_a_signal_to_a_task_that_waits_for_approval_does_not_wake_it(
    dispatcher: Observed,
) -> None:
    task = a_task(waiting_for="approval")
    await dispatcher.submit(task)
    dispatcher.add_worker()
    await dispatcher.signal(task.id, "approved", "true")
    await dispatcher.idle()
    assert dispatcher.inbox == []
