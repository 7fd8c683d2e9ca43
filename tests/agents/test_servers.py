"""Two servers on one ledger: whichever a session speaks to, it is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from onward.core import duty
from tests.agents.sessions import Sessions
from tests.running_app import running_app
from tests.servers import fresh_url, shared
from tests.support import wait_until


@pytest.fixture
async def pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Sessions, Sessions]]:
    # Redis forgets by its own clock, and the one by which servers renew it stands still here.
    monkeypatch.setattr(duty, "LEASE_MS", 600_000)
    url = fresh_url("valkey")
    async with AsyncExitStack() as stack:
        lobbies = [
            Sessions(
                await stack.enter_async_context(
                    running_app(ledger=url, archive=f"sqlite:///{tmp_path}/archive.db")
                )
            )
            for _ in range(2)
        ]
        yield lobbies[0], lobbies[1]


@pytest.mark.contract("S2-6")
async def test_a_session_is_pushed_to_wherever_it_is_connected(
    pair: tuple[Sessions, Sessions],
) -> None:
    listeners = [sessions.listen() for sessions in pair]
    for sessions in pair:
        hub = sessions.app.onward.hub
        await wait_until(lambda hub=hub: hub._subscriptions)  # type: ignore[misc]
    tasks = [await sessions.succeed() for sessions in pair]
    for listener in listeners:
        told = [(await listener.receive())["task_id"] for _ in tasks]
        assert sorted(told) == sorted(tasks)
    for listener in listeners:
        assert listener.pending() == 0
        await listener.close()
    assert all(not sessions.app.onward.hub._subscriptions for sessions in pair)


async def test_only_one_server_writes_and_the_other_takes_over(
    pair: tuple[Sessions, Sessions],
) -> None:
    one, two = pair
    await one.succeed()
    await one.told(1)
    await two.told(1)
    name = "onward_notifications_total"
    wrote = [await sessions.metric(name, type="task_completed") for sessions in pair]
    assert sorted(wrote) == [0, 1]
    first = pair[wrote.index(1)]
    second = pair[wrote.index(0)]
    assert not await second.app.onward._notifying.step()  # it does not even read
    for work in first.app.onward._background.tasks:
        work.cancel()
    await first.app.onward._notifying.close()
    await second.succeed()
    await second.told(2)
    assert await second.metric(name, type="task_completed") == 1


@pytest.mark.contract("S2-10")
async def test_a_task_is_counted_by_one_server_only(pair: tuple[Sessions, Sessions]) -> None:
    await pair[0].succeed()
    await pair[1].submit()
    name = "onward_agent_tasks_total"

    async def counted() -> bool:
        return sum([await sessions.metric(name, event="created") for sessions in pair]) == 2

    await wait_until(counted)
    said = [(await sessions.app.get("/metrics")).text for sessions in pair]
    assert sum("onward_agent_tasks_active 1.0" in text for text in said) == 1
    assert sum("onward_agent_tasks_active" in text for text in said) == 1


async def test_sessions_without_readers_leave_nothing_behind(
    pair: tuple[Sessions, Sessions],
) -> None:
    await pair[0].succeed()
    await pair[0].told(1)
    client = shared("valkey").client
    kinds = [key for key in client.keys("onward:doc:*") if b"notice" in key]
    assert len(kinds) == 2
    assert all(client.pttl(key) > 0 for key in kinds)
