"""What somebody who watches over sessions sees: who there is, and what became of each notice."""

from __future__ import annotations

from typing import Any

import pytest

from tests.agents.lobby import Lobby, until
from tests.agents.test_push import connected


async def looked(lobby: Lobby, session: str = "s1") -> dict[str, Any]:
    """Its one notice, as an onlooker sees it."""

    async def there() -> dict[str, Any] | None:
        found = await lobby.notices(session, peek=True)
        return found[0] if found else None

    return await until(there)


async def delivered(lobby: Lobby, session: str = "s1") -> dict[str, Any]:
    async def told() -> dict[str, Any] | None:
        found = await looked(lobby, session)
        return found if found["delivered_by"] else None

    return await until(told)


@pytest.mark.contract("N-5", "N-8")
async def test_sessions_are_listed_with_what_each_has(lobby: Lobby) -> None:
    await lobby.succeed("s1")
    await lobby.submit("s2")
    listener = lobby.listen("s2")
    await connected(lobby, "s2")
    await looked(lobby)
    page = (await lobby.house.get("/api/v2/sessions")).json()
    now = lobby.house.clock.now()
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
    assert (await lobby.house.get("/api/v2/sessions/s1")).json() == page["items"][1]
    await listener.close()


async def test_sessions_come_in_pages(lobby: Lobby) -> None:
    for name in ("a", "b", "c"):
        await lobby.submit(name)
    first = (await lobby.house.get("/api/v2/sessions?limit=2")).json()
    assert [one["id"] for one in first["items"]] == ["c", "b"]
    second = (await lobby.house.get(f"/api/v2/sessions?limit=2&cursor={first['next']}")).json()
    assert ([one["id"] for one in second["items"]], second["next"]) == (["a"], None)


@pytest.mark.parametrize("query", ["cursor=x", "cursor=-1", "limit=0", "limit=201"])
async def test_a_question_that_makes_no_sense_is_refused(lobby: Lobby, query: str) -> None:
    assert (await lobby.house.get(f"/api/v2/sessions?{query}")).status_code == 422


async def test_a_session_that_nobody_used_is_not_found(lobby: Lobby) -> None:
    answer = await lobby.house.get("/api/v2/sessions/nobody")
    assert answer.status_code == 404
    assert answer.json()["hint"]


async def test_a_look_delivers_nothing(lobby: Lobby) -> None:
    await lobby.succeed()
    notice = await looked(lobby)
    assert (notice["delivered_by"], notice["delivered_at"], notice["read_at"]) == (None,) * 3
    assert await lobby.metric("onward_notifications_delivered_total", how="poll") == 0
    assert (await looked(lobby))["delivered_by"] is None


@pytest.mark.contract("S2-6")
async def test_the_first_way_a_notice_went_is_kept(lobby: Lobby) -> None:
    listener = lobby.listen()
    await connected(lobby)
    await lobby.succeed()
    await listener.receive()
    pushed = await delivered(lobby)
    assert pushed["delivered_by"] == "websocket"
    assert pushed["delivered_at"] == lobby.house.clock.now()
    lobby.house.clock.advance(1_000)
    await lobby.notices()  # a poll later on changes nothing of it
    assert await looked(lobby) == pushed
    await listener.close()


async def test_a_poll_is_a_delivery_too(lobby: Lobby) -> None:
    await lobby.succeed()
    await lobby.told(1)
    assert (await delivered(lobby))["delivered_by"] == "poll"


async def test_an_acknowledged_notice_says_when(lobby: Lobby) -> None:
    await lobby.succeed()
    (notice,) = await lobby.told(1)
    lobby.house.clock.advance(2_000)
    assert await lobby.ack(notice["notification_id"]) == 200
    seen = await looked(lobby)
    assert seen["read"] is True
    assert seen["read_at"] == seen["delivered_at"] + 2_000


async def test_what_a_tools_answer_told_went_with_it(lobby: Lobby) -> None:
    await lobby.succeed()
    await looked(lobby)
    answer = await lobby.house.post("/api/v2/tools/list_user_tasks_tool?session_id=s1", {})
    assert answer.status_code == 200, answer.text
    told = await delivered(lobby)
    assert (told["delivered_by"], told["read"]) == ("interaction", True)


async def test_an_acknowledgement_meanwhile_is_not_undone_by_the_record(lobby: Lobby) -> None:
    await lobby.succeed()
    await looked(lobby)
    notices = lobby.house.onward.notifications
    (kept,) = await notices.list("s1")
    await notices.acknowledge("s1", kept.id)
    await notices.record("s1", [kept], "websocket")  # as it was read before the word came
    seen = await looked(lobby)
    assert (seen["read"], seen["delivered_by"]) == (True, "websocket")
