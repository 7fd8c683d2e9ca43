"""The parts of a definition, as read: immutable, checked, with every default filled in.

definition.py makes them and is the only one that does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

DEFAULT = "default"  # the edge for an action that has none of its own
MAX_STEPS = 10_000

Mode: TypeAlias = Literal["sequential", "concurrent"]
Strategy: TypeAlias = Literal["fail_fast", "collect_errors", "ignore_errors"]


class Prep(msgspec.Struct, frozen=True):
    input_key: str | None = None
    input_map: Mapping[str, str] = {}


class Post(msgspec.Struct, frozen=True, kw_only=True):
    output_key: str | None = None  # a top-level key of shared; dots in it are part of its name
    output_map: Mapping[str, str] = {}
    action_static: str | None = None
    action_key: str | None = None
    error_key: str | None = None  # gets {kind, message, node} when edge error or timeout is taken


class Case(msgspec.Struct, frozen=True):
    action: str
    expr: Any


class Compensation(msgspec.Struct, frozen=True):
    """What undoes a node that went well, should the run fail or be canceled later."""

    service: str
    params: Mapping[str, Any] = {}
    prep: Prep | None = None  # `$input` is the node's result; None: that result is the input


class Node(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    kind: str
    service: str | None = None
    description: str | None = None
    params: Mapping[str, Any] = {}
    prep: Prep = Prep()
    post: Post = Post()
    default_action: str | None = None
    max_retries: int = 0  # further calls of one worker
    wait_ms: int = 0
    max_attempts: int = 1  # workers
    attempt_delay_ms: int = 0
    weighted_by_load: bool = True  # otherwise workers take turns
    timeout_ms: int | None = None  # one call at most so long
    choice_cases: tuple[Case, ...] = ()
    parallel_services: tuple[str, ...] = ()
    parallel_mode: Mode = "sequential"
    max_parallel: int | None = None
    failure_strategy: Strategy = "fail_fast"
    subflow: Definition | None = None
    compensate: Compensation | None = None


class Edge(msgspec.Struct, frozen=True):
    source: str
    action: str
    target: str


class Flaw(msgspec.Struct, frozen=True):
    """Something that is wrong with a definition, and where."""

    node: str | None
    field: str
    message: str

    def __str__(self) -> str:
        return self.message if self.node is None else f"node {self.node!r}: {self.message}"


class AsTool(msgspec.Struct, frozen=True, kw_only=True):
    """A flow that agents are offered: what its tool says, and the params that it takes."""

    description: str | None = None
    # JSON Schema of the run's params.
    parameters: Mapping[str, Any] = msgspec.field(default_factory=lambda: {"type": "object"})


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    start: str
    nodes: Mapping[str, Node]
    edges: tuple[Edge, ...] = ()
    actions: Mapping[str, Mapping[str, str]] = {}  # the same edges: node → action → node
    name: str | None = None
    description: str | None = None
    max_steps: int = MAX_STEPS
    tool: AsTool | None = None  # None: agents are not offered it
    warnings: tuple[Flaw, ...] = ()

    def leads(self, node: str, action: str) -> bool:
        """Whether an edge was drawn for this very action."""
        return action in self.actions.get(node, {})

    def successor(self, node: str, action: str) -> str | None:
        """None: the flow ends here."""
        actions = self.actions.get(node, {})
        return actions.get(action, actions.get(DEFAULT))

    def targets(self, node: str) -> Iterable[str]:
        return self.actions.get(node, {}).values()

    def walk(self, around: str = "") -> Iterator[tuple[str, Node]]:
        """Every node by its path, with those in subflows."""
        for key, node in self.nodes.items():
            yield around + key, node
            if node.subflow is not None:
                yield from node.subflow.walk(f"{around}{key}/")


def reached(start: str, targets: Callable[[str], Iterable[str]]) -> list[str]:
    """Breadth first, from the start itself on."""
    order, seen = [start], {start}
    for at in order:
        fresh = [each for each in dict.fromkeys(targets(at)) if each not in seen]
        seen.update(fresh)
        order += fresh
    return order
