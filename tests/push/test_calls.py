"""What is sent to a worker, and what its answers mean (S4-5, R-5, R-6)."""

from __future__ import annotations

from email.utils import formatdate
from typing import Any

import pytest

from onward.faults import LONGEST_DELAY_MS
from tests.push.conftest import (
    Hire,
    Request,
    events,
    raw,
    register,
    run,
    submit,
    until_state,
    wait_until,
)
from tests.running_app import App
from tests.support import bad_json

MOST = 1 << 20


# What is sent.


@pytest.mark.contract("S4-5", "R-1")
@pytest.mark.parametrize(
    ("payload", "sent"),
    [
        ({"input": [1, 2], "params": {"mul": 2}}, {"input": [1, 2], "params": {"mul": 2}}),
        ({"input": None, "params": {}}, {"input": None, "params": {}}),
        ({"text": "hi"}, {"input": {"text": "hi"}, "params": {}}),
        ({"input": 1}, {"input": {"input": 1}, "params": {}}),
        ({"input": 1, "params": 2}, {"input": {"input": 1, "params": 2}, "params": {}}),
        (
            {"input": 1, "params": {}, "more": 3},
            {"input": {"input": 1, "params": {}, "more": 3}, "params": {}},
        ),
        ([1], {"input": [1], "params": {}}),
        (None, {"input": None, "params": {}}),
        ("ünï", {"input": "ünï", "params": {}}),
    ],
)
async def test_a_nodes_payload_goes_as_it_is_and_any_other_as_input(
    app: App, hire: Hire, payload: Any, sent: Any
) -> None:
    worker = hire()
    await register(app, worker)
    found = await run(app, payload)
    assert (found["state"], found["result"]) == ("succeeded", sent["input"])
    (call,) = worker.calls
    assert (call.path, call.body) == ("/exec/echo", sent)
    wrapped = sent is not payload and sent != payload
    assert call.headers.get("x-onward-payload") == ("input" if wrapped else None)


@pytest.mark.contract("S4-5")
async def test_the_call_says_which_task_and_attempt_it_is(app: App, hire: Hire) -> None:
    worker = hire(raw(500))
    await register(app, worker)
    body = {"max_retries": 1, "backoff_ms": [0], "idempotency_key": "order 1"}
    found = await run(app, 1, **body)
    first, second = (call.headers for call in worker.calls)
    assert [first["x-onward-task"], second["x-onward-task"]] == [found["id"]] * 2
    assert [first["x-onward-attempt"], second["x-onward-attempt"]] == ["1", "2"]
    assert int(second["x-onward-fence"]) > int(first["x-onward-fence"])
    assert first["idempotency-key"] == second["idempotency-key"] == "order 1:1"
    assert first["content-type"] == "application/json"

    await app.post(f"/api/v2/tasks/{found['id']}/retry", {})
    await wait_until(lambda: len(worker.calls) > 2)
    assert worker.calls[2].headers["idempotency-key"] == "order 1:2"


@pytest.mark.contract("S4-5")
async def test_a_service_of_any_name_is_one_part_of_the_path(app: App, hire: Hire) -> None:
    worker = hire()
    await register(app, worker, services=["a/b ?#ü"])
    assert (await run(app, 1, type="x", queue="a/b ?#ü"))["state"] == "succeeded"
    assert worker.calls[0].path == "/exec/a%2Fb%20%3F%23%C3%BC"


@pytest.mark.contract("S4-5", "S4-11")
async def test_the_log_says_who_was_called_and_where(app: App, hire: Hire) -> None:
    worker = hire()
    await register(app, worker, id="w1")
    found = await run(app, 1)
    sent = {"worker": "w1", "url": worker.url, "attempt": 1}
    types = [type for type, _ in await events(app, found["id"])]
    assert types == ["task.created", "task.claimed", "task.sent", "task.succeeded"]
    assert await events(app, found["id"], "task.sent") == [("task.sent", sent)]


# What is answered.


@pytest.mark.contract("S4-5", "R-6")
@pytest.mark.parametrize(
    ("body", "result"),
    [
        ({"result": {"a": [1]}, "error": ""}, {"a": [1]}),
        ({"result": None, "error": None}, None),
        ({"result": 7}, 7),
        ({"error": ""}, None),
        ({"result": "x", "error": "", "more": 1}, "x"),
    ],
)
async def test_a_result_in_any_of_its_spellings(
    app: App, hire: Hire, body: Any, result: Any
) -> None:
    await register(app, hire(raw(200, body)))
    found = await run(app)
    assert (found["state"], found["result"]) == ("succeeded", result)


@pytest.mark.contract("S4-5", "R-5", "R-6")
@pytest.mark.parametrize(
    ("answer", "calls", "error"),
    [
        (raw(200, {"result": None, "error": "boom"}), 2, {"kind": "Error", "message": "boom"}),
        (raw(200, {"error": {"a": 1}}), 2, {"kind": "Error", "message": '{"a":1}'}),
        (
            raw(200, {"error": "no", "errorType": "Refused", "retryable": False}),
            1,
            {"kind": "Refused", "message": "no", "retryable": False},
        ),
        (raw(500), 2, {"status": 500, "message": "the worker answered 500 Internal Server Error"}),
        (raw(503, {"error": "busy"}), 2, {"status": 503, "message": "busy"}),
        (raw(599), 2, {"status": 599, "message": "the worker answered 599"}),
        (raw(400, {"error": "bad input"}), 1, {"status": 400, "message": "bad input"}),
        (raw(404, b"<html>"), 1, {"status": 404, "message": "the worker answered 404 Not Found"}),
        (raw(408), 2, {"status": 408}),
        (raw(429), 2, {"status": 429}),
    ],
)
async def test_failures_are_told_apart(
    app: App, hire: Hire, answer: Any, calls: int, error: dict[str, Any]
) -> None:
    worker = hire(answer)
    await register(app, worker)
    found = await run(app, 1, max_retries=1, backoff_ms=[0])
    assert found["state"] == "dead"
    assert error.items() <= found["error"].items()
    assert len(worker.calls) == calls


@pytest.mark.contract("S4-5", "R-5")
@pytest.mark.parametrize(
    "answer",
    [
        *(raw(200, body) for body, _ in bad_json("result")),
        raw(200, b"<html>"),
        raw(200, b"[1]"),
        raw(200, b"{}"),
        raw(200, b'{"result": ' + b"[" * 100_000),
        raw(200, b'{"result": 1, "status": "x"}'),
        raw(200, b'{"result": "' + b"x" * MOST + b'"}'),
        raw(200, b"\x1f\x8b\x08\x00", content_encoding="gzip"),
        raw(204),
        raw(302, location="/exec/elsewhere"),
        raw(304),
    ],
)
async def test_an_answer_that_cannot_be_kept_fails_the_task_for_good(
    app: App, hire: Hire, answer: Any
) -> None:
    """The work may have been done: once more would only do it twice."""
    worker = hire(answer)
    await register(app, worker)
    found = await run(app, 1, max_retries=3, backoff_ms=[0])
    assert (found["state"], found["error"]["kind"]) == ("dead", "InvalidResponse")
    assert len(worker.calls) == 1


@pytest.mark.contract("S4-5")
async def test_a_redirect_is_not_followed(app: App, hire: Hire) -> None:
    elsewhere = hire()
    worker = hire(raw(307, location=f"{elsewhere.url}/exec/echo"))
    await register(app, worker)
    found = await run(app, 1)
    assert "redirect" in found["error"]["message"]
    assert not elsewhere.calls


@pytest.mark.contract("S4-5", "R-5")
async def test_an_answer_without_end_is_cut(app: App, hire: Hire) -> None:
    def pour(request: Request) -> Request:
        request.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        while True:  # until the other side hangs up
            request.write(b" " * 65536)

    await register(app, hire(pour))
    found = await run(app, 1)
    assert found["error"]["message"] == f"the answer is larger than {MOST} bytes"


@pytest.mark.contract("R-5")
@pytest.mark.parametrize("ahead_s", [90, None])
async def test_retry_after_is_honoured(app: App, hire: Hire, ahead_s: int | None) -> None:
    now_s = app.clock.now() / 1000
    after = "90" if ahead_s is None else formatdate(now_s + ahead_s, usegmt=True)
    worker = hire(raw(503, retry_after=after))
    await register(app, worker)
    id = await submit(app, 1, backoff_ms=[10])
    found = await until_state(app, id, "scheduled")
    assert found["run_at"] - app.clock.now() == 90_000


@pytest.mark.contract("R-5")
@pytest.mark.parametrize("after", ["99999999999999999999", "soon", "-5", "Mon, 99 Foo 2099"])
async def test_a_retry_after_beyond_reason_keeps_nobody_for_ever(
    app: App, hire: Hire, after: str
) -> None:
    await register(app, hire(raw(503, retry_after=after)))
    id = await submit(app, 1, backoff_ms=[10])
    found = await until_state(app, id, "scheduled")
    assert 10 <= found["run_at"] - app.clock.now() <= LONGEST_DELAY_MS


@pytest.mark.contract("S4-5", "R-6")
@pytest.mark.parametrize("said", [b"", b'HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{"result"'])
async def test_an_answer_that_breaks_off_is_a_failure_of_that_call(
    app: App, hire: Hire, said: bytes
) -> None:
    """It may have run there: no other worker gets it in the same breath."""

    def break_off(request: Request) -> Request:
        request.write(said)
        request.hang_up()
        return request

    worker, other = hire(break_off), hire()
    await register(app, worker, id="w1")
    await register(app, other, id="w2", load=1)
    id = await submit(app, 1, backoff_ms=[60_000])
    found = await until_state(app, id, "scheduled")
    assert (found["failures"], found["error"]["kind"]) == (1, "NetworkTimeout")
    assert (len(worker.calls), len(other.calls)) == (1, 0)
