"""Nodes that wait: for the clock, for an event, for a person."""

from __future__ import annotations

from typing import Any

import pytest

from onward.core.contract import MAX_LETTERS
from onward.core.task import Letter, encode
from onward.flow.runs import QUEUE, SIGNAL
from tests.runs.flow_app import FlowApp, call, chain, edge

HOUR = 3_600_000


def event(**params: Any) -> dict[str, Any]:
    return {"kind": "wait_event", "params": params, "post": {"output_key": "said"}}


def question(**params: Any) -> dict[str, Any]:
    return {"kind": "approval", "params": params}


@pytest.mark.contract("S4-7", "S4-3")
async def test_a_timer_goes_on_when_its_time_has_come(flows: FlowApp) -> None:
    node = {
        "kind": "timer",
        "params": {"delay_ms": 3000},
        "prep": {"input_key": "$params.x"},
        "post": {"action_static": "next", "output_key": "kept"},
    }
    began = flows.app.clock.now()
    run = await flows.start({"start": "t", "nodes": {"t": node}}, params={"x": [1]})
    await flows.until(run)
    assert await flows.rt(run) == {"tm:t": {"start": began}}
    ((status, finished),) = await flows.trail(run, "status", "finished_at")
    assert (status, finished) == ("running", None)
    assert (await flows.row(run))["status"] == "running"
    await flows.later(2999)
    assert (await flows.read(run))["state"] == "waiting"
    await flows.later(1)
    assert (await flows.ended(run))["result"] == {"kept": [1]}
    assert await flows.trail(run, "status", "action", "started_at", "finished_at") == [
        ("ok", "next", began, began + 3000)
    ]


@pytest.mark.contract("S4-10", "S4-7")
@pytest.mark.parametrize(
    "how", [{"name": "w"}, {"key": "flag"}, {"name": "flag"}, {"key": "$shared.flag"}]
)
async def test_a_signal_reaches_its_node_by_name_and_by_key(
    flows: FlowApp, how: dict[str, str]
) -> None:
    run = await flows.start(chain(("w", event(signal_key="$shared.flag"))))
    await flows.until(run)
    assert await flows.rt(run) == {"we:w": {"start": flows.app.clock.now()}}
    response = await flows.signal(run, **how, value={"n": 5})
    assert response.status_code == 200
    assert response.json()["id"] == run
    assert (await flows.ended(run))["result"] == {"flag": {"n": 5}, "said": {"n": 5}}
    ((output,),) = await flows.trail(run, "exec_output_json")
    assert output == '{"n":5}'


@pytest.mark.contract("S4-10")
async def test_a_signal_of_another_name_wakes_nothing(flows: FlowApp) -> None:
    run = await flows.start(chain(("w", event(signal_key="flag"))))
    await flows.until(run)
    await flows.signal(run, name="other")
    await flows.app.settled()
    assert (await flows.until(run))["current_node"] == "w"
    await flows.signal(run, key="flag", value=False)
    await flows.app.settled()
    assert (await flows.until(run))["current_node"] == "w", "that is not what it waits for"
    await flows.signal(run, key="flag", value=7)
    assert (await flows.ended(run))["result"] == {"flag": 7, "said": 7}


@pytest.mark.contract("S4-10")
async def test_a_signal_may_come_before_its_node(flows: FlowApp) -> None:
    await flows.serve()
    run = await flows.start(chain(("a", call("held")), ("w", event(signal_key="flag"))))
    await flows.until(run, lambda run: flows.held)
    await flows.signal(run, key="flag", value="early")
    await flows.app.settled()
    assert (await flows.until(run))["current_node"] == "a"
    await flows.release(flows.held[0])
    assert (await flows.ended(run))["result"] == {"flag": "early", "said": "early"}


@pytest.mark.contract("S4-10")
async def test_an_event_may_be_an_earlier_nodes_work(flows: FlowApp) -> None:
    await flows.serve()
    run = await flows.run(
        chain(("a", call("echo", "$params.x", "flag")), ("w", event(signal_key="$shared.flag"))),
        params={"x": "yes"},
    )
    assert run["result"] == {"flag": "yes", "said": "yes"}


@pytest.mark.contract("S4-10", "S4-6")
@pytest.mark.parametrize(("way", "state"), [("timeout", "succeeded"), (None, "failed")])
async def test_an_event_that_does_not_come_takes_the_edge_timeout(
    flows: FlowApp, way: str | None, state: str
) -> None:
    await flows.serve()
    definition = chain(("w", event(signal_key="flag", timeout_ms=60_000)), ("after", call("echo")))
    definition["nodes"]["late"] = call("upper", "$params.x", "late")
    if way:
        definition["edges"].append(edge("w", way, "late"))
    run = await flows.start(definition, params={"x": "a"})
    await flows.until(run)
    await flows.later(59_999)
    assert (await flows.read(run))["current_node"] == "w"
    await flows.later(1)
    ended = await flows.ended(run)
    assert ended["state"] == state
    assert ended["result"] == ({"late": "A"} if way else None)
    first = (await flows.trail(run))[0]
    assert first == ("w", "error", way or "")


@pytest.mark.contract("S4-10")
async def test_a_signal_to_a_run_that_is_over_or_unknown(flows: FlowApp) -> None:
    run = await flows.start(chain(("w", event(signal_key="flag"))))
    await flows.until(run)
    for body in ({}, {"name": "a", "key": "b"}, {"name": ""}, {"name": "w", "else": 1}):
        assert (await flows.signal(run, **body)).status_code == 422
    await flows.signal(run, name="w")
    await flows.ended(run)
    over = await flows.signal(run, name="w")
    assert (over.status_code, over.json()["code"]) == (409, "conflict")
    assert (await flows.signal("nobody", name="w")).status_code == 404
    assert (await flows.signal(f"{run}-0", name="w")).status_code == 404


@pytest.mark.contract("S4-10", "S4-7", "N-5")
async def test_a_person_is_asked_by_the_inbox_and_approves(flows: FlowApp) -> None:
    await flows.serve()
    ask = {**question(approval_key="$shared.approval", reason="over the limit"), "prep": {
        "input_key": "$params.sum",
    }, "post": {"output_key": "word"}}  # fmt: skip
    run = await flows.start(chain(("ask", ask), ("pay", call("echo", "$params.sum", "paid"))),
                             params={"sum": 5})  # fmt: skip
    await flows.until(run)
    (item,) = await flows.inbox()
    assert item["id"] == f"{run}-0.1"
    assert item["task_id"] == run
    assert (item["status"], item["reason"]) == ("open", "over the limit")
    assert item["payload"]["node"] == "ask"
    assert (item["payload"]["run"], item["payload"]["input"]) == (run, 5)
    assert (await flows.row(run))["status"] == "running"
    assert await flows.trail(run, "node_key", "status") == [("ask", "running")]

    done = await flows.decide(item["id"], "approve", by="ada", comment="fine")
    assert (done.status_code, done.json()["status"], done.json()["task_id"]) == (
        200,
        "approved",
        run,
    )
    ended = await flows.ended(run)
    assert ended["result"] == {
        "approval": "approved",
        "paid": 5,
        "word": {"decision": "approved", "by": "ada", "comment": "fine"},
    }
    assert (await flows.rt(run))["ap:ask"]["decision"] == "approved"
    for verb in ("approve", "reject"):
        assert (await flows.decide(item["id"], verb)).status_code == 409
    assert await flows.inbox() == []
    assert [each["task_id"] for each in await flows.inbox("approved")] == [run]


@pytest.mark.contract("S4-10", "N-5")
@pytest.mark.parametrize("edge_there", [True, False])
async def test_a_rejection_takes_its_edge_or_fails_the_run(
    flows: FlowApp, edge_there: bool
) -> None:
    await flows.serve()
    definition = chain(("ask", question(approval_key="ok")), ("pay", call("echo", output="paid")))
    definition["nodes"]["no"] = call("upper", "$shared.ok", "no")
    if edge_there:
        definition["edges"].append(edge("ask", "rejected", "no"))
    run = await flows.start(definition)
    await flows.until(run)
    (item,) = await flows.inbox()
    assert (await flows.decide(item["id"], "reject", comment="never")).status_code == 200
    ended = await flows.ended(run)
    if edge_there:
        assert (ended["state"], ended["result"]) == (
            "succeeded",
            {"ok": "rejected", "no": "REJECTED"},
        )
    else:
        assert (ended["state"], ended["error"]["kind"]) == ("failed", "Rejected")
        assert ended["error"]["message"] == "node 'ask': never"
    assert [service for service, _, _ in flows.seen] == ["upper"] * edge_there
    assert (await flows.decide(item["id"], "approve")).status_code == 409


@pytest.mark.contract("S4-10")
async def test_nobody_decides_in_time(flows: FlowApp) -> None:
    await flows.serve()
    definition = chain(("ask", question(timeout_ms=HOUR)), ("pay", call("echo")))
    definition["nodes"]["late"] = call("upper", "$params.x", "late")
    definition["edges"].append(edge("ask", "timeout", "late"))
    run = await flows.start(definition, params={"x": "a"})
    await flows.until(run)
    (item,) = await flows.inbox()
    assert item["expires_at"] == flows.app.clock.now() + HOUR
    flows.app.clock.advance(HOUR)
    # Faster than the sweep: past its time nobody can say yes any more.
    assert (await flows.decide(item["id"], "approve")).status_code == 409
    await flows.later(0)
    ended = await flows.ended(run)
    assert (ended["state"], ended["result"]) == ("succeeded", {"late": "A"})
    assert (await flows.trail(run))[0] == ("ask", "error", "timeout")
    assert await flows.inbox() == []


@pytest.mark.contract("S4-10")
@pytest.mark.parametrize(
    ("brought", "way"), [("approved", "yes"), (True, "yes"), ("rejected", "no"), (False, "no")]
)
async def test_a_decision_made_elsewhere_counts_only_if_the_definition_says_so(
    flows: FlowApp, brought: Any, way: str
) -> None:
    await flows.serve()

    def flow(**params: Any) -> dict[str, Any]:
        return {
            "start": "fetch",
            "nodes": {
                "fetch": call("echo", "$params.word", "word"),
                "ask": question(approval_key="$shared.word", **params),
                "yes": call("echo"),
                "no": call("echo"),
            },
            "edges": [
                edge("fetch", "default", "ask"),
                edge("ask", "approved", "yes"),
                edge("ask", "rejected", "no"),
            ],
        }

    run = await flows.run(flow(from_data=True), params={"word": brought})
    assert run["state"] == "succeeded"
    assert (await flows.trail(run["id"]))[-1][0] == way
    assert await flows.inbox() == []
    asked = await flows.start(flow(), params={"word": brought})
    await flows.until(asked, lambda run: run["current_node"] == "ask")
    assert [item["task_id"] for item in await flows.inbox()] == [asked]


async def test_signals_that_pile_up_are_refused_at_the_door(any_flows: FlowApp) -> None:
    flows = any_flows
    run = await flows.start(chain(("w", {"kind": "wait_event", "params": {"signal_key": "go"}})))
    await flows.until(run)
    pauses = flows.app.onward.dispatcher.pressure.pauses
    await pauses.pause(QUEUE)
    body = encode({"name": "noise", "value": 1})
    letters = [Letter(to=run, name=SIGNAL, body=body)] * MAX_LETTERS
    await flows.app.onward.backend.tasks.post(letters, now=flows.app.clock.now())
    refused = await flows.signal(run, key="go", value=1)
    assert refused.status_code == 409
    assert refused.json()["detail"] == "the run has too many signals that it has not read yet"
    assert "onward queue resume flow:runs" in refused.json()["hint"]
    await pauses.resume(QUEUE)
    await flows.until(run, lambda run: run["state"] == "waiting")
    assert (await flows.signal(run, key="go", value=1)).status_code == 200
    assert (await flows.ended(run))["result"] == {"go": 1}
