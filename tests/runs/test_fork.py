"""A fork begins with the state before its node, and never behind what was undone unless told to."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runs.flow_app import FlowApp, call, chain, edge


async def fork(flows: FlowApp, run: str, node: str, **body: Any) -> Any:
    return await flows.app.post(f"/api/v2/runs/{run}/fork", {"from_node": node, **body})


async def forked(flows: FlowApp, run: str, node: str, **body: Any) -> Any:
    response = await fork(flows, run, node, **body)
    assert response.status_code in (200, 202), response.text
    return await flows.ended(response.json()["id"])


def reserve() -> Any:
    return call("add", "n", "n", compensate={"service": "echo"})


@pytest.mark.contract("N-5")
async def test_a_fork_behind_a_node_that_was_undone_is_refused(any_flows: FlowApp) -> None:
    flows = any_flows
    await flows.serve()
    run = await flows.run(chain(("a", reserve()), ("b", reserve()), ("ship", call("broken"))))
    assert run["state"] == "failed"
    refused = await fork(flows, run["id"], "ship")
    assert refused.status_code == 409
    assert refused.json()["detail"] == (
        "a, b were undone since, and a fork from 'ship' would not do them again"
    )
    assert "'a'" in refused.json()["hint"]
    assert "--anyway" in refused.json()["hint"]
    refused = await fork(flows, run["id"], "b")
    assert refused.json()["detail"].startswith("a was undone since, and a fork from 'b'")
    assert (await forked(flows, run["id"], "ship", anyway=True))["state"] == "failed"
    made = len(flows.seen)
    await forked(flows, run["id"], "a")
    assert [seen[0] for seen in flows.seen[made:]] == ["add", "add", "broken", "echo", "echo"]


ASK = {"kind": "approval"}


@pytest.mark.contract("N-5")
@pytest.mark.parametrize("verb", [None, "reject"])
async def test_a_fork_does_not_pass_an_approval_that_was_not_given(
    any_flows: FlowApp, verb: str | None
) -> None:
    flows = any_flows
    await flows.serve()
    run = await flows.start(
        chain(("a", call("add")), ("ask", ASK), ("pay", call("echo")), ("ship", call("echo")))
    )
    await flows.until(run, lambda found: found["current_node"] == "ask")
    if verb is not None:
        (asked,) = await flows.inbox()
        assert (await flows.decide(asked["id"], verb)).status_code == 200
        assert (await flows.ended(run))["state"] == "failed"
    for node in ("pay", "ship"):
        refused = await fork(flows, run, node)
        assert (refused.status_code, refused.json()["detail"]) == (
            409,
            f"ask was not approved, and a fork from {node!r} would not ask",
        )
        assert "--from ask" in refused.json()["hint"]
        assert "--anyway" in refused.json()["hint"]
    assert (await fork(flows, run, "ask")).status_code in (200, 202)
    assert (await forked(flows, run, "pay", anyway=True))["state"] == "succeeded"


async def test_a_fork_goes_on_behind_an_approval_that_was_given(flows: FlowApp) -> None:
    await flows.serve()
    run = await flows.start(
        chain(("ask", ASK), ("a", call("broken")), ("b", call("broken")), ("c", call("echo")))
    )
    await flows.until(run, lambda found: found["current_node"] == "ask")
    (asked,) = await flows.inbox()
    await flows.decide(asked["id"], "approve")
    await flows.ended(run)
    again = await forked(flows, run, "b")
    assert again["state"] == "failed"
    assert (await forked(flows, again["id"], "c"))["state"] == "succeeded", "a fork of a fork"


@pytest.mark.contract("N-5")
async def test_a_fork_with_another_state_does_not_use_the_approval_of_the_old_one(
    flows: FlowApp,
) -> None:
    await flows.serve()
    run = await flows.start(chain(("ask", ASK), ("pay", call("echo"))))
    await flows.until(run, lambda found: found["current_node"] == "ask")
    (asked,) = await flows.inbox()
    await flows.decide(asked["id"], "approve")
    await flows.ended(run)
    refused = await fork(flows, run, "pay", shared={"amount": 999_999})
    assert (refused.status_code, refused.json()["detail"]) == (
        409,
        "ask was not approved with this state, and a fork from 'pay' would not ask",
    )
    assert (await fork(flows, run, "ask", shared={"amount": 999_999})).status_code in (200, 202)
    changed = await forked(flows, run, "pay", shared={"amount": 999_999}, anyway=True)
    assert changed["state"] == "succeeded"
    assert (await forked(flows, run, "pay"))["state"] == "succeeded", "as it was approved"


def asking_inside() -> dict[str, Any]:
    inner = chain(("x", call("broken")), ("ask", ASK), ("y", call("echo")))
    return chain(
        ("a", call("add")), ("s", {"kind": "subflow", "subflow": inner}), ("z", call("echo"))
    )


@pytest.mark.parametrize("node", ["s/y", "z"])
async def test_a_fork_does_not_pass_an_approval_in_a_subflow(flows: FlowApp, node: str) -> None:
    await flows.serve()
    run = await flows.run(asking_inside())
    refused = await fork(flows, run["id"], node)
    assert (refused.status_code, "s/ask was not approved" in refused.json()["detail"]) == (
        409,
        True,
    )
    assert (await fork(flows, run["id"], "s/ask")).status_code in (200, 202)


async def test_a_fork_beside_an_approval_needs_none(flows: FlowApp) -> None:
    await flows.serve()
    definition = chain(("a", call("broken")), ("b", call("echo")))
    definition["nodes"] |= {"ask": ASK, "pay": call("echo")}
    definition["edges"] += [edge("b", "other", "ask"), edge("ask", "default", "pay")]
    run = await flows.run(definition)
    assert (await forked(flows, run["id"], "b"))["state"] == "succeeded"


async def test_a_node_that_is_not_there_is_refused_with_those_that_are(flows: FlowApp) -> None:
    await flows.serve()
    run = await flows.run(chain(("a", call("add")), ("b", call("add"))))
    refused = await fork(flows, run["id"], "c")
    assert (refused.status_code, refused.json()["detail"]) == (422, "no node 'c'; there are a, b")
    assert refused.json()["hint"] == f"onward run show {run['id']}"


async def test_a_fork_of_a_run_that_undid_nothing_needs_no_word(flows: FlowApp) -> None:
    await flows.serve()
    run = await flows.run(chain(("a", reserve()), ("b", call("add", "n", "m"))))
    assert (await forked(flows, run["id"], "b"))["result"] == {"n": 1, "m": 2}


async def test_a_fork_is_refused_while_the_run_still_undoes(flows: FlowApp) -> None:
    await flows.serve()
    slow = {"service": "held"}
    run = await flows.start(
        chain(
            ("a", reserve()), ("b", call("add", "n", "n", compensate=slow)), ("c", call("broken"))
        )
    )
    await flows.until(run, lambda _: flows.held)
    refused = await fork(flows, run, "c")
    assert refused.json()["detail"].startswith("a, b were undone since")
    await flows.release(flows.held[0])
    await flows.ended(run)


@pytest.mark.contract("N-5", "S4-14")
async def test_a_fork_begins_with_the_state_before_its_node(any_flows: FlowApp) -> None:
    flows = any_flows
    await flows.serve()
    run = await flows.run(chain(*((key, call("add", "n", "n")) for key in "abc")))
    assert run["result"] == {"n": 3}
    again = await forked(flows, run["id"], "b")
    assert again["result"] == {"n": 3}, "and not one more for each node that is done again"


async def test_a_node_that_was_not_reached_begins_with_the_state_as_it_is(flows: FlowApp) -> None:
    await flows.serve()
    definition = chain(("a", call("add", "n", "n")), ("b", call("broken")), ("c", call("add", "n")))
    run = await flows.run(definition)
    assert (await forked(flows, run["id"], "c"))["result"] == {"n": 1}


def nested(last: str = "add") -> dict[str, Any]:
    inner = chain(("x", call("add", "n", "n")), ("y", call(last, "n", "n")))
    middle = chain(
        ("in", {"kind": "subflow", "subflow": inner, "prep": {"input_map": {"n": "n"}},
                "post": {"output_map": {"n": "n"}}}),
        ("w", call("add", "n", "n")),
    )  # fmt: skip
    around = {
        "kind": "subflow",
        "subflow": middle,
        "prep": {"input_map": {"n": "n"}},
        "post": {"output_map": {"n": "n"}},
    }
    return chain(("a", call("add", "n", "n")), ("s", around), ("z", call("add", "n", "n")))


@pytest.mark.contract("N-5", "S4-14")
@pytest.mark.parametrize(
    ("node", "calls"), [("s/in/y", 3), ("s/in/x", 4), ("s/w", 2), ("s/in", 4), ("s", 4), ("z", 1)]
)
async def test_a_fork_begins_inside_subflows_with_their_states(
    flows: FlowApp, node: str, calls: int
) -> None:
    await flows.serve()
    run = await flows.run(nested())
    assert run["result"] == {"n": 5}
    made = len(flows.seen)
    response = await fork(flows, run["id"], node)
    assert response.json()["current_node"].startswith(node)
    ended = await flows.ended(response.json()["id"])
    assert ended["result"] == {"n": 5}
    assert len(flows.seen) - made == calls
    told = (await flows.app.get(f"/api/v2/runs/{ended['id']}/shared")).json()
    assert (told["exact"], told["after"]) == (True, {"n": 5})


async def test_a_state_that_is_given_is_that_of_the_nodes_own_graph(flows: FlowApp) -> None:
    await flows.serve()
    run = await flows.run(nested("broken"))
    ended = await forked(flows, run["id"], "s/in/x", shared={"n": 10})
    assert (ended["state"], ended["error"]["message"]) == ("failed", "node 's/in/y': it broke")
    run = await flows.run(nested())
    assert (await forked(flows, run["id"], "s/in/y", shared={"n": 10}))["result"] == {"n": 13}


async def test_a_fork_of_a_fork_begins_inside_as_well(flows: FlowApp) -> None:
    await flows.serve()
    run = await flows.run(nested())
    first = await forked(flows, run["id"], "s/in/y")
    assert (await forked(flows, first["id"], "s/w"))["result"] == {"n": 5}


async def test_a_subflow_that_was_not_entered_has_no_state_to_begin_with(flows: FlowApp) -> None:
    await flows.serve()
    definition = nested()
    definition["nodes"]["a"] = call("broken")
    run = await flows.run(definition)
    refused = await fork(flows, run["id"], "s/w")
    assert (refused.status_code, refused.json()["hint"]) == (409, "fork from 's'")


async def test_a_state_that_is_not_known_is_not_guessed(flows: FlowApp) -> None:
    await flows.serve()
    run = await flows.run(chain(("a", call("add", "n", "n")), ("b", call("add", "n", "n"))))
    store, now = flows.app.onward.backend.tasks, flows.app.clock.now()
    assert await store.purge([f"{run['id']}-0"], now=now) == 1
    refused = await fork(flows, run["id"], "b")
    assert refused.status_code == 409
    assert refused.json()["detail"] == (
        "the state before 'b' is not known: 'n', because the record of its call is gone"
    )
    assert (await forked(flows, run["id"], "b", shared={"n": 6}))["result"] == {"n": 7}


async def test_a_node_that_is_not_there_is_told_from_those_that_are(flows: FlowApp) -> None:
    await flows.serve()
    definition = nested()
    definition["edges"].append(edge("a", "error", "z"))
    run = await flows.run(definition)
    refused = await fork(flows, run["id"], "s/none")
    assert refused.status_code == 422
    assert "there are a, s, s/in, s/in/x, s/in/y, s/w, z" in refused.text
