"""Whose is what: a session's tasks and notices are its own, and not found by anybody else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.agents.sessions import Sessions


def same(one: Any, other: Any) -> None:
    """Two refusals that nobody can tell apart."""
    bodies = [{**answer.json(), "request_id": ""} for answer in (one, other)]
    assert one.status_code == other.status_code == 404
    assert bodies[0] == bodies[1]


@pytest.mark.contract("S2-9", "N-5")
async def test_another_sessions_task_is_as_good_as_missing(sessions: Sessions) -> None:
    task = await sessions.submit("s1")
    get = sessions.app.get
    own = await get(f"/api/v2/sessions/s1/tasks/{task}")
    assert (own.status_code, own.json()["id"]) == (200, task)
    same(
        await get(f"/api/v2/sessions/s2/tasks/{task}"),
        await get("/api/v2/sessions/s2/tasks/no-such-task"),
    )
    nobodys = await sessions.submit(None)
    same(
        await get(f"/api/v2/sessions/s2/tasks/{nobodys}"),
        await get("/api/v2/sessions/s2/tasks/no-such-task"),
    )


@pytest.mark.contract("S2-9")
async def test_another_sessions_notice_is_as_good_as_missing(sessions: Sessions) -> None:
    await sessions.succeed("s1")
    (notice,) = await sessions.told(1)
    path = "/api/v2/sessions/s2/notifications/{}/ack"
    same(
        await sessions.app.post(path.format(notice["notification_id"]), None),
        await sessions.app.post(path.format("notif-none"), None),
    )
    assert await sessions.notices("s2") == []
    assert (await sessions.notices("s1"))[0]["read"] is False


@pytest.mark.contract("R-8")
async def test_a_sessions_task_is_not_found_at_the_other_doors(sessions: Sessions) -> None:
    task = await sessions.succeed("s1")
    for path in (f"/api/task/{task}", f"/api/v1/tasks/{task}"):
        assert (await sessions.app.get(path)).status_code == 404, path
    assert (await sessions.app.get(f"/tasks/get?id={task}")).status_code == 404
    listed = (await sessions.app.get("/api/v1/tasks/")).json()
    assert task not in str(listed)
    assert (await sessions.app.get(f"/api/v2/tasks/{task}")).status_code == 200


@pytest.mark.contract("N-5", "S2-4")
async def test_a_list_holds_the_sessions_own_by_status(sessions: Sessions) -> None:
    done = await sessions.succeed("s1")
    await sessions.succeed("s2")
    waiting = [await sessions.submit("s1") for _ in range(3)]
    await sessions.submit("s2")

    async def listed(**query: Any) -> list[str]:
        page = await sessions.app.get("/api/v2/sessions/s1/tasks", params=query)
        assert page.status_code == 200, page.text
        return [item["id"] for item in page.json()["items"]]

    assert await listed() == [*reversed(waiting), done]
    assert await listed(status="ALL") == await listed()
    assert await listed(status="PENDING") == [*reversed(waiting)]
    assert await listed(status="completed") == [done]
    assert await listed(status="failed") == []
    assert await listed(state="succeeded") == [done]
    assert await listed(state="succeeded", status="pending") == []
    refused = await sessions.app.get("/api/v2/sessions/s1/tasks?status=asleep")
    assert refused.status_code == 422


async def test_a_page_by_status_ends_where_the_next_begins(sessions: Sessions) -> None:
    pending = []
    for _ in range(3):
        pending.append(await sessions.submit("s1"))
        await sessions.submit("s1", delay_ms=60_000, requires_approval=True)
    seen: list[str] = []
    cursor: dict[str, str] = {}
    for _ in range(10):
        params: dict[str, Any] = {"status": "pending", "limit": 2, **cursor}
        page = (await sessions.app.get("/api/v2/sessions/s1/tasks", params=params)).json()
        seen += [item["id"] for item in page["items"]]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert seen == [*reversed(pending)]


async def test_a_page_is_never_longer_than_asked_for(sessions: Sessions) -> None:
    asked = [await sessions.submit("s1", requires_approval=True) for _ in range(2)]
    await sessions.submit("s1")
    asked.append(await sessions.submit("s1", requires_approval=True))
    query = {"status": "processing", "limit": 2}
    page = (await sessions.app.get("/api/v2/sessions/s1/tasks", params=query)).json()
    assert [item["id"] for item in page["items"]] == [asked[2], asked[1]]
    more = await sessions.app.get(
        "/api/v2/sessions/s1/tasks", params={**query, "cursor": page["next"]}
    )
    assert [item["id"] for item in more.json()["items"]] == [asked[0]]


async def test_a_task_is_submitted_within_its_session(sessions: Sessions) -> None:
    path = "/api/v2/sessions/s1/tasks"
    answer = await sessions.app.post(path, {"type": "report.generate", "timeout_ms": 5_000})
    assert (answer.status_code, answer.json()["session_id"]) == (202, "s1")
    other = await sessions.app.post(path, {"type": "report.generate", "session_id": "s2"})
    assert (other.status_code, other.json()["code"]) == (422, "invalid_request")


@pytest.mark.contract("S2-9")
async def test_an_idempotency_key_is_the_sessions_own(sessions: Sessions) -> None:
    first = await sessions.submit("s1", idempotency_key="k")
    assert await sessions.submit("s1", idempotency_key="k") == first
    others = {await sessions.submit(session, idempotency_key="k") for session in ("s2", None)}
    assert len({first, *others}) == 3


@pytest.mark.parametrize(("session", "status"), [("x" * 129, 422), ("%00", 422), ("%0a", 404)])
async def test_what_is_no_session_id_is_refused(
    sessions: Sessions, session: str, status: int
) -> None:
    answer = await sessions.app.get(f"/api/v2/sessions/{session}/notifications")
    assert answer.status_code == status  # a path has no lines


@pytest.mark.contract("S2-6")
async def test_preferences_are_kept_and_a_secret_is_shown_once(sessions: Sessions) -> None:
    path = "/api/v2/sessions/s1/preferences"
    every = ["task_completed", "task_failed", "task_timeout", "approval_requested"]
    usual = {"push": True, "types": every, "webhook": None, "priority": "normal"}
    assert (await sessions.app.get(path)).json() == usual
    webhook = {"url": "http://127.0.0.1:9/hook"}
    first = (await sessions.prefer(push=False, types=["task_failed"], webhook=webhook)).json()
    secret = first["webhook"].pop("secret")
    assert secret.startswith("whsec_")
    wished = {
        "push": False,
        "types": ["task_failed"],
        "webhook": {**webhook, "types": every},
        "priority": "normal",
    }
    assert first == wished
    assert (await sessions.app.get(path)).json() == wished
    again = await sessions.prefer(push=False, types=["task_failed"], webhook=webhook)
    assert again.json() == wished  # the same URL keeps its secret
    assert (await sessions.app.onward.preferences.get("s1")).webhook.secret == secret  # type: ignore[union-attr]
    assert (await sessions.app.get("/api/v2/sessions/s2/preferences")).json() == usual
    assert (await sessions.prefer()).json() == usual


@pytest.mark.contract("S2-11")
async def test_a_sessions_priority_is_that_of_its_work_that_names_none(sessions: Sessions) -> None:
    app = sessions.app
    assert (await sessions.prefer(priority="high")).json()["priority"] == "high"

    async def priority(path: str, **body: Any) -> str:
        task = (await app.post(path, {"type": "t", **body})).json()["id"]
        return str((await app.get(f"/api/v2/tasks/{task}")).json()["priority"])

    assert await priority("/api/v2/sessions/s1/tasks") == "high"
    assert await priority("/api/v2/tasks", session_id="s1") == "high"
    assert await priority("/api/v2/tasks", session_id="s1", priority="low") == "low"
    assert await priority("/api/v2/tasks", session_id="s2") == "normal"
    assert await priority("/api/v2/tasks") == "normal"
    flow = {"start": "t", "nodes": {"t": {"kind": "timer", "params": {"delay_ms": 1}}}}
    await app.post("/api/v2/flows", {"name": "f", "definition": flow})
    run = (await app.post("/api/v2/runs", {"flow": "f", "session_id": "s1"})).json()["id"]
    assert (await app.get(f"/api/v2/tasks/{run}")).json()["priority"] == "high"
    key = {"session_id": "s1", "idempotency_key": "k"}
    first = (await app.post("/api/v2/tasks", {"type": "t", **key})).json()["id"]
    await sessions.prefer(priority="low")
    again = await app.post("/api/v2/tasks", {"type": "t", **key})
    assert again.json()["id"] == first, "the same request, whatever the session prefers by now"


@pytest.mark.parametrize(
    "wishes",
    [
        {"priority": "urgent"},
        {"types": ["task_exploded"]},
        {"push": "yes"},
        {"nonsense": 1},
        {"webhook": {"url": "http://169.254.169.254/latest"}},
        {"webhook": {"url": "ftp://127.0.0.1/x"}},
        {"webhook": {"url": "http://user:word@127.0.0.1/x"}},
        {"webhook": {"url": "http://127.0.0.1/x", "secret": "whsec_%%%%"}},
        {"webhook": {"url": "http://127.0.0.1/x", "secret": "short"}},
    ],
)
async def test_preferences_that_make_no_sense_are_refused(
    sessions: Sessions, wishes: dict[str, Any]
) -> None:
    answer = await sessions.prefer(**wishes)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert (await sessions.app.get("/api/v2/sessions/s1/preferences")).json()["webhook"] is None


@pytest.mark.contract("S2-9", "S2-10")
async def test_looking_for_another_sessions_task_is_counted(sessions: Sessions) -> None:
    app = sessions.app
    task = await sessions.submit("ada")

    async def count() -> float:
        text = (await app.get("/metrics")).text
        return float(text.split("\nonward_foreign_looks_total ")[1].split("\n")[0])

    before = await count()
    for session in ("eve", "ada"):
        for id in (task, "no-such-task"):
            await app.get(f"/api/v2/sessions/{session}/tasks/{id}")
    asked = {"task_id": task, "session_id": "eve"}
    await app.post("/api/v2/tools/get_task_result_tool", asked)
    assert await count() == before + 2
