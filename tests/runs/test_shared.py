"""GET /api/v2/runs/{id}/shared: the state before and after any step."""

from __future__ import annotations

from typing import Any

import pytest

from onward.flow.nodes.kind import GONE
from tests.runs.flow_app import Broken, FlowApp, call, chain
from tests.support import wait_until

STEPS = chain(
    ("one", call("add", "$shared.n", "n")),
    ("two", call("upper", "$params.text", "text")),
    (
        "three",
        {
            "kind": "foreach",
            "service": "add",
            "prep": {"input_key": "list"},
            "post": {"output_key": "list"},
        },
    ),
)
GIVEN: dict[str, Any] = {"params": {"text": "hi"}, "shared": {"n": 1, "list": [1, 2]}}


async def shared(flows: FlowApp, run: str, at: int | None = None, **more: Any) -> dict[str, Any]:
    query = {**more, **({} if at is None else {"at": at})}
    response = await flows.app.get(f"/api/v2/runs/{run}/shared", params=query)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


@pytest.mark.contract("S4-14")
async def test_every_step_has_the_state_before_and_after(flows: FlowApp) -> None:
    await flows.serve()
    run = (await flows.run(STEPS, **GIVEN))["id"]
    assert await shared(flows, run, 1) == {
        "at": 1,
        "steps": 3,
        "node": "one",
        "kind": "executor",
        "inside": None,
        "before": {"n": 1, "list": [1, 2]},
        "after": {"n": 2, "list": [1, 2]},
        "changed": ["n"],
        "unknown": {},
        "exact": True,
    }
    second, third = await shared(flows, run, 2), await shared(flows, run, 3)
    assert second["before"] == {"n": 2, "list": [1, 2]}
    assert (second["changed"], third["changed"]) == (["text"], ["list"])
    assert third["after"] == {"n": 2, "text": "HI", "list": [2, 3]}
    assert await shared(flows, run) == third


async def test_before_the_first_step_is_what_it_began_with(flows: FlowApp) -> None:
    await flows.serve()
    run = (await flows.run(STEPS, **GIVEN))["id"]
    start = await shared(flows, run, 0)
    assert (start["node"], start["before"], start["after"]) == (None, None, GIVEN["shared"])


async def test_a_run_that_is_at_a_step_has_nothing_after_it(flows: FlowApp) -> None:
    await flows.serve()
    run = await flows.start(chain(("stay", call("held", "$shared.n", "m"))), shared={"n": 1})
    await wait_until(lambda: flows.held)
    now = await shared(flows, run)
    assert (now["at"], now["before"], now["after"], now["exact"]) == (1, {"n": 1}, None, None)


async def test_a_step_that_was_not_made_is_not_found(flows: FlowApp) -> None:
    await flows.serve()
    run = (await flows.run(STEPS, **GIVEN))["id"]
    for path, status in (
        (f"/api/v2/runs/{run}/shared?at=4", 404),
        (f"/api/v2/runs/{run}/shared?at=-1", 422),
        (f"/api/v2/runs/{run}/shared?at=x", 422),
        ("/api/v2/runs/nobody/shared", 404),
    ):
        assert (await flows.app.get(path)).status_code == status, path


async def test_the_result_of_an_erased_call_is_said_to_be_unknown(flows: FlowApp) -> None:
    await flows.serve()
    run = (await flows.run(STEPS, **GIVEN))["id"]
    await flows.app.onward.erase([f"{run}-0"])
    first = await shared(flows, run, 1)
    assert (first["after"], first["unknown"]) == ({"list": [1, 2]}, {"n": GONE.why})
    assert first["changed"] == ["n"]
    assert first["exact"] is None


async def test_a_replayed_run_is_read_from_its_new_beginning(flows: FlowApp) -> None:
    tries: list[Any] = []

    def count(value: Any, _: Any) -> Any:
        tries.append(value)
        return len(tries)

    def second_time(value: Any, _: Any) -> Any:
        if len(tries) == 1:
            raise Broken("not yet", retryable=False)
        return value

    await flows.serve({"count": count, "again": second_time})
    flow = chain(("one", call("count", "$shared.n", "got")), ("two", call("again", "got", "m")))
    run = (await flows.run(flow, shared={"n": 1}))["id"]
    assert (await shared(flows, run))["after"] == {"n": 1, "got": 1}
    assert (await flows.app.post(f"/api/v2/tasks/{run}/retry", None)).status_code < 300
    await flows.ended(run)
    assert (await shared(flows, run))["after"] == {"n": 1, "got": 2, "m": 2}


async def test_what_is_sensitive_is_masked_for_who_asks_so(flows: FlowApp) -> None:
    await flows.serve()
    service = {"name": "vault", "task_types": ["vault"], "sensitive": ["pin"]}
    assert (await flows.app.post("/api/v2/services", service)).status_code == 201
    flow = chain(("one", call("echo", "$shared.card", "copy")))
    run = (await flows.run(flow, shared={"card": {"pin": "1234"}}))["id"]
    plain = await shared(flows, run, 1)
    assert plain["after"]["copy"] == {"pin": "1234"}
    masked = await shared(flows, run, 1, masked=True)
    assert "1234" not in str(masked)
    assert masked["changed"] == ["copy"]
