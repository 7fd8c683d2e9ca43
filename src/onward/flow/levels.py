"""The graphs that a run stands in, outermost first, and what is in scope in each.

A subflow's params are those around it with its own node's merged over them; `$input` in its nodes'
`prep` is what the subflow was given. Nothing of this is stored: it follows from the frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from onward.flow.parts import Definition, Node
from onward.flow.scope import ABSENT, FlowScope, prepare

_EMPTY = Definition(start="", nodes={})


class Level(msgspec.Struct, frozen=True):
    graph: Definition
    params: Mapping[str, Any]
    input: Any
    path: str  # of its nodes, up to their own keys

    def scope(self, node: Node, shared: Mapping[str, Any]) -> FlowScope:
        """What a node sees: its own params merged in, and its input."""
        around = FlowScope(merged(self.params, node.params), shared, self.input)
        return around.with_input(prepare(node.prep, around))

    def inside(self, key: str, shared: Mapping[str, Any]) -> Level:
        node = self.graph.nodes.get(key)
        if node is None or node.subflow is None:
            return Level(_EMPTY, self.params, ABSENT, f"{self.path}{key}/")
        scope = self.scope(node, shared)
        return Level(node.subflow, scope.params, scope.input, f"{self.path}{key}/")


class At(msgspec.Struct, frozen=True):
    node: Node
    params: Mapping[str, Any]


def located(definition: Definition, path: str, params: Mapping[str, Any]) -> At | None:
    """A node by its path, with the params that its calls get."""
    graph: Definition | None = definition
    at: At | None = None
    for key in path.split("/"):
        node = None if graph is None else graph.nodes.get(key)
        if node is None:
            return None
        params = merged(params, node.params)
        at, graph = At(node, params), node.subflow
    return at


def paths(definition: Definition) -> list[str]:
    return [path for path, _ in definition.walk()]


def merged(outer: Mapping[str, Any], inner: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**outer, **inner} if inner else outer
