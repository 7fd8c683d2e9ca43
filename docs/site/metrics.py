"""Every metric, from the places in the code that make it: name, kind, labels, help."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import onward

TEXT = """# Metrics

Made from the code. `/metrics` is for Prometheus; what these figures mean together, and which are
worth an alert, is in [Running a server](../operations/running.md#what-to-watch). `onward_stream_…`
are there where a Redis is, `onward_agent_…` once there was a session.

| name | kind | labels | what |
|---|---|---|---|
"""
KINDS = {"Counter": "counter", "Gauge": "gauge", "_gauge": "gauge", "Histogram": "histogram"}


class Metric(NamedTuple):
    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


def page() -> str:
    return TEXT + "".join(
        f"| `{each.name}` | {each.kind} | {', '.join(each.labels)} | {each.help} |\n"
        for each in sorted(found())
    )


def found() -> set[Metric]:
    root = Path(onward.__file__).parent
    return {each for path in root.rglob("*.py") for each in _made_in(path)}


def _made_in(path: Path) -> Iterator[Metric]:
    text = path.read_text()
    if '"onward_' not in text:
        return
    tree = ast.parse(text)
    constants = _constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            kind = KINDS.get(called.removesuffix("MetricFamily"))
            parts = node.args
        elif isinstance(node, ast.Tuple):  # a figure of a ledger's own: name, help, value
            kind, parts = "gauge", node.elts
        else:
            continue
        if kind and parts and (name := _text(parts[0], constants)).startswith("onward_"):
            yield _metric(name, kind, parts, node, constants)


def _metric(
    name: str, kind: str, parts: list[ast.expr], node: ast.AST, constants: dict[str, ast.expr]
) -> Metric:
    keywords = {each.arg: each.value for each in getattr(node, "keywords", ())}
    labels = keywords.get("labels", parts[2] if len(parts) > 2 else None)
    if isinstance(labels, ast.Name):
        labels = constants.get(labels.id)
    named = [_text(each, constants) for each in getattr(labels, "elts", ())]
    suffix = "_total" if kind == "counter" else ""
    return Metric(name.removesuffix("_total") + suffix, kind, tuple(named), _help(parts, constants))


def _help(parts: list[ast.expr], constants: dict[str, ast.expr]) -> str:
    return _text(parts[1], constants) if len(parts) > 1 else ""


def _text(node: ast.expr | None, constants: dict[str, ast.expr]) -> str:
    if isinstance(node, ast.Name):
        node = constants.get(node.id)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _constants(tree: ast.AST) -> dict[str, ast.expr]:
    return {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
