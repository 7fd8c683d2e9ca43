"""executor: one call of a service; its result is the node's."""

from __future__ import annotations

from onward.flow.nodes import kind as kinds
from onward.flow.parts import Node
from onward.flow.state import CALLS as SINGLE_CALLS

RECORD, CALLS, LOGGED = SINGLE_CALLS, "service", False


def check(node: Node) -> kinds.Flaws:
    return kinds.service_flaws(node)


def enter(visit: kinds.NodeVisit) -> kinds.Verdict:
    visit.begin(total=1)
    visit.call("service", visit.node.service, visit.scope.input)
    return kinds.NodeWaits("children")


def resume(visit: kinds.NodeVisit) -> kinds.Verdict:
    visit.hear()
    if visit.record.open:
        return kinds.NodeWaits("children")
    (answer,) = visit.answers([0])
    return kinds.NodeDone(answer.value) if answer.fault is None else kinds.NodeFailed(answer.fault)


def recall(past: kinds.Past) -> kinds.NodeDone:
    if not past.ok:
        return kinds.NodeDone()
    if past.answer is None or past.answer.fault is not None:
        return kinds.NodeDone(kinds.GONE)
    return kinds.NodeDone(past.answer.value)
