"""What somebody who watches over sessions sees: who there is, and what became of each notice."""

from __future__ import annotations

from typing import Any

import pytest

from tests.agents.sessions import Sessions
from tests.agents.test_push import connected
from tests.support import wait_until


async def looked(sessions: Sessions, session: str = "s1") -> dict[str, Any]:
    """Its one notice, as an onlooker sees it."""

    async def there() -> dict[str, Any] | None:
        found = await sessions.notices(session, peek=True)
        return found[0] if found else None

    return await wait_until(there)


async def delivered(sessions: Sessions, session: str = "s1") -> dict[str, Any]:
    async def told() -> dict[str, Any] | None:
        found = await looked(sessions, session)
        return found if found["delivered_by"] else None

    return await wait_until(told)


@pytest.mark.contract("N-5", "N-8")
async def test_sessions_are_listed_with_what_each_has(sessions: Sessions) -> None:
    await sessions.succeed("s1")
    await sessions.submit("s2")
    listener = sessions.listen("s2")
    await connected(sessions, "s2")
    await looked(sessions)
    page = (await sessions.app.get("/api/v2/sessions")).json()
    now = sessions.app.clock.now()
    assert page == {
        "items": [
            {
                "id": "s2",
                "tasks": 1,
                "states": {"queued": 1},
                "unread": 0,
                "connected": 1,
                "last_at": now,
            },
            {
                "id": "s1",
                "tasks": 1,
                "states": {"succeeded": 1},
                "unread": 1,
                "connected": 0,
                "last_at": now,
            },
        ],
        "next": None,
    }
    assert (await sessions.app.get("/api/v2/sessions/s1")).json() == page["items"][1]
    await listener.close()


async def test_sessions_come_in_pages(sessions: Sessions) -> None:
    for name in ("a", "b", "c"):
        await sessions.submit(name)
    first = (await sessions.app.get("/api/v2/sessions?limit=2")).json()
    assert [one["id"] for one in first["items"]] == ["c", "b"]
    second = (await sessions.app.get(f"/api/v2/sessions?limit=2&cursor={first['next']}")).json()
    assert ([one["id"] for one in second["items"]], second["next"]) == (["a"], None)


@pytest.mark.parametrize("query", ["cursor=x", "cursor=-1", "limit=0", "limit=201"])
async def test_a_question_that_makes_no_sense_is_refused(sessions: Sessions, query: str) -> None:
    assert (await sessions.app.get(f"/api/v2/sessions?{query}")).status_code == 422


async def test_an_unused_session_is_not_found(sessions: Sessions) -> None:
    answer = await sessions.app.get("/api/v2/sessions/nobody")
    assert answer.status_code == 404
    assert answer.json()["hint"]


async def test_a_look_delivers_nothing(sessions: Sessions) -> None:
    await sessions.succeed()
    notice = await looked(sessions)
    assert (notice["delivered_by"], notice["delivered_at"], notice["read_at"]) == (None,) * 3
    assert await sessions.metric("onward_notifications_delivered_total", how="poll") == 0
    assert (await looked(sessions))["delivered_by"] is None


@pytest.mark.contract("S2-6")
async def test_the_first_way_a_notice_went_is_kept(sessions: Sessions) -> None:
    listener = sessions.listen()
    await connected(sessions)
    await sessions.succeed()
    await listener.receive()
    pushed = await delivered(sessions)
    assert pushed["delivered_by"] == "websocket"
    assert pushed["delivered_at"] == sessions.app.clock.now()
    sessions.app.clock.advance(1_000)
    await sessions.notices()  # a poll later on changes nothing of it
    assert await looked(sessions) == pushed
    await listener.close()


async def test_a_poll_is_a_delivery_too(sessions: Sessions) -> None:
    await sessions.succeed()
    await sessions.told(1)
    assert (await delivered(sessions))["delivered_by"] == "poll"


async def test_an_acknowledged_notice_says_when(sessions: Sessions) -> None:
    await sessions.succeed()
    (notice,) = await sessions.told(1)
    sessions.app.clock.advance(2_000)
    assert await sessions.ack(notice["notification_id"]) == 200
    seen = await looked(sessions)
    assert seen["read"] is True
    assert seen["read_at"] == seen["delivered_at"] + 2_000


async def test_what_a_tools_answer_told_went_with_it(sessions: Sessions) -> None:
    await sessions.succeed()
    await looked(sessions)
    answer = await sessions.app.post("/api/v2/tools/list_user_tasks_tool?session_id=s1", {})
    assert answer.status_code == 200, answer.text
    told = await delivered(sessions)
    assert (told["delivered_by"], told["read"]) == ("interaction", True)


async def test_an_acknowledgement_meanwhile_is_not_undone_by_the_record(sessions: Sessions) -> None:
    await sessions.succeed()
    await looked(sessions)
    notices = sessions.app.onward.notifications
    (kept,) = await notices.list("s1")
    await notices.acknowledge("s1", kept.id)
    await notices.record("s1", [kept], "websocket")  # as it was read before the word came
    seen = await looked(sessions)
    assert (seen["read"], seen["delivered_by"]) == (True, "websocket")
