"""A definition as a picture: Mermaid text for a page, rows for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from onward.flow.parts import DEFAULT, Definition, Node, reached
from onward.wire.base import NodeStatus
from onward.wire.flows import EdgeView, NodeView

# Shapes by kind: what stands left and right of the label.
_SHAPES: Mapping[str, tuple[str, str]] = {
    "choice": ("{", "}"),
    "parallel": ("[[", "]]"),
    "foreach": ("[[", "]]"),
    "timer": ("((", "))"),
    "wait_event": ("([", "])"),
    "approval": ("{{", "}}"),
    "flow_ref": ("[/", "/]"),
}
_COLOURS: Mapping[str, str] = {
    "ok": "fill:#d7f0dd,stroke:#2e7d46,color:#123",
    "running": "fill:#d8e8fb,stroke:#2a6cb8,color:#123",
    "error": "fill:#fadcdc,stroke:#b3372f,color:#123",
    "canceled": "fill:#e6e6e6,stroke:#777,color:#123",
}
# Labels come from the author of the flow and end up in a page: no sign of markup gets through.
_UNSAFE = re.compile(r"[^\w .,:/()+*=?!-]")


def mermaid(definition: Definition, states: Mapping[str, str] | None = None) -> str:
    """`states` by the node's path: ok, running, error or canceled."""
    ids = {path: f"n{number}" for number, (path, _) in enumerate(definition.walk())}
    lines = ["flowchart TD", *_drawn(definition, "", ids, 1)]
    known = {path: state for path, state in (states or {}).items() if path in ids}
    for state in sorted(set(known.values()) & set(_COLOURS)):
        lines.append(f"    classDef {state} {_COLOURS[state]}")
        of_it = ",".join(ids[path] for path in ids if known.get(path) == state)
        lines.append(f"    class {of_it} {state}")
    return "\n".join(lines) + "\n"


def outline(
    definition: Definition, states: Mapping[str, NodeStatus] | None = None
) -> list[NodeView]:
    """Node after node as a run would meet them; `states` by the node's path."""
    return list(_views(definition, "", 0, states or {}))


def _drawn(graph: Definition, path: str, ids: Mapping[str, str], depth: int) -> Iterator[str]:
    indent = "    " * depth
    for node in graph.nodes.values():
        own = ids[path + node.key]
        label = _label(node, node.key == graph.start)
        if node.subflow is not None:
            yield f'{indent}subgraph {own}["{label}"]'
            yield from _drawn(node.subflow, f"{path}{node.key}/", ids, depth + 1)
            yield f"{indent}end"
        else:
            left, right = _SHAPES.get(node.kind, ("[", "]"))
            yield f'{indent}{own}{left}"{label}"{right}'
    for edge in graph.edges:
        source, target = ids[path + edge.source], ids[path + edge.target]
        word = "" if edge.action == DEFAULT else f'|"{_safe(edge.action)}"|'
        yield f"{indent}{source} -->{word} {target}"


def _label(node: Node, first: bool) -> str:
    what = _what(node)
    mark = "▶ " if first else ""
    return mark + _safe(node.key) + (f"<br/>{_safe(what)}" if what else "")


def _safe(text: str) -> str:
    # Mermaid reads #35; as the sign with that number, wherever it stands.
    return _UNSAFE.sub(lambda found: f"#{ord(found[0])};", text)


def _what(node: Node) -> str:
    params = node.params
    labels: Mapping[str, object] = {
        "executor": node.service,
        "local": node.service,
        "foreach": f"{node.service} for each",
        "parallel": ", ".join(node.parallel_services) or params.get("services"),
        "timer": f"{params.get('delay_ms')} ms",
        "wait_event": params.get("signal_key"),
        "approval": params.get("reason") or node.description or "approval",
        "flow_ref": params.get("flow"),
    }
    return str(labels.get(node.kind) or "")


def _views(
    graph: Definition, path: str, depth: int, states: Mapping[str, NodeStatus]
) -> Iterator[NodeView]:
    # What cannot be reached comes last.
    for key in dict.fromkeys([*reached(graph.start, graph.targets), *graph.nodes]):
        node = graph.nodes[key]
        yield NodeView(
            key=path + key,
            kind=node.kind,
            what=_what(node),
            depth=depth,
            start=key == graph.start,
            status=states.get(path + key),
            edges=tuple(
                EdgeView(action=action, to=to) for action, to in graph.actions.get(key, {}).items()
            ),
        )
        if node.subflow is not None:
            yield from _views(node.subflow, f"{path}{key}/", depth + 1, states)
