"""docs/reference/seeds.md: each statement is shown by a test that is there, or by an ADR."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
PAGE = TESTS.parent / "docs" / "reference" / "seeds.md"
ADR = "0056-where-a-seeds-client-sees-something-else.md"

ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text().splitlines()
    if re.match(r"\| \d+ \|", line)
]


@cache
def functions(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, kinds)}


def test_the_statements_are_counted_from_1_to_47() -> None:
    assert [row[0] for row in ROWS] == [str(number) for number in range(1, 48)]
    assert {len(row) for row in ROWS} == {4}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row[0]))
def test_what_shows_a_statement_is_there(row: list[str]) -> None:
    _, statement, now, shown = row
    tests = re.findall(r"`([\w/]+\.py)::(\w+)`", shown)
    assert tests or ADR in shown, statement
    for file, name in tests:
        assert name in functions(file), f"{file} has no {name}"
    if now.startswith("different"):
        assert ADR in shown, "what a client of that protocol sees is written down"
    else:
        assert tests, f"{statement}: nothing shows it"
