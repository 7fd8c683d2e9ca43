"""Flows whose workers are called over HTTP: retries, the next worker, and being told to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.push.conftest import Exec, PlainWorker, Request
from tests.runs.flow_app import FlowApp, call, chain
from tests.support import wait_until

Hire = Callable[..., Any]


@pytest.fixture
def hire(flows: FlowApp) -> Iterator[Hire]:
    """A worker that listens and has registered for service `work`."""
    with ExitStack() as stack:

        async def hire(answer: Exec, id: str, **more: Any) -> PlainWorker:
            worker = PlainWorker(answer)
            stack.callback(worker.stop)
            body = {"id": id, "url": worker.url, "services": ["work"], **more}
            assert (await flows.app.post("/workers/register", body)).status_code == 200
            return worker

        yield hire


def failing(request: Request) -> Any:
    request.reply(200, b'{"result": null, "error": "not today"}')
    return request


@pytest.mark.contract("S4-5", "S4-6", "S4-11")
async def test_a_worker_is_called_with_input_and_params_and_told_by_url(
    flows: FlowApp, hire: Hire
) -> None:
    worker = await hire(lambda request: request.body["input"] * 2, "w1")
    node = call("work", "$params.n", "out", params={"k": "v"})
    run = await flows.run(chain(("a", node)), params={"n": 21})
    assert run["result"] == {"out": 42}
    (sent,) = worker.calls
    assert (sent.path, sent.body) == ("/exec/work", {"input": 21, "params": {"n": 21, "k": "v"}})
    assert await flows.trail(run["id"], "status", "worker_id", "worker_url") == [
        ("ok", "w1", worker.url)
    ]


@pytest.mark.contract("S4-6", "S4-11", "R-6")
async def test_one_worker_is_tried_again_before_the_next_one_is(flows: FlowApp, hire: Hire) -> None:
    await hire(failing, "w1")
    await hire(lambda request: "done", "w2", load=5)  # the idle one is called first
    node = call("work", output="out", max_retries=1, max_attempts=2)
    run = await flows.run(chain(("a", node)))
    assert run["result"] == {"out": "done"}
    assert await flows.trail(run["id"], "worker_id", "attempt_no", "status", "error_text") == [
        ("w1", 1, "error", "not today"), ("w1", 2, "error", "not today"), ("w2", 3, "ok", ""),
    ]  # fmt: skip


@pytest.mark.contract("R-6", "S4-6")
async def test_an_answer_that_says_4xx_is_not_tried_again(flows: FlowApp, hire: Hire) -> None:
    def refuse(request: Request) -> Any:
        request.reply(400, b'{"error": "no such input"}')
        return request

    worker = await hire(refuse, "w1")
    run = await flows.run(chain(("a", call("work", max_retries=3, max_attempts=3))))
    assert run["state"] == "failed"
    assert len(worker.calls) == 1
    assert "no such input" in (await flows.row(run["id"]))["error_text"]


@pytest.mark.contract("S4-12", "S4-14")
async def test_a_canceled_run_tells_the_worker_that_is_called(flows: FlowApp, hire: Hire) -> None:
    free = threading.Event()

    def slow(request: Request) -> Any:
        free.wait(60)
        return "late"

    worker = await hire(slow, "w1")
    run = await flows.start(chain(("a", call("work"))))
    await wait_until(lambda: worker.calls)
    assert await flows.cancel(run) == "canceling"
    await wait_until(lambda: worker.cancels)
    free.set()
    assert (await flows.ended(run))["state"] == "canceled"
    ((status, worker_id),) = await flows.trail(run, "status", "worker_id")
    assert (status, worker_id) == ("canceled", "w1")
