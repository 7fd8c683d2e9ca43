"""What a session is told of its tasks: once for each thing, in the words of the contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from onward.core.contract import Page
from onward.core.readers import CURSORS
from onward.core.task import Event
from onward.native.notifications import projector, store
from onward.native.notifications.notification import notification_of
from onward.native.notifications.store import KEPT_MS, NotificationStore, StoredNotification
from onward.wire.notifications import Notification
from tests.agents.sessions import TYPE, Sessions
from tests.support import NOW, a_task

AT = "2023-11-14T22:13:20.000Z"


@pytest.mark.contract("S2-6")
async def test_an_ending_is_told_in_the_contracts_format(sessions: Sessions) -> None:
    task = await sessions.succeed(priority="high")
    (notice,) = await sessions.told(1)
    id_ = notice.pop("notification_id")
    assert id_.startswith("notif-")
    assert notice == {
        "type": "task_completed",
        "task_id": task,
        "task_type": TYPE,
        "message": f"Your {TYPE} is ready.",
        "action": "retrieve_result",
        "timestamp": AT,
        "priority": "high",
        "read": False,
    }
    assert await sessions.metric("onward_notifications_total", type="task_completed") == 1
    written = await sessions.metric("onward_notification_delay_seconds_count", until="written")
    assert written == 1


@pytest.mark.contract("S2-6")
async def test_a_failure_is_told_with_its_reason(sessions: Sessions) -> None:
    worker = await sessions.worker()
    task = await sessions.submit(max_retries=0)
    await worker.task()
    await worker.answer(task, error="the printer is on fire")
    assert (await sessions.over(task))["state"] == "dead"
    (notice,) = await sessions.told(1)
    assert notice["type"] == "task_failed"
    assert notice["message"] == f"Your {TYPE} failed: the printer is on fire"
    assert notice["action"] == "review_error"


async def test_an_endless_reason_is_cut() -> None:
    data = msgspec.json.encode({"error": {"kind": "E", "message": "x" * 5_000}}).decode()
    notice = notification_of(a_task(), Event("t", 3, 1, "task.failed", NOW, data))
    assert len(notice.message) < 250


async def test_a_retry_and_a_cancel_are_not_told(sessions: Sessions) -> None:
    worker = await sessions.worker()
    task = await sessions.submit()
    await worker.task()
    await worker.answer(task, error="busy", retryable=True)
    other = await sessions.submit(delay_ms=60_000)
    assert (await sessions.app.post(f"/api/v2/tasks/{other}/cancel", None)).status_code == 200
    await sessions.app.advance(1_300)
    await worker.task()
    await worker.answer(task, 1)
    assert [notice["task_id"] for notice in await sessions.told(1)] == [task]


@pytest.mark.contract("S2-7")
async def test_a_timeout_is_told_once_and_the_completion_after_it(sessions: Sessions) -> None:
    worker = await sessions.worker()
    task = await sessions.submit(timeout_ms=5_000)
    await worker.task()
    await sessions.app.advance(4_999)
    await sessions.app.onward._notifying.step()
    assert await sessions.notices() == []
    await sessions.app.advance(1)
    (late,) = await sessions.told(1)
    assert late["type"] == "task_timeout"
    assert late["timestamp"] == "2023-11-14T22:13:25.000Z"
    assert late["message"] == (
        f"Your {TYPE} is taking longer than expected. The task is still running. I'll notify you"
        f" when it completes, or you can check status with: 'Show task status for {task}'"
    )
    found = (await sessions.app.get("/api/v2/sessions/s1/tasks?status=TIMEOUT")).json()["items"]
    assert [item["id"] for item in found] == [task]
    await sessions.app.advance(60_000)
    await worker.answer(task, "at last")
    done, again = await sessions.told(2)
    assert (done["type"], again) == ("task_completed", late)
    assert len(await sessions.notices()) == 2


@pytest.mark.contract("S2-7", "N-11")
async def test_a_services_own_timeout_ends_the_attempt_in_a_session_too(sessions: Sessions) -> None:
    service = {"name": TYPE, "task_types": [TYPE], "timeout_ms": 5_000, "max_retries": 0}
    assert (await sessions.app.post("/api/v2/services", service)).status_code == 201
    worker = await sessions.worker()
    task = await sessions.submit(timeout_ms=2_000)
    await worker.task()
    await sessions.app.advance(2_000)
    (late,) = await sessions.told(1)
    assert late["type"] == "task_timeout", "the submission's own time is told"
    await sessions.app.advance(3_000)
    assert (await sessions.over(task))["error"]["kind"] == "TIMEOUT"
    assert (await worker.receive())["type"] == "cancel"
    failed, _ = await sessions.told(2)
    assert failed["type"] == "task_failed"


async def rewind(sessions: Sessions) -> None:
    """As if the server had died before it saved how far it had read."""
    onward = sessions.app.onward
    await onward.backend.documents.put(CURSORS, "notices", '""', now=NOW)
    onward._notifying._tail._cursor = None
    await onward._notifying.step()


@pytest.mark.contract("S2-6")
async def test_an_event_that_is_read_again_adds_nothing(sessions: Sessions) -> None:
    await sessions.succeed()
    (before,) = await sessions.told(1)
    assert await sessions.ack(before["notification_id"]) == 200
    await rewind(sessions)
    (after,) = await sessions.notices()
    assert after == {**before, "read": True}
    assert await sessions.metric("onward_notifications_total", type="task_completed") == 1


@pytest.mark.contract("S2-6")
async def test_what_was_acknowledged_does_not_come_back_with_its_event(sessions: Sessions) -> None:
    for _ in range(2):
        await sessions.succeed()
    first, second = [one["notification_id"] for one in await sessions.told(2)]
    assert await sessions.ack(first) == 200
    told: list[str] = []

    async def hear(_: str, all_: Sequence[StoredNotification]) -> None:
        told.extend(kept.id for kept in all_)

    reading: Any = sessions.app.onward._notifying._tail._projector
    reading._listeners = [hear]
    await rewind(sessions)
    assert set(told) == {second}


async def test_what_a_dead_projector_left_behind_is_told_by_the_next(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[str] = []
    keep = NotificationStore.add

    async def die_first(self: NotificationStore, session: str, one: StoredNotification) -> bool:
        kept.append(one.id)
        if len(kept) < 3:
            raise RuntimeError("killed")
        return await keep(self, session, one)

    monkeypatch.setattr(projector, "AGAIN_S", 0.01)
    monkeypatch.setattr(NotificationStore, "add", die_first)
    await sessions.succeed()
    (notice,) = await sessions.told(1)
    assert kept == [notice["notification_id"]] * 3


async def test_a_replayed_task_is_told_of_again_under_another_id(sessions: Sessions) -> None:
    worker = await sessions.worker()
    task = await sessions.submit(max_retries=0)
    await worker.task()
    await worker.answer(task, error="no")
    await sessions.told(1)
    assert (await sessions.app.post(f"/api/v2/tasks/{task}/retry", None)).status_code == 200
    await worker.task()
    await worker.answer(task, error="no")
    both = await sessions.told(2)
    assert len({notice["notification_id"] for notice in both}) == 2


async def test_without_a_session_the_log_is_not_read(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    onward = sessions.app.onward
    looks: list[str] = []
    events = onward.backend.tasks.events

    async def counted(**query: Any) -> Page[Event]:
        looks.append(query["after"])
        return await events(**query)

    monkeypatch.setattr(onward.backend.tasks, "events", counted)
    await sessions.succeed(session=None)
    assert looks == []
    assert await onward.backend.documents.get(CURSORS, "notices", now=NOW) is None
    await sessions.succeed()
    assert [notice["type"] for notice in await sessions.told(1)] == ["task_completed"]
    assert looks[0] == "$"  # what was before the first session is never read
    assert "" not in looks


async def test_a_notice_is_unread_until_it_is_acked(sessions: Sessions) -> None:
    await sessions.succeed()
    (notice,) = await sessions.told(1)
    assert await sessions.notices(unread=True) == [notice]
    assert [await sessions.ack(notice["notification_id"]) for _ in range(2)] == [200, 200]
    assert await sessions.notices(unread=True) == []
    assert await sessions.notices() == [{**notice, "read": True}]
    assert await sessions.ack("notif-nobody-knows") == 404
    assert await sessions.ack(notice["notification_id"], session="s2") == 404


async def test_polling_is_counted(sessions: Sessions) -> None:
    await sessions.succeed()
    await sessions.told(1)
    before = await sessions.metric("onward_notifications_delivered_total", how="poll")
    await sessions.notices()
    assert await sessions.metric("onward_notifications_delivered_total", how="poll") == before + 1


def a_notice(number: int, at: int = NOW) -> StoredNotification:
    id_ = f"notif-{number:06}"
    notification = Notification(
        notification_id=id_,
        type="task_completed",
        task_id="t",
        task_type="mail",
        message="",
        action="",
        timestamp=AT,
        priority="normal",
    )
    return StoredNotification(notification, at, at)


@pytest.fixture
def many(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> NotificationStore:
    monkeypatch.setattr(store, "MOST", 10)
    monkeypatch.setattr(store, "SLACK", 5)
    return sessions.app.onward.notifications


async def test_notices_come_in_pages(sessions: Sessions) -> None:
    for number in range(5):
        await sessions.app.onward.notifications.add("s1", a_notice(number))
    seen: list[str] = []
    cursor: dict[str, str | None] = {}
    for _ in range(3):
        path = "/api/v2/sessions/s1/notifications"
        page = (await sessions.app.get(path, params={"limit": 2, **cursor})).json()
        seen += [item["notification_id"] for item in page["items"]]
        cursor = {"cursor": page["next"]}
    assert seen == [f"notif-{number:06}" for number in (4, 3, 2, 1, 0)]
    assert cursor == {"cursor": None}


async def test_of_too_many_the_oldest_that_were_read_go_first(many: NotificationStore) -> None:
    for number in range(16):
        await many.add("s1", a_notice(number))
        await many.trim("s1")
        if number in (3, 7):
            await many.acknowledge("s1", f"notif-{number:06}")
    left = [int(kept.id.removeprefix("notif-")) for kept in await many.list("s1")]
    assert left == [4, 5, 6, *range(8, 16)]


async def test_a_notice_past_its_time_is_gone(sessions: Sessions, many: NotificationStore) -> None:
    await many.add("s1", a_notice(1))
    sessions.app.clock.advance(KEPT_MS)
    assert await many.list("s1") == []
    await many.add("s1", a_notice(2, sessions.app.clock.now()))
    await many.trim("s1")
    found = await sessions.app.onward.backend.documents.list("notice:s1", now=NOW)
    assert [document.key for document in found] == ["notif-000002"]
