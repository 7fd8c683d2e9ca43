"""The core knows no path and no command: a next step is a code that each door words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import onward
from onward.core.errors import NextStep, NotFound, Step
from onward.doors.hints import HTTP, TOOLS, hint_text, with_hint

PACKAGE = Path(onward.__file__).parent
OUTSIDE = re.compile(r"\b(GET|PUT|POST|DELETE|PATCH) /|/api/|\bonward (?!ledger)[a-z]+ ?[a-z-]*")


def _texts(module: Path) -> Iterator[str]:
    """Every text that the code may print; docstrings are for those who read the code."""
    tree = ast.parse(module.read_text())
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and id(node) not in docstrings:
            yield text


@pytest.mark.parametrize("package", ["core", "flow"])
def test_no_text_of_the_kernel_names_a_path_or_a_command(package: str) -> None:
    found = [
        (module.name, text)
        for module in sorted((PACKAGE / package).rglob("*.py"))
        for text in _texts(module)
        if OUTSIDE.search(text)
    ]
    assert found == []


@pytest.mark.parametrize("words", [HTTP, TOOLS], ids=["http", "tools"])
def test_every_step_is_worded_at_every_door(words: dict[Step, str]) -> None:
    assert set(words) == set(Step)


def test_a_step_is_worded_with_the_name_it_is_about() -> None:
    error = NotFound("no such service", step=NextStep(Step.SHOW_SERVICE, "pay"))
    assert with_hint(error) == "no such service; GET /api/v2/services/pay shows the schema"
    assert "/api/" not in (hint_text(error, TOOLS) or "")


def test_a_hint_without_a_step_stays_as_it_is() -> None:
    assert with_hint(NotFound("gone", hint="try again")) == "gone; try again"
    assert with_hint(NotFound("gone")) == "gone"
