"""What an operator finds at /metrics, and the lines in the log, after real work (S2-10)."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from onward.core.readers import CURSORS
from onward.core.task import Event
from onward.native.notifications.figures import BUCKETS, LiveTaskGauge
from onward.native.notifications.projector import NotificationProjector
from onward.workers.streams.depths import MOST_GROUPS
from tests.agents.agent_app import (
    COMPLETED,
    CREATE,
    DEAD,
    FAILED,
    TIMEOUT,
    AgentApp,
    open_agent_app,
)
from tests.agents.sessions import TYPE, Sessions
from tests.running_app import App, running_app
from tests.servers import fresh_url
from tests.support import wait_until

DOCUMENT = Path(__file__).parents[2] / "docs" / "operations" / "running.md"
TASKS = "onward_agent_tasks_total"
DURATION = "onward_agent_task_duration_seconds"
DELAY = "onward_notification_delay_seconds"

# The seed's figures, each with the series from which it is read.
FIGURES = {
    "Tasks created per minute": f'{TASKS}{{event="created"}}',
    "Tasks completed per minute": f'{TASKS}{{event="completed"}}',
    "Tasks failed per minute": f'{TASKS}{{event="failed"}}',
    "Average task duration": f'{DURATION}_sum{{status="completed"}}',
    "Task timeout rate": f'{TASKS}{{event="timeout"}}',
    "Active tasks per user": "onward_agent_session_tasks_gcount",
    "Task completion rate": f'{TASKS}{{event="completed"}}',
    "User notification delivery rate": "onward_notifications_reached_total",
}
# Those that need something to be there: a queue, or a Redis.
QUEUE_FIGURES = {
    "Queue depth (pending tasks)": "onward_tasks",
    "Consumer lag": "onward_stream_lag",
    "Message processing rate": "onward_stream_entries_total",
    "Dead letter queue size": "onward_stream_depth",
}


async def series(app: App | AgentApp) -> dict[str, float]:
    """A real scrape: each series, as it is written, and its value."""
    answer = await app.http.get("/metrics")
    assert answer.status_code == 200
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def noticed(sessions: Sessions) -> dict[str, float]:
    """The same, once the whole log has been read."""
    backend, clock = sessions.app.onward.backend, sessions.app.clock

    async def read_up() -> bool:
        end = (await backend.tasks.events(after="$", limit=1)).next
        found = await backend.documents.get(CURSORS, NotificationProjector.name, now=clock.now())
        return found is not None and json.loads(found.body) == end

    await wait_until(read_up)
    return await series(sessions.app)


def ledger(name: str) -> dict[str, Any]:
    return {} if name == "sqlite" else {"ledger": fresh_url("valkey"), "archive": ""}


@pytest.fixture(params=["sqlite", "redis"])
async def either(request: pytest.FixtureRequest) -> AsyncIterator[Sessions]:
    async with running_app(**ledger(request.param)) as app:
        yield Sessions(app)


@pytest.fixture(params=["sqlite", "redis"])
async def agents(request: pytest.FixtureRequest) -> AsyncIterator[AgentApp]:
    async with open_agent_app(request.param) as agents:
        yield agents


async def begun(sessions: Sessions, worker: Any) -> str:
    frame: dict[str, Any] = await worker.task()
    return str(frame["taskId"])


# Tasks.


@pytest.mark.contract("S2-10")
async def test_what_becomes_of_tasks_is_counted(either: Sessions) -> None:
    worker = await either.worker()
    done = await either.submit("s1")
    failed = await either.submit("s1", max_retries=0)
    late = await either.submit("s2", timeout_ms=1_000)
    gone = await either.submit("s2")
    await either.submit(None)  # nobody's: counted elsewhere
    for _ in range(4):
        await begun(either, worker)
    await either.app.advance(2_000)
    await worker.answer(done, "well")
    await either.over(done)
    await worker.answer(failed, error="no luck")
    await either.over(failed)
    await either.app.post(f"/api/v2/tasks/{gone}/cancel", {})
    await worker.answer(gone, error="stopped")
    await either.over(gone)
    found = await noticed(either)
    counted = {
        name.removeprefix(TASKS): value
        for name, value in found.items()
        if name.startswith(TASKS) and value
    }
    assert counted == {
        '{event="created"}': 4,
        '{event="processing"}': 4,
        '{event="completed"}': 1,
        '{event="failed"}': 1,
        '{event="canceled"}': 1,
        '{event="timeout"}': 1,
        '{event="dead"}': 1,
    }
    assert found[f'{DURATION}_sum{{status="completed"}}'] == 2
    assert found[f'{DURATION}_count{{status="completed"}}'] == 1
    assert found[f'{DURATION}_bucket{{le="1.0",status="completed"}}'] == 0
    assert found[f'{DURATION}_bucket{{le="2.5",status="completed"}}'] == 1
    assert found[f'{DURATION}_count{{status="failed"}}'] == 1
    assert found["onward_agent_tasks_active"] == 1
    await worker.answer(late, "at last")
    await either.over(late)
    found = await noticed(either)
    assert found[f'{TASKS}{{event="completed"}}'] == 2
    assert found["onward_agent_tasks_active"] == found["onward_agent_sessions_active"] == 0


@pytest.mark.contract("S2-10")
async def test_every_figure_of_a_minute_is_there_before_the_first_event(sessions: Sessions) -> None:
    """A rate over a series that begins with its first event would not see that event."""
    before = await series(sessions.app)
    for figure, name in FIGURES.items():
        if not name.startswith("onward_agent_session"):  # no session was seen: nobody knows
            assert before[name] == 0, figure


@pytest.mark.contract("S2-10")
async def test_every_figure_of_the_agents_text_is_documented() -> None:
    text = DOCUMENT.read_text()
    for figure, name in {**FIGURES, **QUEUE_FIGURES}.items():
        rows = [line for line in text.splitlines() if line.startswith(f"| {figure}")]
        assert rows, figure
        assert name.partition("{")[0].removesuffix("_sum").removesuffix("_gcount") in rows[0], rows


@pytest.mark.contract("S2-10")
async def test_a_batch_that_comes_again_is_counted_once(sessions: Sessions) -> None:
    task = await sessions.succeed()
    found = await noticed(sessions)
    log = (await sessions.app.onward.backend.tasks.events(after="0", limit=9, task=task)).items
    tasks = {task: (await sessions.app.onward.backend.tasks.get([task]))[0]}
    figures = sessions.app.onward.figures
    figures.note(log, tasks)
    before = await series(sessions.app)
    figures.note(log, tasks)
    after = await series(sessions.app)
    for name in (n for n in found if n.startswith((TASKS, DURATION)) and "_created" not in n):
        assert before[name] == after[name], name


# Sessions.


@pytest.mark.contract("S2-10")
async def test_active_tasks_are_told_by_session_without_naming_one(either: Sessions) -> None:
    for session, count in (("ada-1", 1), ("ada-2", 2), ("ada-3", 7)):
        for _ in range(count):
            await either.submit(session)
    found = await noticed(either)
    assert found["onward_agent_tasks_active"] == found["onward_agent_session_tasks_gsum"] == 10
    assert found["onward_agent_sessions_active"] == found["onward_agent_session_tasks_gcount"] == 3
    assert found["onward_agent_busiest_session_tasks"] == 7
    spread = [found[f'onward_agent_session_tasks_bucket{{le="{float(top)}"}}'] for top in BUCKETS]
    assert spread == [1, 2, 2, 3, 3, 3, 3, 3, 3, 3]
    assert not any("ada" in name for name in found)


@pytest.mark.contract("S2-10")
async def test_the_number_of_series_does_not_grow_with_sessions(sessions: Sessions) -> None:
    await sessions.submit("s0")
    before = await noticed(sessions)
    for number in range(40):
        await sessions.submit(f"s{number}")
    assert (await noticed(sessions)).keys() == before.keys()


@pytest.mark.contract("S2-10")
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_a_server_that_starts_knows_the_live_tasks_of_before(
    kind: str, tmp_path: Path
) -> None:
    on = {"ledger": f"sqlite:///{tmp_path}/tasks.db"} if kind == "sqlite" else ledger(kind)
    async with running_app(**on) as app:
        sessions = Sessions(app)
        live = [await sessions.submit(session) for session in ("ada", "ada", "eve")]
        await sessions.succeed("bob", type="other", queue=TYPE, priority="high")
        await noticed(sessions)
    async with running_app(**on) as app:
        sessions = Sessions(app)

        async def known() -> dict[str, float] | None:
            found = await noticed(sessions)
            return found if found.get("onward_agent_tasks_active") == len(live) else None

        found = await wait_until(known)
        assert found["onward_agent_sessions_active"] == 2
        assert found["onward_agent_busiest_session_tasks"] == 2
        await app.post(f"/api/v2/tasks/{live[2]}/cancel", {})
        found = await noticed(sessions)
        assert found["onward_agent_tasks_active"] == 2
        assert found["onward_agent_sessions_active"] == 1


def _event(task: str, type_: str) -> Event:
    return Event(task, 1, 1, type_, 0, None)


@pytest.mark.contract("S2-10")
async def test_a_task_that_ends_while_the_live_ones_are_read_does_not_stay(
    sessions: Sessions,
) -> None:
    task = await sessions.submit("ada")
    gauge, store = LiveTaskGauge(), sessions.app.onward.backend.tasks
    find = store.find

    async def slow(query: Any) -> Any:
        page = await find(query)
        gauge.note(_event(task, "task.succeeded"), "ada")  # between the reading and its use
        return page

    store.find = slow  # type: ignore[method-assign]
    await gauge.read(store)
    assert gauge._live == {}


@pytest.mark.parametrize("seed", range(20))
def test_the_spread_is_what_counting_would_give(seed: int) -> None:
    pick = random.Random(seed)
    gauge = LiveTaskGauge()
    live: set[tuple[str, str]] = set()
    for _ in range(400):
        session, task = f"s{pick.randrange(5)}", f"t{pick.randrange(30)}"
        born = pick.random() < 0.6
        gauge.note(_event(f"{session}-{task}", "task.created" if born else "task.failed"), session)
        (live.add if born else live.discard)((session, task))
        counts = Counter(session for session, _ in live)
        assert gauge._tasks == len(live)
        assert gauge._most == max(counts.values(), default=0)
        assert dict(gauge._spread) == Counter(counts.values())
        steps = [sum(count <= top for count in counts.values()) for top in BUCKETS]
        assert [sum(gauge._buckets[: at + 1]) for at in range(len(BUCKETS))] == steps


@pytest.mark.contract("S2-10")
async def test_a_scrape_looks_at_no_task(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sessions.succeed()
    await noticed(sessions)

    async def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a scrape that walks")

    store = sessions.app.onward.backend.tasks
    events = store.events

    async def one_event(*, limit: int, **asked: Any) -> Any:
        assert limit == 1, "how far a reader of the log is behind takes one event, not a walk"
        return await events(limit=limit, **asked)

    for name in ("get", "look", "find", "due"):
        monkeypatch.setattr(store, name, refuse)
    monkeypatch.setattr(store, "events", one_event)
    assert (await series(sessions.app))[f'{TASKS}{{event="completed"}}'] == 1


# Notices.


@pytest.mark.contract("S2-10", "S2-6")
async def test_a_notice_counts_as_delivered_once_however_often_it_is_told(either: Sessions) -> None:
    await either.succeed()
    (notice,) = await either.told(1)
    await either.notices()
    await either.notices()
    found = await noticed(either)
    assert found['onward_notifications_total{type="task_completed"}'] == 1
    assert found['onward_notifications_delivered_total{how="poll"}'] >= 3
    assert found["onward_notifications_reached_total"] == 1
    assert found[f'{DELAY}_count{{until="reached"}}'] == 1
    assert found["onward_notifications_read_total"] == 0
    for _ in range(2):
        assert await either.ack(notice["notification_id"]) == 200
    found = await noticed(either)
    assert found["onward_notifications_read_total"] == 1
    assert found[f'{DELAY}_count{{until="read"}}'] == 1


# Streams.


@pytest.mark.contract("S2-10")
async def test_the_streams_depth_and_lag_are_told(agents: AgentApp) -> None:
    await agents.join()
    tasks = [
        await agents.submit(type="report.generate", queue="agents", session_id="ada")
        for _ in range(3)
    ]

    async def offered() -> bool:
        return await agents.length(CREATE) == 3

    await agents.until(offered)
    group = f'{{group="report-service-group",stream="{CREATE}"}}'
    found = await series(agents)
    assert found[f'onward_stream_depth{{stream="{CREATE}"}}'] == 3
    assert found[f"onward_stream_lag{group}"] == 3
    assert found[f"onward_stream_pending{group}"] == 0
    assert found[f'onward_stream_entries_total{{step="published",stream="{CREATE}"}}'] == 3
    entry, event = await agents.get()
    found = await series(agents)
    assert (found[f"onward_stream_lag{group}"], found[f"onward_stream_pending{group}"]) == (2, 1)
    await agents.fall_silent(entry)
    silent_s = (await series(agents))[f"onward_stream_heartbeat_age_seconds{group}"]
    assert silent_s >= agents.settings.visibility_timeout_s
    # With its end an entry is deleted, and Redis loses count of the lag.
    await agents.finish(entry, event["data"]["task_id"], "done")
    await agents.over(event["data"]["task_id"])

    async def swept() -> dict[str, float] | None:
        found = await series(agents)
        taken = f'onward_stream_entries_total{{step="acknowledged",stream="{COMPLETED}"}}'
        return found if await agents.length(CREATE) == 2 and found.get(taken) else None

    found = await agents.until(swept)
    assert (found[f"onward_stream_lag{group}"], found[f"onward_stream_pending{group}"]) == (2, 0)
    assert found[f'onward_stream_entries_total{{step="consumed",stream="{COMPLETED}"}}'] == 1

    async def counted() -> dict[str, float] | None:
        found = await series(agents)
        return found if found[f'{TASKS}{{event="completed"}}'] == 1 else None

    found = await agents.until(counted)
    assert found[f'{TASKS}{{event="created"}}'] == 3
    assert found[f'{TASKS}{{event="processing"}}'] <= 1, "offered is not yet taken"
    for stream in (COMPLETED, FAILED, TIMEOUT, DEAD, "stream:task"):
        assert f'onward_stream_depth{{stream="{stream}"}}' in found
    assert len(tasks) == 3


@pytest.mark.contract("S2-10")
async def test_a_service_quicker_than_any_sweep_has_processed_its_task(agents: AgentApp) -> None:
    with capture_logs() as lines:
        await agents.join()
        tasks = [await agents.ask() for _ in range(2)]
        entry, _ = await agents.get()
        await agents.finish(entry, tasks[0])
        entry, _ = await agents.get()
        await agents.fail_with(entry, tasks[1], "INSUFFICIENT_DATA")
        for task in tasks:
            await agents.over(task)

        async def counted() -> bool:
            found = await series(agents)
            return all(found[f'{TASKS}{{event="{end}"}}'] == 1 for end in ("completed", "failed"))

        await agents.until(counted)
        assert (await series(agents))[f'{TASKS}{{event="processing"}}'] == 2
    for task in tasks:
        said = [line["event"] for line in lines if line.get("task_id") == task]
        assert said[:2] == ["Task created", "Task processing"]
        (delivered,) = await agents.events(task, "task.delivered")
        assert delivered["worker"].startswith("report-service")
        assert (await agents.read(task))["worker"] == delivered["worker"]


@pytest.mark.contract("S2-10")
async def test_a_lag_of_which_redis_has_lost_count_is_counted() -> None:
    async with open_agent_app("sqlite") as agents:
        entries = [await agents.redis.xadd(TIMEOUT, {"n": number}) for number in range(4)]
        await agents.redis.xgroup_create(TIMEOUT, "watchers", id="0")
        await agents.redis.xreadgroup("watchers", "one", {TIMEOUT: ">"}, count=1)
        await agents.redis.xdel(TIMEOUT, entries[2])
        groups = await agents.redis.xinfo_groups(TIMEOUT)
        assert [group["lag"] for group in groups if group["name"] == b"watchers"] == [None]
        found = await series(agents)
    assert found[f'onward_stream_lag{{group="watchers",stream="{TIMEOUT}"}}'] == 2


@pytest.mark.contract("S2-10")
async def test_of_too_many_groups_those_furthest_behind_are_told() -> None:
    async with open_agent_app("sqlite") as agents:
        await agents.redis.xgroup_create(CREATE, "g0-group", id="0", mkstream=True)
        await agents.submit(type="report.generate", queue="agents", session_id="ada")
        await wait_until(lambda: agents.redis.xlen(CREATE))  # it stays there: nobody works on it
        for number in range(1, MOST_GROUPS + 10):
            await agents.redis.xgroup_create(CREATE, f"g{number}-group", id="$")
        names = [name for name in await series(agents) if name.startswith("onward_stream_lag{")]
    assert sum(CREATE in name for name in names) == MOST_GROUPS
    assert any('"g0-group"' in name for name in names)


@pytest.mark.contract("S2-10")
async def test_dead_letters_are_told(agents: AgentApp) -> None:
    await agents.join()
    task = await agents.submit(type="report.generate", queue="agents", session_id="ada")
    entry, _ = await agents.get()
    await agents.fail_with(entry, task, "INSUFFICIENT_DATA")
    await agents.told(DEAD)
    found = await series(agents)
    assert found[f'onward_stream_depth{{stream="{DEAD}"}}'] == 1
    assert found['onward_tasks{lane="primary",queue="agents",state="dead"}'] == 1
    assert found[f'onward_stream_entries_total{{step="published",stream="{DEAD}"}}'] == 1
    assert not any("ada" in name for name in found)


@pytest.mark.contract("S2-10")
async def test_without_a_redis_there_is_no_word_of_streams(sessions: Sessions) -> None:
    await sessions.submit()
    assert not any(name.startswith("onward_stream") for name in await noticed(sessions))


@pytest.mark.contract("S2-10")
async def test_a_redis_that_is_away_costs_only_its_own_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_agent_app("sqlite") as agents:

        async def away(*_: Any) -> Any:
            raise ConnectionError

        monkeypatch.setattr(
            agents.app.onward._connections[0].connection_pool, "get_connection", away
        )
        found = await series(agents)
    assert f'{TASKS}{{event="created"}}' in found
    assert not any(name.startswith("onward_stream") for name in found)


# The log.


@pytest.mark.contract("S2-10", "S2-9")
async def test_the_lines_of_the_agents_text_are_logged_without_what_was_sent(
    sessions: Sessions,
) -> None:
    with capture_logs() as lines:
        worker = await sessions.worker()
        secret = {"pin": "4711-secret"}
        done = await sessions.submit("ada", payload=secret, timeout_ms=1_000)
        failed = await sessions.submit("ada", payload=secret, max_retries=0)
        for _ in range(2):
            await begun(sessions, worker)
        await sessions.app.advance(1_500)
        await worker.answer(done, secret)
        await sessions.over(done)
        await worker.answer(failed, error="4711-secret is no pin")
        await sessions.over(failed)
        await noticed(sessions)
    said = [line for line in lines if line["event"].startswith("Task ")]
    assert "4711-secret" not in json.dumps(lines, default=repr)
    created = {"event": "Task created", "log_level": "info", "type": TYPE, "session": "ada"}
    who = {"log_level": "info", "service": worker.id}
    assert [line for line in said if line["task_id"] == done] == [
        {**created, "task_id": done},
        {"event": "Task processing", **who, "task_id": done},
        {"event": "Task timeout", "log_level": "warning", "task_id": done, "elapsed": 1_500},
        {"event": "Task completed", "log_level": "info", "task_id": done, "duration": 1_500},
    ]
    last = [line for line in said if line["task_id"] == failed][-1]
    assert (last["event"], last["log_level"]) == ("Task failed", "error")
    assert last["error"]


@pytest.mark.contract("S2-10")
async def test_events_of_the_streams_are_logged_as_they_go() -> None:
    with capture_logs() as lines:
        async with open_agent_app("sqlite") as agents:
            await agents.join()
            task = await agents.submit(type="report.generate", queue="agents", session_id="ada")
            entry, event = await agents.get()
            await agents.finish(entry, task, "done")
            await agents.over(task)
            await agents.notices("ada")

            async def seen() -> bool:
                return any(line["event"] == "Event acknowledged" for line in lines)

            await agents.until(seen)
            (told,) = await agents.on(COMPLETED)
    debug = [line for line in lines if line["event"].startswith("Event ")]
    assert {line["log_level"] for line in debug} == {"debug"}
    published = {"event": "Event published", "stream": CREATE, "event_id": event["event_id"]}
    assert {**published, "log_level": "debug"} in debug
    for word, more in (("consumed", {"consumer": "onward"}), ("acknowledged", {})):
        said = {"event": f"Event {word}", "stream": COMPLETED, "event_id": told["event_id"]}
        assert {**said, **more, "log_level": "debug"} in debug, word
    assert not any("ada" in str(line.get("stream")) for line in debug)
