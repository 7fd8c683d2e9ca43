"""subflow: a graph inside the node, with a shared state of its own; that state is the result."""

from __future__ import annotations

from onward.flow.nodes.kind import EnterSubflow, Flaws, NodeDone, NodeVisit, Past, Verdict
from onward.flow.parts import Node
from onward.flow.scope import own

RECORD, CALLS, LOGGED = "", "", False


def check(node: Node) -> Flaws:
    if node.subflow is None:
        yield "subflow", "is missing"


def enter(visit: NodeVisit) -> Verdict:
    return EnterSubflow(own(visit.scope.input))


resume = enter  # the run stands inside it, never on it


def recall(past: Past) -> NodeDone:
    return NodeDone(past.inner) if past.ok else NodeDone()
