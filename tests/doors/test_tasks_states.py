"""The tasks door: from PENDING to its end, by workers, by the clock, and by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from onward.core.alarm import Alarm
from onward.core.contract import Ask, Want
from onward.core.phase import Phase, phase
from onward.core.task import Lane, Priority, State
from onward.doors.tasks.router import take_back
from onward.doors.tasks.shapes import COUNTED, STORED
from onward.doors.vocabulary import TASKS
from onward.wire.times import iso
from tests.doors.summarizing import dead, detail, fail, listed, read, stored, submitted, summarizer
from tests.running_app import App, running_app
from tests.support import a_task

HOUR = 3_600_000


@pytest.mark.contract("S3-9")
async def test_pending_to_active_to_completed_with_the_workers_result_unchanged(app: App) -> None:
    worker = await summarizer(app)
    task = await submitted(app)
    await worker.task()
    await worker.send({"type": "progress", "taskId": task, "progress": 0.5, "message": "half"})
    await app.settled()
    assert await read(app, task) == detail(
        app, task, state="ACTIVE", phase="running", progress=0.5, progress_message="half"
    )
    born_at = iso(app.clock.now())
    app.clock.advance(1_500)
    await worker.answer(task, {"summary": "Short", "words": [1, 2.5]})
    await app.settled()
    assert await read(app, task) == detail(
        app, task, state="COMPLETED", phase="succeeded", created_at=born_at,
        completed_at=iso(app.clock.now()), result={"summary": "Short", "words": [1, 2.5]},
        progress=1.0,
    )  # fmt: skip
    assert iso(app.clock.now()).endswith("Z")


@pytest.mark.contract("S3-9", "S3-10", "S3-2")
async def test_four_executions_and_then_the_dead_letters(app: App) -> None:
    worker = await summarizer(app)
    task = await submitted(app)
    born_at = iso(app.clock.now())
    history: list[dict[str, Any]] = []
    for retry, delay_ms in enumerate((5_000, 10_000, 30_000)):
        await fail(app, worker)
        entry = {"error": "flaky", "error_type": "ServiceUnavailable", "attempt": retry + 1}
        history.append({**entry, "timestamp": iso(app.clock.now())})
        run_at = (await stored(app, task)).run_at
        assert run_at is not None
        late_ms = run_at - app.clock.now()
        assert delay_ms <= late_ms <= delay_ms * 1.1
        assert await read(app, task) == detail(
            app, task, state="FAILED", phase="retry_wait", retry_count=retry + 1,
            last_error="flaky", error_type="ServiceUnavailable", retry_after=iso(run_at),
            created_at=born_at, error_history=history,
        )  # fmt: skip
        assert await listed(app, status="FAILED") == [task]
        await app.advance(late_ms - 1)
        assert worker.pending() == 0
        await app.advance(1)
        await app.settled()
    await fail(app, worker)
    entry = {"error": "flaky", "error_type": "ServiceUnavailable", "attempt": 4}
    history.append({**entry, "timestamp": iso(app.clock.now())})
    over = detail(
        app, task, state="DLQ", phase="dead", retry_count=3, last_error="flaky",
        error_type="ServiceUnavailable", created_at=born_at, error_history=history,
    )  # fmt: skip
    assert await read(app, task) == over
    assert (await app.get("/api/v1/queues/dlq")).json() == [over]
    await app.advance(HOUR)
    assert worker.pending() == 0, "there is no fifth"


@pytest.mark.contract("S3-9", "S3-8")
async def test_a_failed_task_is_pending_in_the_retry_lane_once_it_is_due(app: App) -> None:
    worker = await summarizer(app)
    task = await submitted(app)
    await fail(app, worker)
    await worker.close()
    await app.advance(6_000)
    found = await read(app, task)
    assert (found["state"], found["phase"], found["retry_count"]) == ("PENDING", "retrying", 1)
    assert (found["last_error"], found["retry_after"]) == ("flaky", None)
    assert (await stored(app, task)).lane is Lane.RETRY
    assert (await app.get("/api/v1/queues/status")).json()["queues"]["retry"] == 1


@pytest.mark.contract("S3-10", "R-5")
@pytest.mark.parametrize(
    ("error", "error_type"),
    [
        ({"status": 400}, "InvalidInput"),
        ({"status": 401}, "AuthError"),
        ({"status": 403}, "PermissionDenied"),
        ({"status": 404}, "NotFound"),
        ({"status": 409}, "Error"),
        ({"status": 404, "errorType": "NoSuchModel"}, "NoSuchModel"),
        ({"errorType": "InvalidInput", "status": None}, "InvalidInput"),
        ({"errorType": "AuthError", "status": None}, "AuthError"),
        ({"errorType": "PermissionDenied", "status": None}, "PermissionDenied"),
        ({"errorType": "NotFound", "status": None}, "NotFound"),
        ({"status": 503, "retryable": False}, "ServiceUnavailable"),
    ],
)
async def test_a_permanent_error_goes_straight_to_the_dead_letters(
    app: App, error: dict[str, Any], error_type: str
) -> None:
    worker = await summarizer(app)
    task = await submitted(app)
    await fail(app, worker, **error)
    found = await read(app, task)
    assert (found["state"], found["retry_count"]) == ("DLQ", 0)
    assert (found["error_type"], len(found["error_history"])) == (error_type, 1)


@pytest.mark.contract("S3-10", "R-5")
@pytest.mark.parametrize(
    ("error", "error_type"),
    [
        ({"status": 408}, "NetworkTimeout"),
        ({"status": 429}, "RateLimitError"),
        ({"status": 500}, "ServiceUnavailable"),
        ({"status": 502}, "ServiceUnavailable"),
        ({"status": 504}, "NetworkTimeout"),
        ({"status": None, "errorType": "NetworkTimeout"}, "NetworkTimeout"),
        ({"status": None}, "Error"),
    ],
)
async def test_a_transient_error_is_tried_again(
    app: App, error: dict[str, Any], error_type: str
) -> None:
    worker = await summarizer(app)
    task = await submitted(app)
    await fail(app, worker, **error)
    found = await read(app, task)
    assert (found["state"], found["retry_count"]) == ("FAILED", 1)
    assert found["error_type"] == error_type


@pytest.mark.contract("S3-9")
async def test_a_task_past_its_age_is_a_dead_letter_wherever_it_is(app: App) -> None:
    waiting = await submitted(app)
    await app.advance(HOUR - 1)
    assert (await read(app, waiting))["state"] == "PENDING"
    await app.advance(1)
    found = await read(app, waiting)
    assert (found["state"], found["error_type"]) == ("DLQ", "timeout")
    worker = await summarizer(app)
    retry_wait = await submitted(app)
    await fail(app, worker, retryAfterMs=2 * HOUR)
    assert (await read(app, retry_wait))["state"] == "FAILED"
    await app.advance(HOUR)
    assert (await read(app, retry_wait))["state"] == "DLQ"


@pytest.mark.contract("S3-9")
async def test_the_age_is_a_setting() -> None:
    async with running_app(max_task_age_s=60, max_retries=1) as app:
        task = await submitted(app)
        assert (await read(app, task))["max_retries"] == 1
        await app.advance(60_000)
        assert (await read(app, task))["state"] == "DLQ"


@pytest.mark.contract("S3-8")
async def test_new_work_is_done_in_the_order_it_came(app: App) -> None:
    made = [await submitted(app, f"text {n}") for n in range(12)]
    worker = await summarizer(app)
    done = []
    for _ in made:
        frame = await worker.task()
        done.append(frame["taskId"])
        await worker.answer(frame["taskId"], "short")
    assert done == made


@pytest.mark.contract("S3-4", "R-6")
async def test_a_retry_by_hand_starts_over_in_the_retry_lane_and_empties_the_dead_letters(
    app: App,
) -> None:
    worker = await summarizer(app)
    task = await submitted(app)
    for _ in range(4):
        await fail(app, worker)
        await app.advance(40_000)
        await app.settled()
    assert (await read(app, task))["state"] == "DLQ"
    await worker.close()
    response = await app.post(f"/api/v1/tasks/{task}/retry", None)
    assert (response.status_code, response.json()) == (200, {"task_id": task, "state": "PENDING"})
    found = await read(app, task)
    assert (found["state"], found["retry_count"], found["last_error"]) == ("PENDING", 0, None)
    assert len(found["error_history"]) == 4, "what went wrong before is still told"
    assert (await app.get("/api/v1/queues/dlq")).json() == []
    queues = (await app.get("/api/v1/queues/status")).json()["queues"]
    assert queues == {"primary": 0, "retry": 1, "scheduled": 0, "dlq": 0}
    again = await app.post(f"/api/v1/tasks/{task}/retry", None)
    assert (again.status_code, again.json()) == (400, {"detail": "Task cannot be retried"})
    worker = await summarizer(app)
    await fail(app, worker)
    assert (await read(app, task))["retry_count"] == 1, "its budget is whole again"


@pytest.mark.contract("S3-4")
async def test_only_what_failed_can_be_retried(app: App) -> None:
    waiting = await submitted(app)
    worker = await summarizer(app)
    await worker.task()
    for answer in (False, True):
        if answer:
            await worker.answer(waiting, "short")
            await app.settled()
        response = await app.post(f"/api/v1/tasks/{waiting}/retry", None)
        assert response.status_code == 400
        assert response.json() == {"detail": "Task cannot be retried"}


@pytest.mark.contract("S3-4")
async def test_what_was_canceled_shows_as_failed_and_can_be_retried(app: App) -> None:
    task = await submitted(app)
    await app.http.delete(f"/api/v1/tasks/{task}")
    response = await app.post(f"/api/v1/tasks/{task}/retry", None)
    assert (response.status_code, response.json()) == (200, {"task_id": task, "state": "PENDING"})
    assert (await stored(app, task)).lane is Lane.RETRY


@pytest.mark.contract("S3-4")
async def test_of_two_who_retry_the_same_death_one_is_refused(app: App) -> None:
    worker = await summarizer(app)
    task = await dead(app, worker)
    await worker.close()
    both = await asyncio.gather(*[app.post(f"/api/v1/tasks/{task}/retry", None) for _ in range(2)])
    assert sorted(response.status_code for response in both) == [200, 400]
    assert (await stored(app, task)).generation == 2


@pytest.mark.contract("S3-4")
async def test_a_task_that_is_retry_wait_can_be_retried_at_once(app: App) -> None:
    worker = await summarizer(app)
    task = await submitted(app)
    await fail(app, worker)
    response = await app.post(f"/api/v1/tasks/{task}/retry", None)
    assert (response.status_code, response.json()) == (200, {"task_id": task, "state": "PENDING"})
    assert (await worker.task())["taskId"] == task
    assert (await read(app, task))["retry_count"] == 0


@pytest.fixture
def no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's own sweep would take orphans back before anybody can ask for it."""

    async def never(_: Alarm) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Alarm, "run", never)


async def taken_by_a_ghost(app: App, task: str, *, lease_ms: int = 1_000) -> None:
    """Claimed for a server that is gone."""
    want = Want("summarize", Priority.NORMAL, Lane.PRIMARY, 1)
    claimed = await app.onward.backend.tasks.claim(
        [Ask("ghost", 1, (want,), lease_ms)], now=app.clock.now()
    )
    assert [one.id for one in claimed] == [task]


@pytest.mark.contract("S3-5", "R-6")
@pytest.mark.usefixtures("no_alarm")
async def test_orphans_are_queued_again_and_healthy_work_is_left_alone() -> None:
    async with running_app() as app:
        orphan = await submitted(app)
        await taken_by_a_ghost(app, orphan)
        healthy = await submitted(app)
        worker = await summarizer(app)
        assert (await worker.task())["taskId"] == healthy
        early = await app.post("/api/v1/tasks/requeue-orphaned", None)
        assert early.json() == {"requeued": 0, "task_ids": []}
        assert (await read(app, orphan))["state"] == "ACTIVE"

        app.clock.advance(1_000)
        found = await app.post("/api/v1/tasks/requeue-orphaned", None)
        assert (found.status_code, found.json()) == (200, {"requeued": 1, "task_ids": [orphan]})
        assert (await read(app, orphan))["state"] == "PENDING"
        assert (await read(app, orphan))["retry_count"] == 0, "no retry is burned"
        assert (await stored(app, healthy)).fence == 1
        again = await app.post("/api/v1/tasks/requeue-orphaned", None)
        assert again.json() == {"requeued": 0, "task_ids": []}
        await worker.answer(healthy, "short")
        assert (await worker.task())["taskId"] == orphan


@pytest.mark.contract("S3-5", "R-6")
@pytest.mark.usefixtures("no_alarm")
async def test_after_a_pause_orphans_are_requeued_and_what_is_held_here_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uptime = [0]
    monkeypatch.setitem(Alarm.__init__.__kwdefaults__ or {}, "uptime_ms", lambda: uptime[0])
    async with running_app(lease_ms=60_000) as app:
        orphan = await submitted(app)
        await taken_by_a_ghost(app, orphan)
        held = await submitted(app)
        worker = await summarizer(app)
        assert (await worker.task())["taskId"] == held
        before = await app.post("/api/v1/tasks/requeue-orphaned", None)
        assert before.json() == {"requeued": 0, "task_ids": []}

        app.clock.advance(HOUR // 4)  # SIGSTOP, say: no lease was renewed meanwhile
        uptime[0] += HOUR // 4
        found = await app.post("/api/v1/tasks/requeue-orphaned", None)
        assert found.json() == {"requeued": 1, "task_ids": [orphan]}
        assert (await stored(app, held)).fence == 1
        await worker.answer(held, "short")
        await app.settled()
        assert (await read(app, held))["result"] == "short"


@pytest.mark.contract("S3-5", "R-8")
@pytest.mark.usefixtures("no_alarm")
async def test_orphans_of_others_are_taken_back_and_not_told_of() -> None:
    async with running_app() as app:
        body = {"type": "summarize", "session_id": "s"}
        secret = await app.submit(**body)
        await taken_by_a_ghost(app, secret)
        app.clock.advance(1_000)
        found = await app.post("/api/v1/tasks/requeue-orphaned", None)
        assert found.json() == {"requeued": 0, "task_ids": []}
        assert (await stored(app, secret)).state is State.QUEUED


@pytest.mark.contract("S3-5")
@pytest.mark.usefixtures("no_alarm")
async def test_an_orphan_that_is_asked_to_stop_is_not_called_requeued() -> None:
    async with running_app() as app:
        orphan = await submitted(app)
        await taken_by_a_ghost(app, orphan)
        await app.http.delete(f"/api/v1/tasks/{orphan}")
        app.clock.advance(1_000)
        assert await take_back(app.onward.backend.tasks, app.onward.alarm) == []
        assert (await read(app, orphan))["phase"] == "canceled"


def test_every_word_knows_the_states_it_is_stored_as() -> None:
    flags: dict[Phase, dict[str, Any]] = {
        Phase.SCHEDULED: {"state": State.SCHEDULED},
        Phase.QUEUED: {"state": State.QUEUED},
        Phase.RETRY_WAIT: {"state": State.SCHEDULED, "failures": 1},
        Phase.RETRYING: {"state": State.QUEUED, "lane": Lane.RETRY},
        Phase.REQUEUED: {"state": State.QUEUED, "fence": 1},
        Phase.OFFERED: {"state": State.RUNNING},
        Phase.RUNNING: {"state": State.RUNNING, "lease_until": 1},
        Phase.OVERDUE: {"state": State.RUNNING, "lease_until": 1, "overdue": True},
        Phase.CANCELING: {"state": State.RUNNING, "cancel_by": 1},
        Phase.WAITING_APPROVAL: {"state": State.WAITING, "waiting_for": "approval"},
        Phase.PARKED: {"state": State.WAITING, "waiting_for": "event"},
        **{
            Phase(state.value): {"state": state}
            for state in (State.SUCCEEDED, State.FAILED, State.DEAD, State.CANCELED)
        },
    }
    seen: dict[str, set[State]] = {}
    for expected, fields in flags.items():
        task = msgspec.structs.replace(a_task(), **fields)
        assert phase(task) is expected
        seen.setdefault(TASKS[expected], set()).add(task.state)
    assert seen == STORED
    assert set(flags) == set(Phase)
    assert set(COUNTED) == set(State)
