"""foreach: one service, once for each item of a list; results in the order of the items."""

from __future__ import annotations

from onward.flow.fields import shown
from onward.flow.nodes import fan
from onward.flow.nodes.kind import Flaws, NodeVisit, Verdict, service_flaws
from onward.flow.parts import Node
from onward.flow.scope import ABSENT

RECORD, CALLS, LOGGED = "fe", "services", False
recall = fan.recall


def check(node: Node) -> Flaws:
    yield from service_flaws(node)
    if node.prep.input_key is None:
        yield "prep.input_key", "is missing: it says where the list is"
    if node.prep.input_map:
        yield "prep.input_map", "makes an object, and foreach goes over a list"


def enter(visit: NodeVisit) -> Verdict:
    items, service = visit.scope.input, visit.node.service or ""
    if not isinstance(items, list):
        what = "nothing" if items is ABSENT else shown(items)
        return fan.wrong(f"{visit.node.prep.input_key} leads to {what}, not to a list")
    return fan.begin(visit, len(items), lambda index: (service, items[index]))


def resume(visit: NodeVisit) -> Verdict:
    items, service = visit.scope.input, visit.node.service or ""
    return fan.go_on(visit, lambda index: (service, items[index]))
