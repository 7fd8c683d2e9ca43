"""executor: one call of a service; its result is the node's."""

from __future__ import annotations

from onward.flow.nodes.kind import (
    Flaws,
    NodeDone,
    NodeFailed,
    NodeVisit,
    NodeWaits,
    Verdict,
    service_flaws,
)
from onward.flow.parts import Node
from onward.flow.state import CALLS

RECORD = CALLS


def check(node: Node) -> Flaws:
    return service_flaws(node)


def enter(visit: NodeVisit) -> Verdict:
    visit.begin(total=1)
    visit.call("service", visit.node.service, visit.scope.input)
    return NodeWaits("children")


def resume(visit: NodeVisit) -> Verdict:
    visit.hear()
    if visit.record.open:
        return NodeWaits("children")
    (answer,) = visit.answers([0])
    return NodeDone(answer.value) if answer.fault is None else NodeFailed(answer.fault)
