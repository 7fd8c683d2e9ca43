"""executor: one call of a service; its result is the node's."""

from __future__ import annotations

from onward.flow.nodes.kind import Done, Fell, Flaws, Verdict, Visit, Waits, service_flaws
from onward.flow.parts import Node
from onward.flow.state import CALLS

RECORD = CALLS


def check(node: Node) -> Flaws:
    return service_flaws(node)


def enter(visit: Visit) -> Verdict:
    visit.begin(total=1)
    visit.call("service", visit.node.service, visit.scope.input)
    return Waits("children")


def resume(visit: Visit) -> Verdict:
    visit.hear()
    if visit.record.open:
        return Waits("children")
    (answer,) = visit.answers([0])
    return Done(answer.value) if answer.fault is None else Fell(answer.fault)
