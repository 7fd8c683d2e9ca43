"""docs/how-to/flows.md against the code: every example in it is one that a server takes."""

from __future__ import annotations

import json
import re
from ast import PyCF_ALLOW_TOP_LEVEL_AWAIT
from pathlib import Path
from typing import Any

import pytest

from onward.flow import definition, engine, executor, expr
from onward.flow.builder import Flow
from onward.flow.nodes import KINDS, fan
from onward.flow.parts import MAX_STEPS

TEXT = (Path(__file__).resolve().parent.parent / "docs" / "how-to" / "flows.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}[^\n]*\n(.*?)^```$", TEXT, flags=re.S | re.M)


EXAMPLES = [json.loads(block) for block in blocks("json")]


@pytest.mark.contract("S4-6", "S4-7", "S4-8")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: str(each)[:40])
def test_every_example_is_taken_without_a_doubt(example: dict[str, Any]) -> None:
    if "kind" in example:
        example = {"start": "node", "nodes": {"node": example}}
    if "start" in example:
        assert definition.parse(example).warnings == ()
    else:
        assert [*expr.flaws(example), *expr.doubts(example)] == []


def test_every_kind_and_every_operator_has_its_example_or_row() -> None:
    shown = {each["kind"] for each in EXAMPLES if "kind" in each}
    assert shown == set(KINDS)
    for operator in expr.OPERATORS:
        assert f"`{operator}`" in TEXT


def test_the_builder_example_makes_a_flow() -> None:
    (source,) = (block for block in blocks("python") if "flow.builder" in block)
    names: dict[str, Any] = {}
    exec(source, names)  # noqa: S102 our own document
    flow: Flow = names["flow"]
    assert flow.check().leads("sign_off", "approved")
    for block in blocks("python"):
        compile(block, "flows.md", "exec", flags=PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_the_limits_are_those_of_the_code() -> None:
    told = TEXT[TEXT.index("## Limits") :]
    for limit in (
        f"{definition.MAX_BYTES // 1024} KiB",
        f"{definition.MAX_NODES:,} nodes",
        f"{definition.MAX_EDGES:,} edges",
        f"{definition.MAX_SUBFLOWS} subflows",
        f"{MAX_STEPS:,} steps",
        f"{definition.MAX_STEPS_EVER:,}",
        f"{executor.MAX_NESTED} deep",
        f"{fan.MAX_CALLS:,} calls",
        f"{fan.WINDOW} at a time",
        f"{expr.MAX_DEPTH} levels",
        f"{expr.MAX_SIZE:,} parts",
        f"{engine.MAX_SIGNALS} a run",
        f"{engine.MAX_SIGNAL_BYTES >> 20} MiB together",
        f"{engine.MAX_SHARED >> 20} MiB",
        f"{fan.MAX_RESULTS >> 20} MiB of results",
    ):
        assert limit in told
