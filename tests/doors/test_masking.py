"""Sensitive parts: masked for whoever asks for it, quoted in no refusal, never handed in again."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from onward import Worker
from onward.core.errors import Invalid
from onward.doors.route import converted
from onward.services.privacy import MASK
from onward.wire.tasks import Submit
from tests.running_app import App, SocketWorker, running_app
from tests.runs.flow_app import call, chain
from tests.support import wait_until

SECRET = "4111-1111"
CARD = {"card": {"number": SECRET, "kind": "visa"}, "amount": 7}
SEEN = {"card": {"number": MASK, "kind": "visa"}, "amount": 7}
MASKED = {"masked": "true"}
SERVICE = {
    "name": "pay",
    "task_types": ["pay"],
    "sensitive": ["card.number", "/receipt"],
    "schema": {
        "pay": {
            "type": "object",
            "properties": {
                "card": {"type": "object", "properties": {"number": {"type": "string"}}},
                "amount": {"type": "integer"},
            },
            "required": ["card"],
        }
    },
}


@pytest.fixture
async def app() -> AsyncIterator[App]:
    async with running_app() as opened:
        answer = await opened.post("/api/v2/services", SERVICE)
        assert answer.status_code == 201, answer.text
        yield opened


async def submitted(app: App, **more: Any) -> str:
    return await app.submit("pay", payload=CARD, **more)


async def worked(app: App, task: str) -> SocketWorker:
    """A worker has said something on the way, and is done."""
    worker = await app.worker(group=None, services=["pay"])
    assert (await worker.task())["taskId"] == task
    chunk = {"type": "chunk", "taskId": task, "data": {"card": {"number": SECRET}}}
    await worker.send(chunk)
    await worker.send({**chunk, "data": f"charging {SECRET}"})
    await worker.answer(task, {"receipt": SECRET, "amount": 7})
    await app.get(f"/api/v2/tasks/{task}", params={"wait_ms": 5000})
    return worker


async def read(app: App, path: str, **params: Any) -> Any:
    answer = await app.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.contract("S2-9", "N-11")
async def test_the_page_sees_a_mask_and_the_caller_what_is_theirs(app: App) -> None:
    task = await submitted(app)
    await worked(app, task)
    theirs = await read(app, f"/api/v2/tasks/{task}")
    assert (theirs["payload"], theirs["result"]) == (CARD, {"receipt": SECRET, "amount": 7})
    seen = await read(app, f"/api/v2/tasks/{task}", **MASKED)
    assert (seen["payload"], seen["result"]) == (SEEN, {"receipt": MASK, "amount": 7})
    assert {**seen, "payload": 0, "result": 0} == {**theirs, "payload": 0, "result": 0}
    for params in ({}, {"id": task}, {"q": "visa"}):
        (row,) = (await read(app, "/api/v2/tasks", **params, **MASKED))["items"]
        assert row == seen


@pytest.mark.contract("S2-9", "N-4")
async def test_events_are_masked_as_json_and_as_they_happen(app: App) -> None:
    task = await submitted(app)
    await worked(app, task)
    path = f"/api/v2/tasks/{task}/events"

    def chunks(events: list[dict[str, Any]]) -> list[Any]:
        return [event["data"] for event in events if event["type"] == "task.chunk"]

    async def followed(**params: Any) -> list[Any]:
        stream = await app.get(path, params=params, headers={"accept": "text/event-stream"})
        lines = [line[6:] for line in stream.text.splitlines() if line.startswith("data: ")]
        return chunks([json.loads(line) for line in lines])

    real = [{"card": {"number": SECRET}}, f"charging {SECRET}"]
    seen = [{"card": {"number": MASK}}, MASK]
    assert chunks((await read(app, path))["items"]) == seen, "the log is masked unless it is asked"
    assert chunks((await read(app, path, masked=False))["items"]) == real
    assert await followed(masked=True) == seen
    assert await followed() == seen, "as they come no less than as a log"
    assert await followed(masked=False) == real, "who follows their own task reads what it puts out"


@pytest.mark.contract("S2-9")
async def test_dead_letters_approvals_and_schedules_are_masked_too(app: App) -> None:
    dies = await submitted(app, max_retries=0)
    worker = await app.worker(group=None, services=["pay"])
    await worker.task()
    await worker.answer(dies, error="no", status=400)
    await app.get(f"/api/v2/tasks/{dies}", params={"wait_ms": 5000})
    await worker.close()
    await submitted(app, requires_approval=True)
    schedule = {"name": "rent", "type": "pay", "payload": CARD, "every_ms": 3_600_000}
    assert (await app.post("/api/v2/schedules", schedule)).status_code == 201
    groups = await read(app, "/api/v2/dead-letters", **MASKED)
    fingerprint = groups["items"][0]["fingerprint"]
    assert groups["items"][0]["sample"]["payload"] == SEEN
    paths = [
        f"/api/v2/dead-letters?fingerprint={fingerprint}",
        "/api/v2/approvals",
        f"/api/v2/approvals/{(await read(app, '/api/v2/approvals'))['items'][0]['id']}",
        "/api/v2/schedules",
        "/api/v2/schedules/rent",
        f"/api/v2/tasks/{dies}",
    ]
    for path in paths:
        whole, seen = await app.get(path), await app.get(_masked(path))
        assert SECRET in whole.text, path
        assert seen.status_code == 200, seen.text
        assert SECRET not in seen.text, path
        assert MASK in seen.text, path


def _masked(path: str) -> str:
    return f"{path}{'&' if '?' in path else '?'}masked=true"


@pytest.mark.contract("S2-9")
async def test_in_a_flow_it_is_masked_wherever_it_went(app: App) -> None:
    definition = chain(("a", call("pay", "$params", "out")))
    made = await app.post("/api/v2/flows", {"name": "order", "definition": definition})
    assert made.status_code == 200, made.text
    due = {"name": "rent", "flow": "order", "params": CARD, "every_ms": 3_600_000}
    assert (await app.post("/api/v2/schedules", due)).status_code == 201
    for path in ("/api/v2/schedules", "/api/v2/schedules/rent"):
        assert SECRET in (await app.get(path)).text
        shown = (await app.get(_masked(path))).text
        assert (SECRET in shown, MASK in shown) == (False, True), path
    worker = await app.worker(group=None, services=["pay"])
    run = await app.post("/api/v2/runs", {"flow": "order", "params": CARD})
    assert run.status_code == 202, run.text
    task = (await worker.task())["taskId"]
    await worker.answer(task, {"receipt": SECRET})
    id = run.json()["id"]
    await app.get(f"/api/v2/runs/{id}", params={"wait_ms": 5000})
    for path in (
        f"/api/v2/runs/{id}",
        "/api/v2/runs",
        f"/api/v2/tasks/{id}",
        f"/api/v2/tasks/{task}",
    ):
        assert SECRET in (await app.get(path)).text, path
        seen = await app.get(path, params=MASKED)
        assert seen.status_code == 200
        assert SECRET not in seen.text, path
    assert SECRET not in (await app.get(f"/api/v2/tasks/{id}/events", params=MASKED)).text
    shared = (await app.get(f"/api/v2/runs/{id}", params=MASKED)).json()["shared"]
    refusals = {
        "/shared": await app.post(
            f"/api/v2/runs/{id}/fork", {"from_node": "a", "shared": {"out": shared["out"]}}
        ),
        "/params": await app.post("/api/v2/runs", {"flow": "order", "params": SEEN}),
        "/payload": await app.post(
            f"/api/v2/tasks/{task}/retry", {"payload": {"input": SEEN, "params": {}}}
        ),
    }
    for at, refused in refusals.items():
        assert refused.status_code == 422, refused.text
        assert refused.json()["errors"][0]["pointer"].startswith(at)
        assert "is hidden" in refused.json()["detail"]


@pytest.mark.contract("S2-9")
async def test_a_mask_is_not_approved_over_what_a_flow_asks_about(app: App) -> None:
    ask = {"kind": "approval", "prep": {"input_key": "$params"}}
    made = await app.post("/api/v2/flows", {"name": "order", "definition": chain(("ask", ask))})
    assert made.status_code == 200, made.text
    run = await app.post("/api/v2/runs", {"flow": "order", "params": {"deep": [CARD]}})
    assert run.status_code == 202, run.text
    asked = await wait_until(lambda: _asked(app))
    assert SECRET not in json.dumps(asked)
    path = f"/api/v2/approvals/{asked['id']}/approve"
    refused = await app.post(path, {"payload": asked["payload"]})
    assert refused.status_code == 422, refused.text
    (fault,) = refused.json()["errors"]
    assert fault["pointer"] == "/payload/input/deep/0/card/number"
    assert "is hidden" in fault["message"]
    assert (await app.post(path, None)).status_code == 200


async def _asked(app: App) -> dict[str, Any]:
    items = (await read(app, "/api/v2/approvals", **MASKED))["items"]
    found: dict[str, Any] = items[0] if items else {}
    return found


@pytest.mark.contract("S2-9")
@pytest.mark.parametrize("payload", [{"card": {"number": 41111111}}, {"card": 41111111}, 41111111])
async def test_a_refusal_does_not_quote_what_is_sensitive(app: App, payload: Any) -> None:
    answer = await app.post("/api/v2/tasks", {"type": "pay", "payload": payload})
    assert answer.status_code == 422
    assert "41111111" not in answer.text
    assert "does not fit 'pay'" in answer.json()["detail"], "it still says where and why"
    open_ = {**SERVICE, "name": "open", "task_types": ["open"], "sensitive": []}
    open_["schema"] = {"open": SERVICE["schema"]["pay"]}  # type: ignore[index]
    await app.post("/api/v2/services", open_)
    quoted = await app.post("/api/v2/tasks", {"type": "open", "payload": {"card": 41111111}})
    assert "41111111" in quoted.json()["detail"], "others' mistakes are shown as they are"


@pytest.mark.contract("S2-9")
async def test_a_mask_is_never_written_over_what_it_hides(app: App) -> None:
    task = await submitted(app, requires_approval=True)
    asked = (await read(app, "/api/v2/approvals", **MASKED))["items"][0]
    refusals = [
        await app.post("/api/v2/tasks", {"type": "pay", "payload": SEEN}),
        await app.post(f"/api/v2/approvals/{asked['id']}/approve", {"payload": asked["payload"]}),
        await app.post(
            "/api/v2/schedules", {"name": "x", "type": "pay", "payload": SEEN, "every_ms": 60_000}
        ),
    ]
    await app.post(f"/api/v2/tasks/{task}/cancel", None)
    refusals.append(await app.post(f"/api/v2/tasks/{task}/retry", {"payload": SEEN}))
    for refused in refusals:
        assert refused.status_code == 422, refused.text
        assert refused.json()["errors"][0]["pointer"] == "/payload/card/number"
        assert "masked=false" in refused.json()["hint"]
    assert (await read(app, f"/api/v2/tasks/{task}"))["payload"] == CARD
    retried = await app.post(f"/api/v2/tasks/{task}/retry", None)
    assert retried.status_code == 200
    assert retried.json()["payload"] == CARD


@pytest.mark.contract("N-11")
async def test_a_path_that_is_none_is_refused_when_it_is_declared(app: App) -> None:
    body = {**SERVICE, "sensitive": ["card.number", "people[*].email"]}
    refused = await app.post("/api/v2/services", body)
    assert refused.status_code == 422
    assert refused.json()["errors"] == [
        {"pointer": "/sensitive/1", "message": "'people[*].email' is no path into a payload"}
    ]
    assert "people.*.email" in refused.json()["hint"]


async def test_who_declares_nothing_is_not_looked_into(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = await app.post("/api/v2/tasks", {"type": "plain", "payload": CARD})

    def forbidden(*_: object) -> None:
        raise AssertionError("nothing is sensitive here")

    monkeypatch.setattr("onward.services.privacy.mask_task", forbidden)
    monkeypatch.setattr("onward.services.privacy.mask_event", forbidden)
    path = f"/api/v2/tasks/{answer.json()['id']}"
    assert (await read(app, path, **MASKED))["payload"] == CARD
    assert (await read(app, f"{path}/events", **MASKED))["items"]


async def test_whatever_was_declared_before_paths_were_checked_is_hidden_whole(app: App) -> None:
    documents, now = app.onward.backend.documents, app.clock.now()
    old = {"name": "old", "task_types": ["old"], "sensitive": ["what[0]"]}
    await documents.put("service", "old", json.dumps(old), now=now)
    app.clock.advance(2_000)
    answer = await app.post("/api/v2/tasks", {"type": "old", "payload": CARD})
    seen = await read(app, f"/api/v2/tasks/{answer.json()['id']}", **MASKED)
    assert seen["payload"] == MASK


async def test_the_example_of_the_document_does_what_it_says(app: App) -> None:
    text = (Path(__file__).parents[2] / "docs" / "operations" / "privacy.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    made: dict[str, Any] = {"__name__": "example"}
    exec(code, made)  # noqa: S102 it is ours
    (service,) = made["worker"].services.values()
    await app.post("/api/v2/services", service.declaration())
    payload = {"card": {"number": SECRET}, "people": [{"email": "a@b.c", "n": 1}], "amount": 3}
    task = await app.submit("pay", payload=payload)
    seen = (await read(app, f"/api/v2/tasks/{task}", **MASKED))["payload"]
    assert seen["card"] == {"number": MASK}
    assert seen["people"] == [{"email": MASK, "n": 1}]
    assert seen["amount"] == 3


@pytest.mark.contract("N-11")
def test_the_sdk_refuses_a_path_that_is_none_where_it_is_written() -> None:
    worker = Worker()
    with pytest.raises(ValueError, match="no path into a payload"):

        @worker.service(sensitive=("card[0]",))
        def pay(card: str) -> str:
            return card

    @worker.service(sensitive="card")
    def charge(card: str) -> str:
        return card

    assert worker.services["charge"].sensitive == ("card",), "one path may come alone"


def test_an_error_that_may_be_logged_does_not_quote_the_input() -> None:
    with pytest.raises(Invalid) as refused:
        converted({"type": "pay", "payload": SECRET, "priority": SECRET}, Submit)
    assert refused.value.pointer == "/priority"
    assert SECRET not in repr(refused.value)
    assert SECRET not in str(refused.value)
