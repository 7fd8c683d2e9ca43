"""How a node's call becomes a task: its payload, as its service wants it, and its tries."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onward.core.policy import overrides_of
from onward.flow.executor import _budget
from tests.runs.flow_app import FlowApp, call, chain

GREET = {"type": "object", "properties": {"name": {}, "greeting": {}}, "required": ["name"]}
ANY = {"name": "any", "task_types": ["greet"]}


def declared(schema: Any) -> Any:
    return {"name": "greeter", "task_types": ["greet"], "schema": {"greet": schema}}


CALLED = {"input": "Ada", "params": {"greeting": "hi", "else": 1}}


@pytest.mark.contract("S4-5", "S4-7")
@pytest.mark.parametrize(
    ("service", "given", "payload"),
    [
        (None, "Ada", CALLED),
        (ANY, "Ada", CALLED),
        (declared({"properties": {"input": {}, "params": {}}}), "Ada", CALLED),
        (declared(True), "Ada", CALLED),
        (declared({"type": "string"}), "Ada", "Ada"),
        (declared(GREET), "Ada", {"name": "Ada", "greeting": "hi"}),
        (declared({"properties": {"first": {}}}), "Ada", {"first": "Ada"}),
        (declared(GREET), {"name": "Bob", "greeting": "yo"}, {"name": "Bob", "greeting": "yo"}),
        (declared(GREET), None, {"greeting": "hi"}),
    ],
)
async def test_a_call_is_shaped_as_its_service_declares(
    flows: FlowApp, service: Any, given: Any, payload: Any
) -> None:
    if service is not None:
        assert (await flows.app.post("/api/v2/services", service)).status_code == 201
    worker = await flows.app.worker(group=None, services=["greet"])
    params = {"greeting": "hi", "else": 1}
    run = await flows.start(
        chain(("a", call("greet", "$shared.given", "out", params=params))), shared={"given": given}
    )
    frame = await worker.task()
    assert frame["payload"] == payload
    await worker.answer(frame["taskId"], "hello")
    assert (await flows.ended(run))["shared"]["out"] == "hello"
    ((told,),) = await flows.trail(run, "exec_input_json")
    assert json.loads(told) == payload


def test_tries_are_counted_by_worker_and_bounded() -> None:
    def budget(
        tries: int = 1, workers: int = 1, wait_ms: int = 0, attempt_delay_ms: int = 0
    ) -> Any:
        return overrides_of(_budget(tries, workers, wait_ms, attempt_delay_ms, in_turn=False))

    one = budget()
    assert (one.max_retries, one.backoff_ms, one.tries_each) == (0, None, 1)
    some = budget(tries=2, workers=3, wait_ms=5, attempt_delay_ms=70)
    assert (some.max_retries, some.tries_each) == (5, 2)
    assert some.backoff_ms == (5, 70, 5, 70, 5)
    most = budget(tries=1001, workers=1000, wait_ms=5)
    assert most.max_retries == 1_000_999
    assert len(most.backoff_ms) < 5_000, "a plan that long is not written down for each call"
