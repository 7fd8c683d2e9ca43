"""deploy/grafana and deploy/prometheus: what they name is what a server exposes, and they hold."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.running_app import running_app
from tests.servers import fresh_url, program

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus"
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "onward.json").read_text())
# What Prometheus and Grafana put into an expression by themselves.
VARIABLES = {"$__rate_interval": "5m", "$job": "onward", "$service": ".*", "$queue": ".*"}
METRIC = re.compile(r"\b(?:onward|process)_[a-z_]+\b")


def expressions(node: Any) -> Iterator[str]:
    """Of every panel, and of the variables above them."""
    if isinstance(node, dict):
        found = [node[key] for key in ("expr", "definition") if key in node]
        yield from found
        for value in node.values():
            yield from expressions(value)
    elif isinstance(node, list):
        for value in node:
            yield from expressions(value)


def families(text: str) -> set[str]:
    """The names under which samples can be, as Prometheus stores them."""
    names: set[str] = set()
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, flags=re.M):
        suffixes = ("_bucket", "_count", "_sum") if kind == "histogram" else ("",)
        names |= {name + suffix for suffix in suffixes}
    return names


async def test_every_metric_that_is_named_is_exposed() -> None:
    async with running_app() as app:
        exposed = families((await app.get("/metrics")).text)
    named = {name for text in expressions(DASHBOARD) for name in METRIC.findall(text)}
    for file in ("alerts.yml", "alerts_test.yml"):
        text = (RULES / file).read_text()
        named |= set(METRIC.findall(text))
    assert len(named) > 15, "the expressions are found at all"
    assert named - exposed == set()


@pytest.mark.contract("S2-10", "N-9")
async def test_every_metric_is_in_the_documents() -> None:
    async with running_app(ledger=fresh_url("valkey"), archive="") as app:
        text = (await app.get("/metrics")).text
    documents = "".join(
        (ROOT / "docs" / name).read_text()
        for name in ("operations/running.md", "how-to/agents.md", "operations/security.md")
    )
    exposed = re.findall(r"^# TYPE (onward_\w+) ", text, flags=re.M)
    assert len(exposed) > 30
    missing = [name for name in exposed if name not in documents]
    # When a counter began: of no use to an operator, and the library's own.
    assert [name for name in missing if not name.endswith("_created")] == []


def test_every_panel_of_the_dashboard_has_its_place_and_its_query() -> None:
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert [target["expr"] for target in panel["targets"]], panel["title"]
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


# By promtool, where it is.


@pytest.fixture
def promtool() -> str:
    return program("promtool")


def run(*command: str, cwd: Path, text: str | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, input=text, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_rules_fire_when_they_should(promtool: str) -> None:
    run(promtool, "test", "rules", "alerts_test.yml", cwd=RULES)
    text = (RULES / "alerts_test.yml").read_text()
    for rule in re.findall(r"- alert: (\w+)", (RULES / "alerts.yml").read_text()):
        assert len(re.findall(rf"alertname: {rule}\b", text)) >= 2, f"{rule}: when not, and when"


@pytest.mark.slow
def test_the_configuration_is_valid_with_a_key_beside_it(promtool: str, tmp_path: Path) -> None:
    for file in ("prometheus.yml", "alerts.yml"):
        shutil.copy(RULES / file, tmp_path)
    (tmp_path / "onward.key").write_text("onward_0_0")
    run(promtool, "check", "config", "prometheus.yml", cwd=tmp_path)


@pytest.mark.slow
def test_every_query_of_the_dashboard_is_valid(promtool: str, tmp_path: Path) -> None:
    rules: list[dict[str, str]] = []
    for query in expressions(DASHBOARD["panels"]):
        for name, value in VARIABLES.items():
            query = query.replace(name, value)
        assert "$" not in query
        rules.append({"record": f"panel:{len(rules)}", "expr": query})
    groups = {"groups": [{"name": "panels", "rules": rules}]}
    (tmp_path / "panels.yml").write_text(json.dumps(groups))  # which is YAML, too
    run(promtool, "check", "rules", "panels.yml", cwd=tmp_path)


@pytest.mark.slow
async def test_the_figures_are_as_prometheus_wants_them(promtool: str, tmp_path: Path) -> None:
    async with running_app(builtin_worker=True) as app:
        await app.post("/api/v2/tasks?wait_ms=10000", {"type": "echo", "payload": 1})
        text = (await app.get("/metrics")).text
    assert 'onward_tasks_total{outcome="succeeded",service="echo"} 1.0' in text
    assert run(promtool, "check", "metrics", cwd=tmp_path, text=text) == ""
