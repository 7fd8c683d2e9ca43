"""/api/v2/flows and /api/v2/runs: publish, look, run a chosen version, fork, replay."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runs.flow_app import FlowApp, call, chain, edge
from tests.support import wait_until

SUM = chain(("a", call("add", "$params.n", "out")), ("b", call("add", "out", "sum")))
RUN = {
    "id", "type", "queue", "state", "phase", "payload", "result", "error", "attempt", "generation",
    "created_at", "started_at", "finished_at", "progress", "progress_message", "priority", "worker",
    "run_at", "failures", "retries", "session_id", "owner", "callback_url", "parent_id",
    "idempotency_key", "tags", "batch", "partition", "links", "flow", "flow_version_id", "params",
    "shared", "current_node", "last_action", "step_count", "forked_from", "waiting_for",
}  # fmt: skip


@pytest.mark.contract("N-5")
async def test_a_flow_is_published_listed_and_shown(flows: FlowApp) -> None:
    body = {"name": "sums & co", "definition": SUM}
    made = (await flows.app.post("/api/v2/flows", body)).json()
    flow = made["id"]
    assert (made["version"], made["version_id"]) == (1, f"{flow}-v1")
    assert made["links"]["runs"] == "/api/v2/runs?flow=sums%20%26%20co"
    assert (await flows.app.get(made["links"]["runs"])).json() == {"items": [], "next": None}
    second = await flows.app.post(f"/api/v2/flows/{flow}/versions", {"definition": SUM})
    assert second.json()["version"] == 2
    listed = (await flows.app.get("/api/v2/flows")).json()["items"]
    assert [(each["id"], each["name"], each["version"]) for each in listed] == [
        (flow, "sums & co", 2)
    ]
    shown = (await flows.app.get(f"/api/v2/flows/{flow}")).json()
    assert [each["version"] for each in shown["versions"]] == [2, 1]
    assert shown["definition"] == SUM
    assert [(node["key"], node["start"]) for node in shown["nodes"]] == [("a", True), ("b", False)]
    assert shown["mermaid"].startswith("flowchart TD")
    first = (await flows.app.get(f"/api/v2/flows/{flow}/versions/1")).json()
    assert (first["version"], first["definition"]) == (1, SUM)


@pytest.mark.contract("N-5")
async def test_what_is_wrong_with_a_flow_is_said_in_one_answer(flows: FlowApp) -> None:
    bad = {"start": "a", "nodes": {"a": {"kind": "executor"}, "b": {"kind": "tmer"}}}
    refused = await flows.app.post("/api/v2/flows", {"name": "f", "definition": bad})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
    assert (await flows.app.get("/api/v2/flows")).json()["items"] == [], "nothing is left of it"
    checked = (await flows.app.post("/api/v2/flows/validate", {"definition": bad})).json()
    assert checked["valid"] is False
    assert [(fault["node"], fault["field"]) for fault in checked["faults"]] == [
        ("a", "service"), ("b", "kind"),
    ]  # fmt: skip
    lone = {"start": "a", "nodes": {"a": call("x"), "b": call("x")}}
    fine = (await flows.app.post("/api/v2/flows/validate", {"definition": lone})).json()
    assert (fine["valid"], fine["faults"]) == (True, [])
    assert [each["node"] for each in fine["warnings"]] == ["b"]


@pytest.mark.contract("N-5")
@pytest.mark.parametrize(
    "path",
    ["flows/none", "flows/f/versions/0", "flows/f/versions/2", "runs/none", "runs?flow=none"],
)
async def test_what_is_not_there_is_404(flows: FlowApp, path: str) -> None:
    await flows.publish(SUM)
    response = await flows.app.get(f"/api/v2/{path}")
    assert (response.status_code, response.json()["code"]) == (404, "not_found")


@pytest.mark.contract("N-5", "R-7")
async def test_a_run_is_a_task_with_its_graph_and_its_node_runs(flows: FlowApp) -> None:
    await flows.serve()
    await flows.publish(SUM, "sums")
    body = {"flow": "sums", "params": {"n": 1}, "request_id": "r-1"}
    response = await flows.app.post("/api/v2/runs?wait_ms=5000", body)
    assert response.status_code == 200
    run = response.json()
    assert set(run) == RUN
    assert response.headers["location"] == run["links"]["self"] == f"/api/v2/runs/{run['id']}"
    assert (run["state"], run["result"]) == ("succeeded", {"out": 2, "sum": 3})
    assert (run["flow"], run["idempotency_key"], run["step_count"]) == ("sums", "r-1", 2)
    shown = await flows.read(run["id"])
    assert set(shown) == RUN | {"nodes", "mermaid", "node_runs"}
    assert [(node["key"], node["status"]) for node in shown["nodes"]] == [("a", "ok"), ("b", "ok")]
    assert shown["node_runs"] == await flows.node_runs(run["id"])
    assert (await flows.app.get("/api/v2/runs?flow=sums")).json() == {
        "items": [run], "next": None,
    }  # fmt: skip


@pytest.mark.contract("N-5")
async def test_a_run_that_is_not_over_in_time_is_202_and_its_graph_shows_where_it_is(
    flows: FlowApp,
) -> None:
    await flows.serve()
    await flows.publish(chain(("a", call("echo")), ("b", call("held")), ("c", call("echo"))))
    response = await flows.app.post("/api/v2/runs", {"flow": "f"})
    assert response.status_code == 202
    run = response.json()["id"]
    assert response.headers["location"] == f"/api/v2/runs/{run}"
    shown = await flows.until(run, lambda run: flows.held)
    statuses = [(node["key"], node["status"]) for node in shown["nodes"]]
    assert statuses == [("a", "ok"), ("b", "running"), ("c", None)]


@pytest.mark.contract("N-5", "S4-1")
async def test_an_older_version_may_be_asked_for(flows: FlowApp) -> None:
    await flows.serve()
    flow = await flows.publish(SUM)
    await flows.publish(chain(("only", call("echo"))))
    for version, nodes in ((1, ["a", "b"]), (2, ["only"]), (None, ["only"])):
        body = {"flow": flow, "version": version, "params": {"n": 1}}
        run = (await flows.app.post("/api/v2/runs?wait_ms=5000", body)).json()
        assert run["flow_version_id"] == f"{flow}-v{version or 2}"
        assert [row[0] for row in await flows.trail(run["id"])] == nodes
    missing = await flows.app.post("/api/v2/runs", {"flow": flow, "version": 3})
    assert missing.status_code == 404


@pytest.mark.contract("N-5")
async def test_runs_are_listed_page_by_page(flows: FlowApp) -> None:
    flow = await flows.publish(chain(("t", {"kind": "timer", "params": {"delay_ms": 0}})))
    runs = [await flows.begin(flow) for _ in range(5)]
    for run in runs:
        await flows.ended(run)
    seen: list[str] = []
    path = "/api/v2/runs?limit=2&state=succeeded"
    cursor = ""
    while True:
        page = (await flows.app.get(path + cursor)).json()
        seen += [run["id"] for run in page["items"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert seen == list(reversed(runs))
    assert (await flows.app.get("/api/v2/runs?state=failed")).json()["items"] == []


async def test_runs_are_looked_up_by_their_ids_and_without_what_they_carry(flows: FlowApp) -> None:
    await flows.serve()
    flow = await flows.publish(chain(("a", call("echo", "$params.x", "x"))))
    first, second = [await flows.begin(flow, params={"x": n}) for n in range(2)]
    task = await flows.app.submit("echo")
    for run in (first, second):
        await flows.ended(run)
    query = {"id": [second, task, "nobody"], "brief": True}
    page = (await flows.app.get("/api/v2/runs", params=query)).json()
    (found,) = page["items"]
    assert (found["id"], found["state"], found["flow"]) == (second, "succeeded", "f")
    assert [found[name] for name in ("payload", "result", "params", "shared")] == [None] * 4
    whole = (await flows.app.get("/api/v2/runs", params={"id": first})).json()["items"][0]
    assert (whole["params"], whole["result"]) == ({"x": 0}, {"x": 0})


@pytest.mark.contract("N-5")
async def test_a_fork_goes_on_from_a_node_with_a_mended_state(flows: FlowApp) -> None:
    await flows.serve()
    definition = chain(("a", call("add", "$params.n", "out")), ("b", call("total", "list", "sum")))
    definition["nodes"]["mend"] = call("echo")
    definition["edges"].append(edge("b", "error", "mend"))
    flow = await flows.publish(definition)
    run = await flows.begin(flow, params={"n": 1}, shared={"list": [1, 2], "keep": True})
    before = await flows.ended(run)
    await flows.publish(chain(("other", call("echo"))))
    response = await flows.app.post(
        f"/api/v2/runs/{run}/fork", {"from_node": "b", "shared": {"list": [40, 2]}}
    )
    assert response.status_code == 202
    fork = response.json()
    assert (fork["forked_from"], fork["flow_version_id"]) == (run, f"{flow}-v1")
    assert response.headers["location"] == f"/api/v2/runs/{fork['id']}"
    assert fork["current_node"] == "b"
    ended = await flows.ended(fork["id"])
    assert ended["result"] == {"list": [40, 2], "sum": 42}
    assert [row[0] for row in await flows.trail(fork["id"])] == ["b"]
    as_it_was = await flows.app.post(f"/api/v2/runs/{run}/fork", {"from_node": "b"})
    ended = await flows.ended(as_it_was.json()["id"])
    assert ended["result"] == {"list": [1, 2], "keep": True, "out": 2, "sum": 3}
    assert await flows.read(run) == before, "the first one stays as it is"
    for node in ("nowhere", "a/b", ""):
        refused = await flows.app.post(f"/api/v2/runs/{run}/fork", {"from_node": node})
        assert refused.status_code == 422
    assert (await flows.app.post("/api/v2/runs/none/fork", {"from_node": "a"})).status_code == 404


@pytest.mark.contract("N-5")
async def test_a_failed_run_may_be_run_again_from_its_beginning(flows: FlowApp) -> None:
    await flows.serve()
    tries: list[int] = []

    def once(value: Any, params: Any) -> Any:
        tries.append(1)
        return len(tries)

    await flows.serve({"once": once})
    definition = chain(("a", call("once", output="n")), ("b", call("total", "list", "sum")))
    run = await flows.start(definition, shared={"list": [1, 2]})
    await flows.ended(run)
    assert (await flows.app.post(f"/api/v2/tasks/{run}/retry", {})).status_code == 409
    failing = await flows.run(chain(("a", call("once", output="n")), ("b", call("broken"))))
    again = await flows.app.post(f"/api/v2/tasks/{failing['id']}/retry", {})
    assert again.json()["generation"] == 2
    ended = await flows.ended(failing["id"])
    assert (ended["state"], ended["generation"]) == ("failed", 2)
    assert len(tries) == 3
    rows = await flows.trail(failing["id"], "id", "node_key", "status")
    assert rows == [
        (f"{failing['id']}-g2-0:1", "a", "ok"), (f"{failing['id']}-g2-1:1", "b", "error"),
    ], "of its present life"  # fmt: skip


@pytest.mark.contract("N-5")
@pytest.mark.parametrize("payload", [None, [], {"version": 5}, {"flow": "x"}, {"version": "none"}])
async def test_a_run_replayed_with_nonsense_fails_and_can_be_read(
    flows: FlowApp, payload: Any
) -> None:
    await flows.serve()
    run = (await flows.run(chain(("a", call("broken")))))["id"]
    await flows.app.post(f"/api/v2/tasks/{run}/retry", {"payload": payload})
    ended = await flows.ended(run)
    assert (ended["state"], ended["nodes"]) == ("failed", [])
    row = await flows.row(run)
    assert row["status"] == "failed"
    assert await flows.node_runs(run) == []
    assert (await flows.app.get("/tasks")).json() == [row]
    assert (await flows.app.get("/api/v2/runs")).status_code == 200


@pytest.mark.contract("S2-11", "R-8", "N-5")
async def test_a_sessions_run_notifies_it_and_is_not_found_at_the_flow_centre(
    flows: FlowApp,
) -> None:
    app = flows.app
    await flows.serve()
    await flows.publish(chain(("a", call("upper", "$params.text", "out"))), "report")
    body = {"flow": "report", "params": {"text": "hi"}, "session_id": "ada", "request_id": "r"}
    run = (await app.post("/api/v2/runs?wait_ms=10000", body)).json()
    assert (run["state"], run["result"]) == ("succeeded", {"out": "HI"})
    assert (await app.get(f"/api/v2/runs/{run['id']}")).json()["node_runs"][0]["status"] == "ok"

    async def told() -> Any:
        return (await app.get("/api/v2/sessions/ada/notifications")).json()["items"]

    (notice,) = await wait_until(told)
    assert (notice["type"], notice["task_id"]) == ("task_completed", run["id"])
    for path in ("/tasks/get?id=", "/tasks/runs?task_id="):
        assert (await app.get(path + run["id"])).status_code == 404
    assert (await app.post(f"/tasks/cancel?id={run['id']}", {})).status_code == 404
    assert (await app.get("/tasks")).json() == []
    same = (await app.post("/api/v2/runs?wait_ms=10000", body)).json()["id"]
    other = (await app.post("/api/v2/runs?wait_ms=10000", {**body, "session_id": "eve"})).json()
    assert same == run["id"] != other["id"]


@pytest.mark.contract("S2-11")
async def test_a_run_can_wait_and_its_calls_have_its_priority(flows: FlowApp) -> None:
    app = flows.app
    await flows.publish(chain(("a", call("upper", "$params.text"))), "later")
    body = {"flow": "later", "params": {"text": "hi"}, "priority": "high", "delay_ms": 5_000}
    run = (await app.post("/api/v2/runs", body)).json()
    assert (run["state"], run["priority"]) == ("scheduled", "high")
    await app.advance(5_000)

    async def called() -> Any:
        return (await app.get("/api/v2/tasks?type=upper")).json()["items"]

    (made,) = await wait_until(called)
    assert (made["state"], made["priority"]) == ("queued", "high")
