"""What differs between two versions of a flow, node by node and edge by edge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import msgspec

from onward.cli.terminal import plain

if TYPE_CHECKING:
    from onward.flow.parts import AsTool, Definition, Edge

HEAD = ("start", "name", "description", "max_steps")
SIGNS = {"added": "+", "removed": "-", "changed": "~"}


class DefinitionChange(msgspec.Struct, frozen=True):
    how: Literal["added", "removed", "changed"]
    what: str  # "node b", "edge a --goB--> b", "start"
    about: str = ""

    def __str__(self) -> str:
        about = f": {self.about}" if self.about else ""
        return plain(f"{SIGNS[self.how]} {self.what}{about}")


def changes(old: Definition, new: Definition) -> list[DefinitionChange]:
    """Nothing: the two mean the same, however they are written."""
    return [*_head(old, new), *_nodes(old, new), *_edges(old, new)]


def _head(old: Definition, new: Definition) -> Iterator[DefinitionChange]:
    for field in HEAD:
        before, after = getattr(old, field), getattr(new, field)
        if before != after:
            yield DefinitionChange("changed", field, f"{_said(before)} → {_said(after)}")
    if old.tool != new.tool:
        yield DefinitionChange("changed", "tool", _as_tool(old.tool, new.tool))


def _as_tool(before: AsTool | None, after: AsTool | None) -> str:
    if before is None or after is None:
        return "agents are offered it" if after else "agents are no longer offered it"
    fields = after.__struct_fields__
    return ", ".join(name for name in fields if getattr(after, name) != getattr(before, name))


def _nodes(old: Definition, new: Definition) -> Iterator[DefinitionChange]:
    for key, node in new.nodes.items():
        if key not in old.nodes:
            service = f" {node.service}" if node.service else ""
            yield DefinitionChange("added", f"node {key}", f"{node.kind}{service}")
        elif node != old.nodes[key]:
            before = old.nodes[key]
            fields = node.__struct_fields__
            differing = [name for name in fields if getattr(node, name) != getattr(before, name)]
            yield DefinitionChange("changed", f"node {key}", ", ".join(differing))
    for key in old.nodes:
        if key not in new.nodes:
            yield DefinitionChange("removed", f"node {key}")


def _edges(old: Definition, new: Definition) -> Iterator[DefinitionChange]:
    before, after = set(old.edges), set(new.edges)
    for edge in new.edges:
        if edge not in before:
            yield DefinitionChange("added", _drawn(edge))
    for edge in old.edges:
        if edge not in after:
            yield DefinitionChange("removed", _drawn(edge))


def _drawn(edge: Edge) -> str:
    return f"edge {edge.source} ─ {edge.action} → {edge.target}"


def _said(value: object) -> str:
    return "none" if value is None else str(value)
