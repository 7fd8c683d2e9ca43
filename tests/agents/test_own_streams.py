"""A stream for each service: `agent:stream:task.create:{service}` (seed 002, section 10)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.agents.agent_app import CREATE, SERVICE, AgentApp, open_agent_app

pytestmark = [pytest.mark.slow, pytest.mark.contract("S2-3", "S2-9")]

OWN = f"{CREATE}:{SERVICE}"
GROUP = f"{SERVICE}-group"


@pytest.fixture(params=["sqlite", "redis"])
async def agents(request: pytest.FixtureRequest) -> AsyncIterator[AgentApp]:
    async with open_agent_app(request.param) as opened:
        yield opened


async def read_own(agents: AgentApp, worker: str = "1") -> None:
    """The service has its group on its own stream, and a worker has begun to read there."""
    await agents.join(stream=OWN)
    await agents.redis.xgroup_createconsumer(OWN, GROUP, f"{SERVICE}-worker-{worker}")

    async def noticed() -> bool:
        return bool(agents.app.onward._agent_feed._channel.readers(OWN).lively)

    await agents.until(noticed)


async def test_a_service_that_reads_its_own_stream_is_given_its_tasks_there(
    agents: AgentApp,
) -> None:
    await agents.declare(SERVICE, "report.generate")
    await agents.join("other-service")
    await read_own(agents)
    tasks = [
        await agents.submit(type="report.generate", payload={"n": 1}),
        await agents.submit(type="report.generate", payload={"n": 2}, queue="agents"),
    ]
    other = await agents.submit(type="data.analyze", queue="agents")
    for _ in tasks:
        entry, event = await agents.get(stream=OWN)
        task = event["data"]["task_id"]
        await agents.phase(task, "running")
        await agents.finish(entry, task, "done", stream=OWN)
        assert (await agents.over(task))["result"] == "done"
    assert {(await agents.read(task))["state"] for task in tasks} == {"succeeded"}
    entry, event = await agents.get("other-service", types=("data.analyze",))
    assert event["data"]["task_id"] == other
    await agents.finish(entry, other, service="other-service")
    await agents.over(other)
    seen = [event["data"]["task_id"] for event in await agents.on(CREATE)]
    assert not set(seen) & set(tasks), "the common stream never had them"
    await agents.until(lambda: _holds(agents, OWN, 0))


async def _holds(agents: AgentApp, stream: str, entries: int) -> bool:
    return await agents.length(stream) == entries


async def test_who_knows_only_the_common_stream_is_given_its_tasks_there(agents: AgentApp) -> None:
    await agents.declare(SERVICE, "report.generate")
    await agents.join()
    task = await agents.submit(type="report.generate")
    entry, event = await agents.get()
    assert event["data"]["task_id"] == task
    await agents.finish(entry, task)
    await agents.over(task)
    assert not await agents.redis.exists(OWN)


async def test_a_sensitive_service_is_given_its_tasks_on_its_own_stream_only(
    agents: AgentApp,
) -> None:
    await agents.declare(SERVICE, "report.generate", sensitive=["card"])
    await agents.join()
    await agents.join("nosy-service")
    tasks = [await agents.submit(type="report.generate", payload={"card": "4711"})]

    async def waits() -> bool:
        return await agents.length(CREATE) == 0 and await agents.length(OWN) == 0

    await agents.holds(waits, 1.2)
    assert (await agents.read(tasks[0]))["phase"] == "queued"
    tasks.append(await agents.submit(type="report.generate", payload={"card": 1}, queue="agents"))
    await agents.join(stream=OWN)
    for _ in tasks:
        entry, event = await agents.get(stream=OWN)
        assert "card" in event["data"]["params"]
        await agents.finish(entry, event["data"]["task_id"], stream=OWN)
    for task in tasks:
        assert (await agents.over(task))["state"] == "succeeded"
    assert (await agents.redis.xinfo_stream(CREATE))["last-generated-id"] == b"0-0", "never"


async def test_a_service_that_becomes_sensitive_is_taken_off_the_common_stream(
    agents: AgentApp,
) -> None:
    await agents.declare(SERVICE, "report.generate")
    await agents.join()
    task = await agents.submit(type="report.generate")
    await agents.until(lambda: _holds(agents, CREATE, 1))
    await agents.declare(SERVICE, "report.generate", sensitive=["$"])
    await agents.until(lambda: _holds(agents, CREATE, 0))
    await agents.join(stream=OWN)
    entry, event = await agents.get(stream=OWN)
    assert (event["data"]["task_id"], event["data"]["fence"]) == (task, 2)
    await agents.finish(entry, task, stream=OWN)
    assert (await agents.over(task))["failures"] == 0


async def test_a_worker_of_an_own_stream_that_dies_loses_its_task_to_the_next(
    agents: AgentApp,
) -> None:
    await agents.declare(SERVICE, "report.generate")
    await read_own(agents, "dies")
    task = await agents.submit(type="report.generate")
    lost, _ = await agents.get(worker="dies", stream=OWN)
    await agents.phase(task, "running")
    await agents.fall_silent(lost, "dies", stream=OWN)
    entry, event = await agents.get(worker="lives", stream=OWN)
    assert (event["data"]["task_id"], event["data"]["fence"]) == (task, 2)
    (reclaimed,) = await agents.events(task, "task.reclaimed")
    assert (reclaimed["from"], reclaimed["message_id"]) == (f"{SERVICE}-worker-dies", lost)
    await agents.finish(entry, task, "at last", stream=OWN)
    assert (await agents.over(task))["result"] == "at last"


async def test_an_own_stream_that_somebody_deletes_is_made_anew_and_loses_no_task(
    agents: AgentApp,
) -> None:
    await agents.declare(SERVICE, "report.generate", sensitive=["$"])
    await read_own(agents)
    task = await agents.submit(type="report.generate")
    await agents.until(lambda: _holds(agents, OWN, 1))
    await agents.redis.delete(OWN)

    async def is_back() -> bool:
        groups = await agents.redis.exists(OWN) and await agents.redis.xinfo_groups(OWN)
        return [group["name"] for group in groups or ()] == [b"onward"]

    await agents.until(is_back)
    await agents.join(stream=OWN)
    entry, event = await agents.get(stream=OWN)
    assert event["data"]["task_id"] == task
    await agents.finish(entry, task, stream=OWN)
    assert (await agents.over(task))["failures"] == 0


async def test_an_agents_own_entry_on_a_services_stream_is_adopted(agents: AgentApp) -> None:
    await agents.declare(SERVICE, "report.generate")
    await read_own(agents)
    data = {
        "task_id": "from-an-agent",
        "task_type": "report.generate",
        "params": {"quarter": "Q4"},
        "session_id": "user-123",
    }
    await agents.publish(OWN, data)
    await agents.known("from-an-agent")
    entry, _ = await agents.get(stream=OWN)
    await agents.finish(entry, "from-an-agent", 5, stream=OWN)
    assert (await agents.over("from-an-agent"))["result"] == 5
    (notice,) = await agents.notices()
    assert notice["data"]["task_id"] == "from-an-agent"


@pytest.mark.parametrize("ledger", ["sqlite", "redis"])
async def test_a_server_that_comes_back_finds_what_is_on_own_streams(
    ledger: str, tmp_path: Path
) -> None:
    where = ledger if ledger == "redis" else f"sqlite:///{tmp_path}/ledger.db"
    async with open_agent_app(where) as agents:
        await agents.declare(SERVICE, "report.generate")
        await read_own(agents)
        tasks = [await agents.submit(type="report.generate") for _ in range(3)]
        taken = [await agents.get(stream=OWN) for _ in range(2)]
        await agents.phase(tasks[1], "running")
        await agents.until(lambda: _holds(agents, OWN, 3))
        await agents.shut()
        await agents.finish(taken[0][0], tasks[0], "while it was away", stream=OWN)
        await agents.open()
        assert (await agents.over(tasks[0]))["result"] == "while it was away"
        await agents.finish(taken[1][0], tasks[1], 2, stream=OWN)
        entry, event = await agents.get(stream=OWN)
        assert event["data"]["task_id"] == tasks[2]
        await agents.finish(entry, tasks[2], 3, stream=OWN)
        assert [(await agents.over(task))["attempt"] for task in tasks] == [1, 1, 1]


@pytest.mark.contract("S3-7", "S2-10")
async def test_workers_of_own_streams_count_for_health_and_metrics(agents: AgentApp) -> None:
    await agents.declare(SERVICE, "report.generate")
    assert (await agents.http.get("/health")).status_code == 503
    await read_own(agents)
    health = await agents.http.get("/health")
    assert (health.status_code, health.json()["components"]["workers"]) == (200, True)
    await agents.submit(type="report.generate")
    await agents.until(lambda: _holds(agents, OWN, 1))
    metrics = (await agents.http.get("/metrics")).text
    assert f'onward_stream_depth{{stream="{OWN}"}} 1.0' in metrics
