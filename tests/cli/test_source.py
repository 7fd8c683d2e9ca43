"""Faults are told where they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from onward.cli.changes import changes
from onward.cli.source import Source, is_source, load
from onward.flow.definition import DefinitionFaults, parse

BAD = """{
  "start": "fech",
  "nodes": {
    "fetch": {"kind": "executor", "service": "s",
      "prep": {"input_key": "$parms.text"}},
    "route": {
      "kind": "choice",
      "choice_cases": [{"action": "x", "expr": {"equals": [1, 2]}}],
      "wait_ms": -4
    },
    "inner": {"kind": "subflow", "subflow": {"start": "a", "nodes": {
      "a": {"kind": "timer"}}}}
  },
  "edges": [
    {"from": "fetch", "to": "route"},
    {"from": "route", "to": "up"}
  ]
}
"""


def written(tmp_path: Path, text: str) -> Source:
    file = tmp_path / "flow.json"
    file.write_text(text)
    return load(str(file))


def test_each_fault_has_its_line(tmp_path: Path) -> None:
    source = written(tmp_path, BAD)
    with pytest.raises(DefinitionFaults) as faults:
        source.read()
    lines = {flaw.field: (source.position(flaw) or (0, 0))[0] for flaw in faults.value.flaws}
    assert lines == {
        "start": 2,
        "prep.input_key": 5,
        "choice_cases[0].expr": 8,
        "wait_ms": 9,
        "params.delay_ms": 12,
        "edges[1].to": 16,
    }


def test_what_is_missing_is_told_at_the_object_that_lacks_it(tmp_path: Path) -> None:
    source = written(tmp_path, '{"nodes":\n {"a":\n  {"kind": "subflow", "start": "x"}}}')
    with pytest.raises(DefinitionFaults) as faults:
        source.read()
    places = {flaw.message: source.position(flaw) for flaw in faults.value.flaws}
    assert places["start is missing"] == (1, 1)
    assert places["subflow is missing"] == (3, 3)


@pytest.mark.parametrize(
    "text", ['{"start": "a",', '{"start": NaN}', '{"a": 1, "a": 2}', '{"a":' * 70 + "1" + "}" * 70]
)
def test_what_no_server_would_read_ends_the_command(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended:
        written(tmp_path, text)
    assert ended.value.exit_code == 1
    assert "not JSON" in capsys.readouterr().err


def test_a_name_is_no_source(tmp_path: Path) -> None:
    assert not is_source("review")
    for text in ("-", "a.json", "flows:review", "flows.py:review"):
        assert is_source(text)


def test_the_flow_is_called_as_the_definition_says_else_as_its_file(tmp_path: Path) -> None:
    assert written(tmp_path, '{"name": "review"}').flow == "review"
    assert written(tmp_path, "{}").flow == "flow"


def test_changes_are_of_meaning_and_not_of_writing() -> None:
    call = {"kind": "executor", "service": "s"}
    other = {"kind": "local", "service": "t"}
    edges = [{"from": "a", "to": "b"}]
    old = {"start": "a", "nodes": {"a": call, "b": other}, "edges": edges}
    same = {"start": "a", "nodes": {"b": other, "a": {**call, "wait_ms": 0}}, "edges": edges}
    assert changes(parse(old), parse(same)) == []
    new = {
        "start": "a",
        "nodes": {
            "a": {"kind": "executor", "service": "s", "max_retries": 1},
            "c": {"kind": "timer", "params": {"delay_ms": 1}},
        },
        "edges": [{"from": "a", "action": "x", "to": "c"}],
    }
    assert [str(change) for change in changes(parse(old), parse(new))] == [
        "~ node a: max_retries",
        "+ node c: timer",
        "- node b",
        "+ edge a ─ x → c",
        "- edge a ─ default → b",
    ]


def test_that_agents_are_offered_a_flow_is_a_change() -> None:
    def told(before: object, after: object) -> list[str]:
        nodes = {"a": {"kind": "timer", "params": {"delay_ms": 1}}}
        old, new = (parse({"start": "a", "nodes": nodes, "tool": each}) for each in (before, after))
        return [str(change) for change in changes(old, new)]

    assert told(None, False) == told(True, {}) == []
    assert told(None, True) == ["~ tool: agents are offered it"]
    assert told(True, None) == ["~ tool: agents are no longer offered it"]
    named = {"description": "Close the books.", "parameters": {"type": "object"}}
    assert told(True, named) == ["~ tool: description"]
    assert told(named, {**named, "parameters": {"type": "object", "required": ["x"]}}) == [
        "~ tool: parameters"
    ]
