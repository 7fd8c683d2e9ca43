"""Many at once through the Dispatcher: decided together, re-decided one by one where refused."""

from __future__ import annotations

import pytest

from onward.core.approval import Word
from onward.core.dispatch import CHUNK
from onward.core.errors import Conflict, NotFound
from onward.core.task import State
from tests.core.desk import BAD, Desk, before_applying, desk
from tests.support import a_task

__all__ = ["desk"]


async def dead(desk: Desk) -> str:
    held = await desk.running()
    await desk.settle(held, BAD)
    return held.id


async def die_again(desk: Desk, id: str) -> None:
    seat = desk.sit(worker="again")
    await desk.idle()
    await desk.settle(desk.inbox[-1], BAD)
    desk.slots.remove(seat)
    assert (await desk.task(id)).state is State.DEAD


@pytest.mark.contract("S1-10", "N-5")
async def test_of_two_who_replay_one_death_the_second_is_refused_though_it_died_again(
    desk: Desk,
) -> None:
    for replay in (desk.replay_all, desk.replay):
        id = await dead(desk)

        async def somebody_else(id: str = id) -> None:
            await Desk.replay(desk, id)
            await die_again(desk, id)

        before_applying(desk, somebody_else)
        if replay == desk.replay_all:
            assert await desk.replay_all({id: 0}) == {id: "it has been replayed meanwhile"}
        else:
            with pytest.raises(Conflict):
                await desk.replay(id)
        assert (await desk.task(id)).generation == 2


@pytest.mark.contract("N-5")
async def test_what_changed_meanwhile_is_decided_again_and_the_rest_stands(desk: Desk) -> None:
    ids = [await dead(desk) for _ in range(3)]

    async def remark() -> None:
        await desk.abandon(ids[1])

    before_applying(desk, remark)
    refused = await desk.replay_all(dict.fromkeys(ids, 0))
    assert refused == {ids[1]: "a task that is failed is no dead letter"}
    assert [(await desk.task(id)).generation for id in ids] == [2, 1, 2]


@pytest.mark.contract("N-5")
async def test_more_than_a_chunk_keeps_its_pace(desk: Desk) -> None:
    tasks = [a_task(state=State.QUEUED) for _ in range(CHUNK + 5)]
    await desk.submit_all(tasks)
    desk.sit(len(tasks))
    await desk.idle()
    while len(desk.inbox) < len(tasks):
        await desk.idle()
    for held in desk.inbox:
        await desk.settle(held, BAD)
    ids = [task.id for task in tasks]
    now = desk.clock.now()
    starts = {id: now + 10 * turn for turn, id in enumerate(["nobody", *ids])}
    assert await desk.replay_all(starts) == {"nobody": "no such task"}
    found = [await desk.task(id) for id in ids]
    assert [task.run_at for task in found] == [now + 10 * turn for turn in range(1, len(ids) + 1)]
    assert {task.state for task in found} == {State.SCHEDULED}
    assert await desk.abandon_all(ids[:1]) == {ids[0]: "a task that is scheduled is no dead letter"}


@pytest.mark.contract("S1-11", "N-5")
async def test_a_word_is_about_what_its_speaker_has_seen(desk: Desk) -> None:
    task = a_task(waiting_for="approval")
    await desk.submit(task)
    with pytest.raises(Conflict):
        await desk.approve(task.id, Word(generation=2))
    with pytest.raises(Conflict):
        await desk.approve(task.id, Word(digest="another"))
    before_applying(desk, lambda: desk.reject(task.id, Word(by="ada")))
    with pytest.raises(Conflict, match="rejected already by ada"):
        await desk.approve(task.id, Word(by="bob"))
    assert (await desk.task(task.id)).state is State.FAILED
    plain = a_task()
    await desk.submit(plain)
    with pytest.raises(NotFound):
        await desk.reject(plain.id, Word())


async def test_a_signal_to_a_task_that_waits_for_approval_wakes_nobody(desk: Desk) -> None:
    task = a_task(waiting_for="approval")
    await desk.submit(task)
    desk.sit()
    await desk.signal(task.id, "approved", "true")
    await desk.idle()
    assert desk.inbox == []
