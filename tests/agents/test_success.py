"""A thousand tasks open at once: taken, completed, told, and every figure there to read (S2-12).

How fast that goes is measured by `python -m bench agents`; here nothing is timed.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.agents.sessions import TYPE, Sessions
from tests.agents.test_figures import DELAY, DURATION, TASKS, noticed
from tests.running_app import SocketWorker
from tests.support import wait_until

SESSIONS, EACH = 50, 20
TOTAL = SESSIONS * EACH


async def hear(listener: SocketWorker, count: int) -> set[str]:
    return {(await listener.receive(timeout=60))["task_id"] for _ in range(count)}


@pytest.mark.contract("S2-12")
async def test_a_thousand_tasks_at_once_are_all_completed_and_all_told(sessions: Sessions) -> None:
    names = [f"s{number}" for number in range(SESSIONS)]
    connected = names[::2]
    listeners = {session: sessions.listen(session) for session in connected}
    hub = sessions.app.onward.hub
    await wait_until(lambda: len(hub._subscriptions) == len(connected), timeout=60)
    worker = await sessions.app.worker(group=None, services=[TYPE], concurrency=TOTAL)
    owned: dict[str, set[str]] = {}
    for session in names:
        owned[session] = set(await asyncio.gather(*[sessions.submit(session) for _ in range(EACH)]))
    running = {(await worker.receive(timeout=60))["taskId"] for _ in range(TOTAL)}
    assert running == set().union(*owned.values())
    found = await noticed(sessions)
    assert found["onward_agent_tasks_active"] == found["onward_held"] == TOTAL
    assert found["onward_agent_sessions_active"] == SESSIONS
    # The agent is answered while all of them run.
    extra = await sessions.submit("s0")
    owned["s0"].add(extra)

    for task in running:
        await worker.answer(task, {"pages": 3})
    assert (await worker.receive(timeout=60))["taskId"] == extra
    await worker.answer(extra, {"pages": 1})
    heard = await asyncio.gather(
        *[hear(listeners[session], len(owned[session])) for session in connected]
    )
    assert heard == [owned[session] for session in connected]
    for session in names[1::2]:

        async def told(session: str = session) -> bool:
            return {one["task_id"] for one in await sessions.notices(session)} == owned[session]

        await wait_until(told, timeout=60)
    all_, pushed = TOTAL + 1, sum(len(owned[session]) for session in connected)

    async def reached() -> bool:
        return await sessions.metric("onward_notifications_reached_total") == all_

    await wait_until(reached, timeout=60)
    for listener in listeners.values():
        await listener.close()
    found = await noticed(sessions)
    # 99.9 % completion, and the time each took.
    assert found[f'{TASKS}{{event="created"}}'] == found[f'{TASKS}{{event="completed"}}'] == all_
    assert found[f'{TASKS}{{event="failed"}}'] == 0
    assert found[f'{DURATION}_count{{status="completed"}}'] == all_
    assert found["onward_agent_tasks_active"] == 0
    # 95 % of the notices within 5 s.
    assert found['onward_notifications_total{type="task_completed"}'] == all_
    assert found[f'{DELAY}_count{{until="written"}}'] == all_
    assert found[f'{DELAY}_count{{until="websocket"}}'] == pushed
    assert found[f'{DELAY}_bucket{{le="5.0",until="websocket"}}'] == pushed
    assert found[f'{DELAY}_count{{until="reached"}}'] == all_
