"""A webhook per task: how it ended, signed, at least once, to allowed hosts alone."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from onward.core.readers import CURSORS
from onward.native.callbacks import TYPE
from tests.agents.test_webhooks import Receive, verified
from tests.push.conftest import PlainWorker, Request, raw
from tests.running_app import App, running_app
from tests.support import wait_until


@pytest.fixture
def receiver() -> Iterator[Receive]:
    with ExitStack() as stack:

        def open_(answer: Any = lambda _: None) -> PlainWorker:
            worker = PlainWorker(answer)
            stack.callback(worker.stop)
            return worker

        yield open_


async def secret(app: App, **headers: str) -> bytes:
    found = (await app.get("/api/v2/me/callback-secret", headers=headers)).json()["secret"]
    return base64.b64decode(found.removeprefix("whsec_"))


async def deliveries(app: App, **query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        await app.get("/api/v2/tasks", params={"type": TYPE, **query})
    ).json()["items"]
    return found


async def finish(app: App, result: Any = "sum", **submit: Any) -> str:
    worker = await app.worker(services=["report"])
    id = await app.submit("report", **submit)
    await worker.answer((await worker.task())["taskId"], result)
    return id


@pytest.mark.every_ledger
@pytest.mark.contract("N-3")
async def test_how_a_task_ended_is_posted_signed_as_its_owner_sees_it(
    app: App, receiver: Receive
) -> None:
    hook = receiver()
    url = f"{hook.url}/done"
    id = await finish(app, {"total": 3}, payload={"n": 1}, callback_url=url)
    await wait_until(lambda: hook.calls)
    (call,) = hook.calls
    assert (call.path, call.headers["content-type"]) == ("/done", "application/json")
    assert call.headers["webhook-id"] == f"{id}.1"
    assert verified(call, await secret(app))
    shown = await app.task(id)
    assert call.body == {**shown, "payload": None}
    assert (shown["callback_url"], call.body["result"]) == (url, {"total": 3})
    assert await wait_until(lambda: deliveries(app, state="succeeded"))


@pytest.mark.every_ledger
@pytest.mark.contract("N-3")
async def test_a_failure_and_each_replay_are_posted_under_ids_of_their_own(
    app: App, receiver: Receive
) -> None:
    hook = receiver()
    worker = await app.worker(services=["pay"])
    id = await app.submit("pay", callback_url=hook.url)
    await worker.answer((await worker.task())["taskId"], error="no", errorType="InvalidInput")
    await wait_until(lambda: len(hook.calls) == 1)
    await app.post(f"/api/v2/tasks/{id}/retry", None)
    await worker.answer((await worker.task())["taskId"], "paid")
    await wait_until(lambda: len(hook.calls) == 2)
    assert [call.headers["webhook-id"] for call in hook.calls] == [f"{id}.1", f"{id}.2"]
    first, second = [call.body for call in hook.calls]
    assert (first["state"], first["generation"]) == ("dead", 1)
    assert first["error"]["message"] == "no"
    assert (second["state"], second["result"]) == ("succeeded", "paid")


@pytest.mark.contract("N-3")
async def test_a_receiver_that_is_away_is_tried_again(receiver: Receive) -> None:
    answers = [503, 200]

    def answer(request: Request) -> Any:
        return raw(answers.pop(0))(request)

    async with running_app() as app:
        hook = receiver(answer)
        await finish(app, callback_url=hook.url)
        await wait_until(lambda: deliveries(app, state="scheduled"))
        await app.advance(5_000)
        await wait_until(lambda: deliveries(app, state="succeeded"))
        first, second = hook.calls
        assert first.headers["webhook-id"] == second.headers["webhook-id"]
        assert first.body == second.body


@pytest.mark.contract("N-3")
@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://10.1.2.3/x", "callback_url: 10.1.2.3 is not among the hosts"),
        ("http://169.254.169.254/latest", "is not among the hosts"),
        ("ftp://127.0.0.1/x", "callback_url: it must begin with http:// or https://"),
        ("http://user:pw@127.0.0.1/", "callback_url: it must not have a user name"),
    ],
)
async def test_an_address_that_is_not_allowed_is_refused_at_submission(url: str, why: str) -> None:
    async with running_app() as app:
        response = await app.post("/api/v2/tasks", {"type": "report", "callback_url": url})
        assert response.status_code == 422
        assert why in response.json()["detail"]
        assert response.json()["errors"][0]["pointer"] == "/callback_url"
        assert (await app.get("/api/v2/tasks")).json()["items"] == []


async def test_events_that_are_read_again_post_nothing_twice(receiver: Receive) -> None:
    async with running_app() as app:
        hook = receiver()
        await finish(app, callback_url=hook.url)
        await wait_until(lambda: deliveries(app, state="succeeded"))
        tail = app.onward._calling_back._tail
        tail._cursor = ""  # as after a crash before the cursor was written
        await tail.catch_up()
        assert len(await deliveries(app)) == 1
        assert len(hook.calls) == 1


async def test_without_callbacks_nothing_reads_the_log_for_them() -> None:
    async with running_app() as app:
        await finish(app)
        documents, now = app.onward.backend.documents, app.clock.now()
        assert await documents.get(CURSORS, "callbacks", now=now) is None


async def test_a_replay_that_overtakes_the_delivery_is_posted_in_its_place(
    receiver: Receive,
) -> None:
    answers = [503, 200, 200]
    async with running_app() as app:
        hook = receiver(lambda request: raw(answers.pop(0))(request))
        worker = await app.worker(services=["pay"])
        id = await app.submit("pay", callback_url=hook.url)
        await worker.answer((await worker.task())["taskId"], error="no", errorType="InvalidInput")
        await wait_until(lambda: deliveries(app, state="scheduled"))
        await app.post(f"/api/v2/tasks/{id}/retry", None)
        frame = await worker.task()
        await app.advance(5_000)
        (skipped,) = await wait_until(lambda: deliveries(app, state="succeeded"))
        assert skipped["result"] == {"skipped": "replayed since"}
        await worker.answer(frame["taskId"], "paid")
        await wait_until(lambda: len(hook.calls) == 2)
        assert hook.calls[1].headers["webhook-id"] == f"{id}.2"


@pytest.mark.contract("N-3", "K-5")
async def test_each_key_has_a_secret_of_its_own(receiver: Receive) -> None:
    async with running_app() as app:
        made = await app.post("/api/v2/keys", {"name": "root", "scopes": ["admin"]})
        root = {"authorization": f"Bearer {made.json()['token']}"}
        body = {"name": "ann", "scopes": ["submit"]}
        token = (await app.post("/api/v2/keys", body, headers=root)).json()["token"]
        ann = {"authorization": f"Bearer {token}"}
        assert await secret(app, **ann) != await secret(app, **root)
        assert await secret(app, **ann) == await secret(app, **ann)
        hook = receiver()
        sent = {"type": "report", "callback_url": hook.url}
        task = (await app.post("/api/v2/tasks", sent, headers=ann)).json()["id"]
        await app.post(f"/api/v2/tasks/{task}/cancel", None, headers=ann)
        await wait_until(lambda: hook.calls)
        assert hook.calls[0].body["state"] == "canceled"
        assert verified(hook.calls[0], await secret(app, **ann))
        assert not verified(hook.calls[0], await secret(app, **root))
        assert (await app.get("/api/v2/me/callback-secret")).status_code == 401


@pytest.mark.contract("N-3")
async def test_its_owner_gets_sensitive_parts_unmasked(receiver: Receive) -> None:
    async with running_app() as app:
        hook = receiver()
        declared = {"name": "report", "task_types": ["report"], "sensitive": ["/result/iban"]}
        await app.post("/api/v2/services", declared)
        await finish(app, {"iban": "DE1"}, callback_url=hook.url)
        await wait_until(lambda: hook.calls)
        assert hook.calls[0].body["result"] == {"iban": "DE1"}


@pytest.mark.contract("N-3")
async def test_the_same_key_with_another_callback_is_refused(receiver: Receive) -> None:
    async with running_app() as app:
        hook = receiver()
        body = {"type": "report", "idempotency_key": "once", "callback_url": hook.url}
        assert (await app.post("/api/v2/tasks", body)).status_code == 202
        assert (await app.post("/api/v2/tasks", body)).status_code == 202
        other = await app.post("/api/v2/tasks", {**body, "callback_url": f"{hook.url}/x"})
        assert other.status_code == 422


@pytest.mark.contract("N-5")
async def test_a_run_is_posted_when_it_is_over(receiver: Receive) -> None:
    async with running_app() as app:
        hook = receiver()
        definition = {"start": "ask", "nodes": {"ask": {"kind": "approval"}}, "edges": []}
        flow = {"name": "ask", "definition": definition}
        assert (await app.post("/api/v2/flows", flow)).status_code in (200, 201)
        sent = {"flow": "ask", "callback_url": hook.url}
        run = (await app.post("/api/v2/runs", sent)).json()["id"]
        await app.settled()
        assert hook.calls == []
        await app.post(f"/api/v2/runs/{run}/cancel", None)
        await wait_until(lambda: hook.calls)
        assert hook.calls[0].headers["webhook-id"] == f"{run}.1"
