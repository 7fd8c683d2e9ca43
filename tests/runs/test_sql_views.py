"""The flow centre's tables, as somebody finds them who opens a SQL ledger themselves (S4)."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.push.conftest import PlainWorker
from tests.running_app import running_app
from tests.runs.flow_app import FlowApp, call, chain
from tests.servers import POSTGRES_FLAVOURS, shared_postgres
from tests.support import wait_until

COLUMNS = {
    "flows": "id name created_at",
    "flow_versions": "id flow_id version definition_json status created_at",
    "tasks": "id flow_version_id status params_json shared_json current_node_key last_action"
    " step_count retry_state_json lease_owner lease_expiry request_id created_at updated_at",
    "node_runs": "id task_id node_key attempt_no status prep_json exec_input_json exec_output_json"
    " error_text action started_at finished_at worker_id worker_url",
    "workers": "id url services_json load last_heartbeat status",
}


def rows(ledger: str, table: str) -> list[dict[str, Any]]:
    if ledger.startswith("postgresql:"):
        query = f"SELECT row_to_json(t) FROM onward.{table} t"  # noqa: S608
        done = subprocess.run(
            ["psql", ledger, "-XAtc", query], capture_output=True, text=True, check=True
        )
        return [json.loads(line) for line in done.stdout.splitlines()]
    file = ledger.removeprefix("sqlite:///")
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as connection:
        connection.row_factory = sqlite3.Row
        found = connection.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608
        return [dict(row) for row in found]


@pytest.mark.contract("S4-3", "S4-11")
@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("kind", ["sqlite", *POSTGRES_FLAVOURS])
async def test_a_sql_ledger_has_the_flow_centres_tables(
    tmp_path: Path, kind: str, long: bool
) -> None:
    ledger = f"sqlite:///{tmp_path}/scheduler.db"
    if kind != "sqlite":
        ledger = shared_postgres(kind).fresh_url()
    text = "hi" * (5_000 if long else 1)
    gate = {
        "kind": "choice",
        "choice_cases": [{"action": "go", "expr": {"exists": "$params.text"}}],
    }
    graph = chain(("gate", gate), ("a", call("upper", "$params.text", "out")))
    graph["edges"] = [{"from": "gate", "action": "go", "to": "a"}]
    async with running_app(ledger=ledger) as app:
        flows = FlowApp(app)
        worker = await flows.serve()
        await app.post("/register", {"id": "w", "url": "http://127.0.0.1:9", "services": ["x"]})
        run = await flows.start(graph, params={"text": text}, request_id="r")
        ended = await flows.ended(run)
        paths = {
            "tasks": "/tasks",
            "node_runs": f"/tasks/runs?task_id={run}",
            "workers": "/workers/list",
        }
        wanted = {table: (await app.get(path)).json() for table, path in paths.items()}
        await flows.close()
        found = {table: rows(ledger, table) for table in COLUMNS}
    assert ended["state"] == "succeeded"
    for table, columns in COLUMNS.items():
        assert list(found[table][0]) == columns.split(), table
    (task,), (shown,) = found["tasks"], wanted["tasks"]
    assert {**task, "shared_json": json.loads(task["shared_json"])} == {
        name: value for name, value in shown.items() if name != "error_text"
    } | {"shared_json": {"out": text.upper()}}
    by_node = {row["node_key"]: row for row in found["node_runs"]}
    for one in wanted["node_runs"]:
        same = ("id", "status", "action", "exec_output_json", "worker_id", "attempt_no")
        row = by_node[one["node_key"]]
        assert [row[name] for name in same] == [one[name] for name in same]
    assert json.loads(by_node["a"]["exec_input_json"])["input"] == text
    assert by_node["a"]["worker_id"] == worker.id
    (version,) = found["flow_versions"]
    assert json.loads(version["definition_json"])["start"] == "gate"
    assert found["flows"][0]["name"] == "f"
    assert json.loads(found["workers"][0]["services_json"]) == wanted["workers"][0]["services"]


@pytest.mark.contract("S4-3", "S4-5")
@pytest.mark.parametrize("kind", ["sqlite", *POSTGRES_FLAVOURS])
async def test_a_row_names_the_worker_that_was_called_and_the_input_alone(
    tmp_path: Path, kind: str
) -> None:
    ledger = f"sqlite:///{tmp_path}/scheduler.db"
    if kind != "sqlite":
        ledger = shared_postgres(kind).fresh_url()
    plain = PlainWorker(lambda request: request.body["input"])
    try:
        async with running_app(ledger=ledger) as app:
            flows = FlowApp(app)
            body = {"id": "w1", "url": plain.url, "services": ["work"]}
            assert (await app.post("/workers/register", body)).status_code == 200
            node = call("work", "$params.given", "out", params={"k": "v"})
            given: Any
            for given in ("text", {"a": [1]}, None):
                run = await flows.run(chain(("a", node)), params={"given": given})
                (shown,) = (await app.get(f"/tasks/runs?task_id={run['id']}")).json()
                (found,) = [r for r in rows(ledger, "node_runs") if r["task_id"] == run["id"]]
                assert (found["worker_id"], found["worker_url"]) == ("w1", plain.url)
                assert json.loads(found["prep_json"]) == given
                assert {name: found[name] for name in shown} == shown
            await flows.close()
    finally:
        plain.stop()


@pytest.mark.contract("S4-3", "S4-6")
@pytest.mark.parametrize("kind", ["sqlite", *POSTGRES_FLAVOURS])
async def test_a_call_that_is_tried_again_stands_in_its_runs_row(tmp_path: Path, kind: str) -> None:
    ledger = f"sqlite:///{tmp_path}/scheduler.db"
    if kind != "sqlite":
        ledger = shared_postgres(kind).fresh_url()
    async with running_app(ledger=ledger) as app:
        flows = FlowApp(app)
        await flows.serve()
        node = call("odd", "$params.n", "out", max_retries=2, wait_ms=60_000)
        run = await flows.start(chain(("a", node)), params={"n": 1})

        async def failed() -> dict[str, Any] | None:
            row = (await app.get(f"/tasks/get?id={run}")).json()
            state: dict[str, Any] = json.loads(row["retry_state_json"])
            return state or None

        shown = await wait_until(failed)
        (row,) = rows(ledger, "tasks")
        assert json.loads(row["retry_state_json"]) == shown
        await flows.close()


async def test_a_file_with_the_views_of_an_earlier_version_gets_those_of_this_one(
    tmp_path: Path,
) -> None:
    ledger = f"sqlite:///{tmp_path}/scheduler.db"
    async with running_app(ledger=ledger):
        pass
    file = tmp_path / "scheduler.db"

    def views() -> dict[str, str]:
        with sqlite3.connect(file) as connection:
            found = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'view'")
            return dict(found.fetchall())

    made = views()
    assert made.keys() >= COLUMNS.keys()
    with sqlite3.connect(file) as connection:
        connection.execute("DROP VIEW node_runs")
        connection.execute("CREATE VIEW node_runs AS SELECT id FROM task")
        connection.execute("CREATE VIEW mine AS SELECT id FROM task")
    connection.close()
    async with running_app(ledger=ledger):
        pass
    assert views() == {**made, "mine": "CREATE VIEW mine AS SELECT id FROM task"}
