"""Dead letters over HTTP: grouped by what they died of, replayed at a pace, given up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward.core.task import Lane, State
from onward.native.dead_letters import SHOWN, merged
from onward.services.privacy import MASK
from tests.running_app import App, SocketWorker

GROUP = {
    "fingerprint", "kind", "message", "count", "first_at", "last_at", "types", "sample", "task_ids",
}  # fmt: skip
PATH = "/api/v2/dead-letters"
DONE: dict[str, Any] = {"refused": [], "refused_count": 0, "sample": []}  # and nothing to tell of


async def a_worker(app: App) -> SocketWorker:
    return await app.worker(group=None, services=["mail", "greet", "pay"])


async def died(app: App, worker: SocketWorker, error: str = "no such address", **body: Any) -> str:
    """The id of a task that this worker has just failed for good."""
    kind = body.pop("kind", "InvalidInput")
    task = (await app.post("/api/v2/tasks", {"type": "mail", **body})).json()
    frame = await worker.task()
    assert frame["taskId"] == task["id"]
    await worker.answer(task["id"], error=error, errorType=kind)
    await app.settled()
    id: str = task["id"]
    return id


async def state_of(app: App, id: str) -> tuple[str, int]:
    task = await app.task(id)
    return task["state"], task["generation"]


async def dead(app: App, query: str = "") -> list[dict[str, Any]]:
    page = (await app.get(f"{PATH}{query}")).json()
    assert page["next"] is None
    items: list[dict[str, Any]] = page["items"]
    return items


@pytest.mark.contract("N-5", "S1-7", "S1-10")
async def test_dead_letters_are_grouped_by_what_they_died_of(app: App) -> None:
    worker = await a_worker(app)
    began = app.clock.now()
    first = await died(app, worker, "order 17 has no address")
    app.clock.advance(1_000)
    second = await died(app, worker, "order 18 has no address", type="greet")
    app.clock.advance(1_000)
    other = await died(app, worker, "not allowed", kind="PermissionDenied")

    newest, group = await dead(app)
    assert set(group) == GROUP
    assert (group["count"], group["types"], group["kind"]) == (2, ["greet", "mail"], "InvalidInput")
    assert group["message"] == "order 18 has no address", "the newest one's"
    assert (group["first_at"], group["last_at"]) == (began, began + 1_000)
    assert group["task_ids"] == [second, first]
    assert group["sample"] == await app.task(second)
    assert (newest["count"], newest["task_ids"]) == (1, [other])

    page = (await app.get(PATH, params={"fingerprint": group["fingerprint"]})).json()
    assert [task["id"] for task in page["items"]] == [second, first]
    assert page["items"][0] == group["sample"]
    only = await dead(app, "?type=greet")
    assert [(one["count"], one["task_ids"]) for one in only] == [(1, [second])]


@pytest.mark.contract("N-5")
async def test_a_group_shows_its_ten_newest_and_counts_them_all(app: App) -> None:
    worker = await a_worker(app)
    ids = []
    for _ in range(12):
        ids.append(await died(app, worker))
        app.clock.advance(1)
    (group,) = await dead(app)
    assert (group["count"], group["task_ids"]) == (12, ids[:1:-1])
    first = (await app.get(PATH, params={"fingerprint": group["fingerprint"], "limit": 8})).json()
    assert [task["id"] for task in first["items"]] == ids[:3:-1]
    assert first["next"] is not None


@pytest.mark.contract("N-5", "S1-10")
async def test_a_replay_keeps_the_id_and_begins_a_new_generation(app: App) -> None:
    worker = await a_worker(app)
    id = await died(app, worker, payload={"to": ""})
    body = {"ids": [id], "payload": {"to": "ada"}}
    done = await app.post(f"{PATH}/replay", body)
    assert (done.status_code, done.json()) == (
        200, {**DONE, "matched": 1, "replayed": 1, "until": None},
    )  # fmt: skip
    frame = await worker.task()
    assert (frame["taskId"], frame["payload"]) == (id, {"to": "ada"})
    await worker.answer(id, "sent")
    await app.settled()
    assert await state_of(app, id) == ("succeeded", 2)
    assert await dead(app) == []


@pytest.mark.contract("N-5", "S1-10")
async def test_what_is_no_dead_letter_is_refused_and_the_rest_goes_on(app: App) -> None:
    worker = await a_worker(app)
    id = await died(app, worker)
    alive = await app.submit("later", delay_ms=9)
    for verb, did, after in (("replay", "replayed", "running"), ("abandon", "abandoned", "failed")):
        if verb == "abandon":
            await worker.answer((await worker.task())["taskId"], error="no", errorType="NotFound")
            await app.settled()
        done = (await app.post(f"{PATH}/{verb}", {"ids": [alive, id, "nobody", id]})).json()
        assert (done["matched"], done[did]) == (3, 1)
        assert {one["id"]: one["reason"] for one in done["refused"]} == {
            alive: "a task that is scheduled is no dead letter",
            "nobody": "no such task",
        }
        await app.settled()
        assert (await state_of(app, id))[0] == after


@pytest.mark.contract("N-5", "S1-10")
async def test_a_filter_says_which_and_an_empty_one_means_all(app: App) -> None:
    worker = await a_worker(app)
    mails = [await died(app, worker, payload={"n": n}) for n in range(2)]
    await died(app, worker, "rude", type="greet", kind="PermissionDenied")
    fingerprint = next(group for group in await dead(app) if "mail" in group["types"])[
        "fingerprint"
    ]

    async def matched(**filter: str) -> int:
        body = {"filter": filter, "dry_run": True}
        done = (await app.post(f"{PATH}/replay", body)).json()
        assert (done["replayed"], done["refused"]) == (0, [])
        gone = (await app.post(f"{PATH}/abandon", body)).json()
        assert (gone["abandoned"], gone["matched"]) == (0, done["matched"])
        return int(done["matched"])

    assert await matched() == 3
    assert await matched(fingerprint=fingerprint) == 2
    assert await matched(type="greet") == 1
    assert await matched(queue="mail", q='"n":1') == 1
    assert await matched(type="greet", fingerprint=fingerprint) == 0
    assert len(await dead(app)) == 2, "a dry run changes nothing"

    gone = (await app.post(f"{PATH}/abandon", {"filter": {"fingerprint": fingerprint}})).json()
    assert (gone["matched"], gone["abandoned"], gone["refused"]) == (2, 2, [])
    assert [await state_of(app, id) for id in mails] == [("failed", 1)] * 2
    events = await app.events(mails[0])
    assert [event["type"] for event in events][-3:] == ["task.failed", "task.dlq", "task.abandoned"]
    rest = (await app.post(f"{PATH}/replay", {"filter": {}})).json()
    assert (rest["matched"], rest["replayed"]) == (1, 1)


@pytest.mark.contract("N-5", "S1-10")
async def test_a_rate_stands_in_the_ledger_and_needs_no_keeper(app: App) -> None:
    worker = await a_worker(app)
    ids = [await died(app, worker) for _ in range(4)]
    now = app.clock.now()
    done = (await app.post(f"{PATH}/replay", {"filter": {}, "rate": 2})).json()
    assert done == {**DONE, "matched": 4, "replayed": 4, "until": now + 1_500}
    await app.settled()
    tasks = [await app.task(id) for id in ids]
    assert [task["state"] for task in tasks] == ["running"] + ["scheduled"] * 3
    assert [task["run_at"] for task in tasks] == [None, now + 500, now + 1_000, now + 1_500]
    for id in ids:
        assert (await worker.task())["taskId"] == id, "the oldest first"
        assert worker.pending() == 0
        await worker.answer(id, "ok")
        await app.advance(500)


@pytest.mark.contract("N-5", "S1-10")
async def test_two_who_replay_the_same_death_make_one_generation(app: App) -> None:
    worker = await a_worker(app)
    ids = [await died(app, worker) for _ in range(3)]
    await worker.close()
    answers = await asyncio.gather(
        app.post(f"{PATH}/replay", {"ids": ids}),
        app.post(f"{PATH}/replay", {"filter": {}}),
        app.post(f"/api/v2/tasks/{ids[0]}/retry", None),
    )
    replayed = sum(answer.json()["replayed"] for answer in answers[:2])
    assert replayed + (answers[2].status_code == 200) == 3
    assert [await state_of(app, id) for id in ids] == [("queued", 2)] * 3


@pytest.mark.contract("N-5")
async def test_many_are_worked_on_in_chunks(app: App) -> None:
    worker = await app.worker(group=None, services=["mail"], concurrency=700)
    await asyncio.gather(*[app.post("/api/v2/tasks", {"type": "mail"}) for _ in range(600)])
    for _ in range(600):
        await worker.answer((await worker.task())["taskId"], error="no", errorType="NotFound")
    counts = app.onward.backend.tasks.counts
    async with asyncio.timeout(30):
        while (await counts()).get(("mail", Lane.PRIMARY, State.DEAD)) != 600:
            await app.settled()
    (group,) = await dead(app)
    assert group["count"] == 600
    await worker.close()
    done = (await app.post(f"{PATH}/replay", {"filter": {}})).json()
    assert (done["matched"], done["replayed"]) == (600, 600)
    assert await dead(app) == []
    assert sum((await counts()).values()) == 600


async def fingerprint(app: App) -> str:
    (group,) = await dead(app)
    return str(group["fingerprint"])


async def payload_of(app: App, id: str) -> Any:
    return (await app.task(id))["payload"]


@pytest.mark.contract("N-5", "S1-10")
async def test_a_group_of_one_is_replayed_with_another_payload(app: App) -> None:
    worker = await a_worker(app)
    id = await died(app, worker, payload={"to": "?"})
    body = {"filter": {"fingerprint": await fingerprint(app)}, "payload": {"to": "ada"}}
    done = (await app.post(f"{PATH}/replay", body)).json()
    assert (done["matched"], done["replayed"], done["refused"]) == (1, 1, [])
    assert (await worker.task())["payload"] == {"to": "ada"}
    assert await state_of(app, id) == ("running", 2)


@pytest.mark.contract("N-5", "S1-10")
@pytest.mark.parametrize("by", ["ids", "filter"])
async def test_one_payload_is_for_all_of_them(app: App, by: str) -> None:
    worker = await a_worker(app)
    ids = [await died(app, worker, payload={"n": n}) for n in range(3)]
    await worker.close()
    chosen: dict[str, Any] = {"ids": ids} if by == "ids" else {"filter": {}}
    done = (await app.post(f"{PATH}/replay", {**chosen, "payload": None})).json()
    assert done["replayed"] == 3
    assert [await payload_of(app, id) for id in ids] == [None] * 3, "null is a payload"


@pytest.mark.contract("N-5", "S1-10")
async def test_a_patch_changes_a_part_of_each(app: App) -> None:
    worker = await a_worker(app)
    first = await died(app, worker, payload={"to": {"name": "a", "town": "b"}, "old": 1})
    second = await died(app, worker, payload=[1])
    await worker.close()
    patch = {"to": {"town": "c"}, "old": None, "new": [1]}
    done = (await app.post(f"{PATH}/replay", {"filter": {}, "patch": patch, "rate": 1})).json()
    assert done["replayed"] == 2
    assert await payload_of(app, first) == {"to": {"name": "a", "town": "c"}, "new": [1]}
    assert await payload_of(app, second) == {"to": {"town": "c"}, "new": [1]}


@pytest.mark.parametrize(
    ("value", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_merge_patch_is_applied_as_its_standard_says(value: Any, patch: Any, result: Any) -> None:
    assert merged(value, patch) == result


@pytest.mark.contract("N-5")
async def test_one_that_does_not_fit_is_refused_and_the_others_go(app: App) -> None:
    worker = await a_worker(app)
    good = await died(app, worker, payload={"n": 1})
    bad = await died(app, worker, payload={"n": "x"})
    other = await died(app, worker, type="greet", payload={"n": "x"})
    await worker.close()
    schema = {"mail": {"properties": {"n": {"type": "integer"}}}}
    service = {"name": "post", "task_types": ["mail"], "schema": schema}
    assert (await app.post("/api/v2/services", service)).status_code == 201
    body = {"filter": {}, "patch": {"m": 2}}
    dry = (await app.post(f"{PATH}/replay", {**body, "dry_run": True})).json()
    assert (dry["matched"], dry["replayed"], dry["refused_count"]) == (3, 0, 1)
    assert [one["id"] for one in dry["refused"]] == [bad]
    assert "does not fit 'mail'" in dry["refused"][0]["reason"]
    assert dry["sample"] == [
        {"id": good, "before": {"n": 1}, "after": {"n": 1, "m": 2}},
        {"id": other, "before": {"n": "x"}, "after": {"n": "x", "m": 2}},
    ]
    assert await state_of(app, good) == ("dead", 1), "a dry run changes nothing"
    done = (await app.post(f"{PATH}/replay", body)).json()
    assert (done["replayed"], done["refused"], done["sample"]) == (2, dry["refused"], [])
    assert await state_of(app, bad) == ("dead", 1)
    assert await payload_of(app, bad) == {"n": "x"}
    assert await state_of(app, good) == ("queued", 2)


@pytest.mark.contract("N-5", "S2-9")
async def test_a_dry_run_masks_as_reading_does_and_a_mask_is_never_replayed(app: App) -> None:
    worker = await a_worker(app)
    ids = [await died(app, worker, payload={"card": f"{n}", "n": n}) for n in range(SHOWN + 1)]
    await worker.close()
    await app.post(
        "/api/v2/services", {"name": "post", "task_types": ["mail"], "sensitive": ["card"]}
    )
    body = {"ids": ids, "patch": {"n": 0}, "dry_run": True}
    seen = (await app.post(f"{PATH}/replay", body, params={"masked": "true"})).json()
    assert len(seen["sample"]) == SHOWN
    assert seen["sample"][1] == {
        "id": ids[1],
        "before": {"card": MASK, "n": 1},
        "after": {"card": MASK, "n": 0},
    }
    plain = (await app.post(f"{PATH}/replay", body)).json()
    assert plain["sample"][1]["after"] == {"card": "1", "n": 0}
    for mended in ({"payload": {"card": MASK, "n": 0}}, {"patch": {"card": MASK}}):
        done = (await app.post(f"{PATH}/replay", {"ids": ids[:2], **mended})).json()
        assert (done["replayed"], done["refused_count"]) == (0, 2)
        assert "is hidden (•••): reveal its value before editing" in done["refused"][0]["reason"]
    assert await state_of(app, ids[0]) == ("dead", 1)


async def test_a_mended_payload_of_a_guarded_task_is_approved_anew(app: App) -> None:
    worker = await a_worker(app)
    body = {"type": "pay", "payload": 1, "requires_approval": True}
    id = await app.submit(**body)
    await app.post(f"/api/v2/approvals/{id}.1/approve", None)
    await worker.answer((await worker.task())["taskId"], error="no", errorType="NotFound")
    await app.settled()
    assert await state_of(app, id) == ("dead", 1)
    done = await app.post(f"{PATH}/replay", {"ids": [id], "payload": 1_000_000})
    assert done.json()["replayed"] == 1
    assert await state_of(app, id) == ("waiting", 2)
    assert worker.pending() == 0


@pytest.mark.contract("N-5")
async def test_a_mended_payload_must_fit_the_schema(app: App) -> None:
    worker = await a_worker(app)
    id = await died(app, worker)
    schema = {"mail": {"type": "object"}}
    service = {"name": "post", "task_types": ["mail"], "schema": schema}
    await app.post("/api/v2/services", service)
    bad = (await app.post(f"{PATH}/replay", {"ids": [id], "payload": 7})).json()
    assert (bad["replayed"], bad["refused"][0]["id"]) == (0, id)
    assert "does not fit 'mail'" in bad["refused"][0]["reason"]
    assert await state_of(app, id) == ("dead", 1)


@pytest.mark.contract("N-5", "N-2")
@pytest.mark.parametrize("verb", ["replay", "abandon"])
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"ids": ["a"], "filter": {}},
        {"filter": {"nonsense": "x"}},
        {"ids": "a"},
        {"ids": [1]},
        {"filter": {}, "rate": 0},
        {"filter": {}, "rate": -1},
        {"filter": {}, "rate": 1e-300},
        {"filter": {}, "dry_run": "yes"},
        {"filter": {}, "payload": 1, "patch": {}},
    ],
)
async def test_what_makes_no_sense_is_refused(app: App, verb: str, body: dict[str, Any]) -> None:
    response = await app.post(f"{PATH}/{verb}", body)
    assert (response.status_code, response.json()["code"]) == (422, "invalid_request")
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.contract("N-5")
async def test_with_no_dead_letters_there_is_nothing_to_do(app: App) -> None:
    assert await dead(app) == []
    assert await dead(app, "?fingerprint=none") == []
    done = (await app.post(f"{PATH}/replay", {"filter": {}, "rate": 1})).json()
    assert (done["matched"], done["replayed"]) == (0, 0)
    assert (await app.post(f"{PATH}/abandon", {"ids": []})).json()["matched"] == 0
