"""Many tasks in one request, and batches: counts, waiting, and what comes of their end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from onward.native.batch_view import QUEUE
from onward.native.batches import OPEN_MS
from tests.push.conftest import PlainWorker
from tests.running_app import App, SocketWorker
from tests.support import wait_until

BATCH = "/api/v2/tasks/batch"


def some(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"type": "report", "payload": {"n": n}, **more} for n in range(count)]


async def hand_in(app: App, tasks: list[Any], **batch: Any) -> dict[str, Any]:
    body = {"tasks": tasks, **({"batch": batch} if batch else {})}
    response = await app.post(BATCH, body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def look(app: App, id: str, **query: Any) -> dict[str, Any]:
    found: dict[str, Any] = (await app.get(f"/api/v2/batches/{id}", params=query)).json()
    return found


async def finish(app: App, count: int, worker: SocketWorker | None = None) -> None:
    worker = worker or await app.worker(services=["report"], concurrency=count)
    for _ in range(count):
        await worker.answer((await worker.task())["taskId"], "done")


async def over(app: App, id: str) -> dict[str, Any]:
    async def ended() -> dict[str, Any] | None:
        found = await look(app, id)
        return found if found["finished_at"] else None

    found: dict[str, Any] | None = await wait_until(ended)
    assert found is not None
    return found


@pytest.mark.every_ledger
@pytest.mark.contract("B-1")
async def test_many_tasks_are_taken_in_one_request_in_order(app: App) -> None:
    found = await hand_in(app, some(700, tags=["b"]))
    assert found["batch"] is None
    ids = [item["id"] for item in found["items"]]
    assert len(set(ids)) == 700
    assert [(await app.task(id))["payload"] for id in (ids[0], ids[699])] == [{"n": 0}, {"n": 699}]
    worker = await app.worker(services=["report"])
    assert (await worker.task())["taskId"] == ids[0]


@pytest.mark.contract("B-1")
async def test_each_item_is_refused_for_itself_with_a_problem(app: App) -> None:
    body = (
        b'{"tasks": [{"type": "ok"}, {"payload": 1}, {"type": "ok", "wrong": 1}, 7,'
        b'{"type": "ok", "payload": "\\u0000"}, {"type": "flow:runs"}, {"type": "ok", "payload": 1,'
        b'"payload": 2}, {"type": "ok", "priority": "high"}]}'
    )
    items = (await app.http.post(BATCH, content=body)).json()["items"]
    assert ["id" in item for item in items] == [True, *[False] * 6, True]
    faults = [item["error"] for item in items[1:7]]
    assert {fault["status"] for fault in faults} == {422}
    assert {fault["code"] for fault in faults} == {"invalid_request"}
    pointers = [fault.get("errors", [{"pointer": ""}])[0]["pointer"] for fault in faults]
    assert pointers[:2] == ["/type", "/wrong"]
    assert pointers[4] == "/type"


@pytest.mark.contract("B-1")
async def test_a_service_that_refuses_one_takes_the_others(app: App) -> None:
    schema = {"type": "object", "required": ["n"]}
    declared = {"name": "report", "task_types": ["report"], "schema": {"report": schema}}
    await app.post("/api/v2/services", declared)
    found = await hand_in(app, [*some(2), {"type": "report", "payload": {}}])
    assert ["id" in item for item in found["items"]] == [True, True, False]
    assert found["items"][2]["error"]["errors"][0]["pointer"] == "/payload"


@pytest.mark.contract("B-1")
async def test_one_key_is_one_task_and_counts_once(app: App) -> None:
    tasks = [{"type": "pay", "idempotency_key": "k", "payload": n} for n in (1, 1, 2)]
    found = await hand_in(app, tasks, name="pays")
    first, again, other = found["items"]
    assert again["id"] == first["id"]
    assert other["error"]["code"] == "idempotency_key_reused"
    assert (await look(app, found["batch"]))["total"] == 1


@pytest.mark.contract("B-1")
async def test_tasks_come_as_lines_and_the_rest_from_the_query(app: App) -> None:
    lines = "\n".join([json.dumps(task) for task in some(3)] + ["", "{", ""])
    on_complete = json.dumps({"type": "after"})
    response = await app.http.post(
        BATCH,
        content=lines,
        params={"name": "lines", "on_complete": on_complete},
        headers={"content-type": "application/x-ndjson; charset=utf-8"},
    )
    found = response.json()
    assert ["id" in item for item in found["items"]] == [True, True, True, False]
    assert (await look(app, found["batch"]))["name"] == "lines"
    bare = await app.http.post(
        BATCH, content=lines, headers={"content-type": "application/x-ndjson"}
    )
    assert bare.json()["batch"] is None


@pytest.mark.contract("B-1")
@pytest.mark.parametrize(
    ("body", "status", "pointer"),
    [
        (b"{", 400, None),
        (b'{"tasks": 1}', 422, "/tasks"),
        (b"{}", 422, "/tasks"),
        (b'{"tasks": [], "more": 1}', 422, "/more"),
        (b'{"tasks": [], "batch": {"nme": "x"}}', 422, "/batch/nme"),
        (b'{"tasks": [], "batch": {"webhook": "ftp://x"}}', 422, "/batch/webhook"),
        (b'{"tasks": [], "batch": {"on_complete": {"type": "flow:x"}}}', 422,
         "/batch/on_complete/type"),
        (b'{"tasks": [' + b'{"type":"x"},' * 10_000 + b'{"type":"x"}]}', 422, "/tasks"),
    ],
)  # fmt: skip
async def test_what_is_no_such_request_is_refused_as_a_whole(
    app: App, body: bytes, status: int, pointer: str | None
) -> None:
    response = await app.http.post(BATCH, content=body)
    assert response.status_code == status
    if pointer is not None:
        assert response.json()["errors"][0]["pointer"] == pointer
    assert (await app.get("/api/v2/tasks")).json()["items"] == []


@pytest.mark.contract("B-1")
async def test_a_request_may_have_32_mib_and_an_item_1(app: App) -> None:
    large = "x" * (900 << 10)
    tasks = [{"type": "report", "payload": large} for _ in range(3)]
    found = await hand_in(app, [*tasks, {"type": "report", "payload": "x" * (1 << 20)}])
    assert ["id" in item for item in found["items"]] == [True, True, True, False]
    refused = await app.http.post(BATCH, content=b"x", headers={"content-length": str(33 << 20)})
    assert refused.status_code == 413
    elsewhere = await app.http.post("/api/v2/tasks", content=b'"' + b"x" * (2 << 20) + b'"')
    assert elsewhere.status_code == 413


@pytest.mark.every_ledger
@pytest.mark.contract("B-2")
async def test_a_batch_is_counted_and_over_when_its_tasks_are(app: App) -> None:
    found = await hand_in(app, some(3), name="three")
    batch = found["batch"]
    await app.settled()
    shown = await look(app, batch)
    assert (shown["name"], shown["total"], shown["states"]) == ("three", 3, {"queued": 3})
    assert (shown["done"], shown["finished_at"]) == (0, None)
    listed = (await app.get("/api/v2/tasks", params={"batch": batch})).json()["items"]
    assert {task["id"] for task in listed} == {item["id"] for item in found["items"]}
    worker = await app.worker(services=["report"])
    await finish(app, 2, worker)
    last = (await worker.task())["taskId"]
    await wait_until(lambda: _done(app, batch, 2))
    assert (await look(app, batch))["states"] == {"succeeded": 2, "running": 1}
    await app.post(f"/api/v2/tasks/{last}/cancel", None)
    await worker.answer(last, "too late")
    shown = await over(app, batch)
    assert (shown["done"], shown["states"]) == (3, {"succeeded": 2, "canceled": 1})
    waited = await look(app, batch, wait_ms=1_000)
    assert waited == shown
    types = [event["type"] for event in await app.events(batch)]
    assert types.count("batch.finished") == 1


@pytest.mark.every_ledger
@pytest.mark.contract("B-2")
async def test_what_follows_is_submitted_once_and_a_replay_tells_nobody(app: App) -> None:
    worker = await app.worker(services=["report"])
    found = await hand_in(app, some(1), on_complete={"type": "after", "payload": {"of": "b"}})
    id = found["items"][0]["id"]
    await worker.answer((await worker.task())["taskId"], error="no", errorType="InvalidInput")
    shown = await over(app, found["batch"])
    after = await app.task(shown["on_complete"])
    assert (after["type"], after["payload"], after["batch"]) == ("after", {"of": "b"}, None)
    await app.post(f"/api/v2/tasks/{id}/retry", None)
    await worker.answer((await worker.task())["taskId"], "now")
    await wait_until(lambda: _succeeded(app, id))
    assert (await look(app, found["batch"]))["states"] == {"succeeded": 1}
    listed = (await app.get("/api/v2/tasks", params={"type": "after"})).json()["items"]
    assert len(listed) == 1


async def _succeeded(app: App, id: str) -> bool:
    return bool((await app.task(id))["state"] == "succeeded")


@pytest.mark.contract("B-2")
async def test_a_batch_of_which_all_was_refused_is_over_at_once(app: App) -> None:
    found = await hand_in(app, [{"payload": 1}, 7], on_complete={"type": "after"})
    shown = await over(app, found["batch"])
    assert (shown["total"], shown["states"], shown["done"]) == (0, {}, 0)
    assert shown["on_complete"] is not None


@pytest.fixture
def receiver() -> Iterator[Any]:
    with ExitStack() as stack:
        worker = PlainWorker(lambda _: None)
        stack.callback(worker.stop)
        yield worker


@pytest.mark.contract("B-2")
async def test_the_webhook_is_called_with_the_batch_under_its_id(app: App, receiver: Any) -> None:
    found = await hand_in(app, some(2), webhook=f"{receiver.url}/done", name="hooked")
    await finish(app, 2)
    shown = await over(app, found["batch"])
    await wait_until(lambda: receiver.calls)
    (call,) = receiver.calls
    assert (call.path, call.headers["webhook-id"]) == ("/done", f"{found['batch']}.1")
    assert call.body == shown


@pytest.mark.contract("B-2")
async def test_a_session_is_notified_of_the_end(app: App) -> None:
    found = await hand_in(app, some(1), session_id="s")
    await finish(app, 1)
    await over(app, found["batch"])

    async def notified() -> list[Any]:
        page = (await app.get("/api/v2/sessions/s/notifications")).json()["items"]
        return [each for each in page if each["task_id"] == found["batch"]]

    (notice,) = await wait_until(notified)
    assert notice["type"] == "task_completed"


@pytest.mark.contract("B-2")
async def test_more_tasks_join_a_batch_that_is_open(app: App) -> None:
    worker = await app.worker(services=["report"])
    found = await hand_in(app, some(1), name="open", open=True)
    batch = found["batch"]
    await finish(app, 1, worker)
    await wait_until(lambda: _done(app, batch, 1))
    assert (await look(app, batch))["finished_at"] is None
    await hand_in(app, some(1), id=batch)
    await finish(app, 1, worker)
    assert (await over(app, batch))["total"] == 2
    late = await app.post(BATCH, {"tasks": some(1), "batch": {"id": batch}})
    assert late.status_code == 409
    none = await app.post(BATCH, {"tasks": some(1), "batch": {"id": found["items"][0]["id"]}})
    assert none.status_code == 404


async def _done(app: App, batch: str, count: int) -> bool:
    return bool((await look(app, batch))["done"] == count)


@pytest.mark.contract("B-2")
async def test_a_batch_that_nobody_closes_is_over_in_the_end(app: App) -> None:
    found = await hand_in(app, some(1), name="left", open=True)
    await finish(app, 1)
    await app.settled()
    assert (await look(app, found["batch"]))["finished_at"] is None
    await app.advance(OPEN_MS + 1)
    await over(app, found["batch"])


@pytest.mark.contract("B-2")
async def test_what_is_no_batch_is_not_found_as_one(app: App) -> None:
    id = await app.submit("report")
    for each in (id, "none"):
        assert (await app.get(f"/api/v2/batches/{each}")).status_code == 404
    refused = await app.post("/api/v2/tasks", {"type": "report", "queue": QUEUE})
    assert refused.status_code == 422


@pytest.mark.contract("L-8")
async def test_a_unique_task_is_returned_refused_or_replaced(app: App) -> None:
    def body(**unique: Any) -> dict[str, Any]:
        return {"type": "sync", "unique": {"key": "c1", **unique}}

    first = (await app.post("/api/v2/tasks", body())).json()["id"]
    assert (await app.post("/api/v2/tasks", body())).json()["id"] == first
    refused = await app.post("/api/v2/tasks", body(then="refuse"))
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    other = await app.post("/api/v2/tasks", {**body(), "type": "other"})
    assert other.json()["id"] != first
    second = (await app.post("/api/v2/tasks", body(then="replace"))).json()["id"]
    assert (await app.task(first))["state"] == "canceled"
    worker = await app.worker(services=["sync"])
    assert (await worker.task())["taskId"] == second
    queued = await app.post("/api/v2/tasks", body(**{"while": "queued"}))
    assert queued.json()["id"] not in (first, second)


@pytest.mark.contract("L-7")
async def test_a_debounced_task_is_scheduled_and_becomes_the_newest(app: App) -> None:
    def body(n: int, **more: Any) -> dict[str, Any]:
        return {"type": "index", "payload": n, "debounce": {"key": "doc", "ms": 500, **more}}

    first = (await app.post("/api/v2/tasks", body(1, max_ms=800))).json()
    assert first["state"] == "scheduled"
    await app.advance(400)
    second = (await app.post("/api/v2/tasks", {**body(2), "tags": ["new"]})).json()
    assert (second["id"], second["payload"], second["tags"]) == (first["id"], 2, ["new"])
    assert second["run_at"] == first["created_at"] + 800
    assert "task.superseded" in [event["type"] for event in await app.events(first["id"])]
    await app.advance(400)
    worker = await app.worker(services=["index"])
    assert (await worker.task())["payload"] == 2
    third = (await app.post("/api/v2/tasks", body(3))).json()
    assert third["id"] != first["id"]


@pytest.mark.contract("L-7")
@pytest.mark.parametrize("more", [{"delay_ms": 1}, {"requires_approval": True}])
async def test_what_cannot_be_debounced_is_refused(app: App, more: dict[str, Any]) -> None:
    body = {"type": "index", "debounce": {"key": "doc", "ms": 500}, **more}
    assert (await app.post("/api/v2/tasks", body)).status_code == 422


@pytest.mark.contract("K-4", "B-2")
async def test_what_a_batch_will_hand_in_is_masked_as_a_task_of_its_type(app: App) -> None:
    declared = {"name": "pay", "task_types": ["pay"], "sensitive": ["card"]}
    await app.post("/api/v2/services", declared)
    after = {"type": "pay", "payload": {"card": "4111", "of": "b"}}
    found = await hand_in(app, some(1), on_complete=after)
    path = f"/api/v2/tasks/{found['batch']}"
    shown = (await app.get(path, params={"masked": "true"})).json()["payload"]["on_complete"]
    assert shown["payload"] == {"card": "•••", "of": "b"}
    listed = (await app.get("/api/v2/tasks", params={"masked": "true"})).text
    assert "4111" not in listed
    mine = (await app.get(path)).json()["payload"]["on_complete"]
    assert mine["payload"]["card"] == "4111"


@pytest.mark.contract("L-8")
async def test_who_waits_for_a_place_is_told_whose(app: App) -> None:
    worker = await app.worker(services=["sync"])
    body = {"type": "sync", "unique": {"key": "c1", "then": "replace"}}
    first = (await app.post("/api/v2/tasks", body)).json()["id"]
    await worker.task()
    second = (await app.post("/api/v2/tasks", body)).json()
    assert second["state"] == "waiting"
    assert (await worker.receive())["type"] == "cancel"
    explained = (await app.get(f"/api/v2/tasks/{second['id']}/explain")).json()
    assert first in explained["sentence"]
    await worker.answer(first, "stopped")
    assert (await worker.task())["taskId"] == second["id"]


@pytest.mark.every_ledger
@pytest.mark.contract("B-1", "B-2")
async def test_the_same_request_once_more_is_the_same_batch_also_when_it_is_over(app: App) -> None:
    body = {
        "tasks": [{**task, "idempotency_key": f"k{n}"} for n, task in enumerate(some(2))],
        "batch": {"name": "once", "on_complete": {"type": "after"}},
    }
    headers = {"idempotency-key": "the-batch"}
    first = (await app.post(BATCH, body, headers=headers)).json()
    assert (await app.post(BATCH, body, headers=headers)).json() == first
    await finish(app, 2)
    await over(app, first["batch"])
    assert (await app.post(BATCH, body, headers=headers)).json() == first
    assert (await look(app, first["batch"]))["total"] == 2
    listed = (await app.get("/api/v2/tasks", params={"type": "after"})).json()["items"]
    assert len(listed) == 1


@pytest.mark.contract("B-1")
@pytest.mark.parametrize("terms", [{}, {"batch": {"name": "night"}}])
async def test_a_request_with_a_key_hands_each_task_in_once(
    app: App, terms: dict[str, Any]
) -> None:
    tasks = [*some(2), {**some(1)[0], "idempotency_key": "own"}]
    headers = {"idempotency-key": "cut"}
    first = await app.post("/api/v2/tasks/batch", {"tasks": tasks, **terms}, headers=headers)
    again = await app.post("/api/v2/tasks/batch", {"tasks": tasks, **terms}, headers=headers)
    assert first.json() == again.json()
    ids = [item["id"] for item in first.json()["items"]]
    keys = [(await app.task(id))["idempotency_key"] for id in ids]
    assert keys == ["cut:0", "cut:1", "own"]
    other = {"tasks": [{**tasks[0], "payload": "another"}, tasks[1]], **terms}
    changed = (await app.post("/api/v2/tasks/batch", other, headers=headers)).json()["items"]
    assert changed[0]["error"]["code"] == "idempotency_key_reused"
    assert changed[1]["id"] == ids[1]
