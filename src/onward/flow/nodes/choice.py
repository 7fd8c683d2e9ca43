"""choice: the first case whose expression holds names the action; the input is passed through."""

from __future__ import annotations

from onward.flow import expr
from onward.flow.nodes.kind import Flaws, NodeDone, NodeVisit, Verdict, recall_input
from onward.flow.parts import Node

RECORD, CALLS, LOGGED = "", "", False


def check(node: Node) -> Flaws:
    post = node.post
    if not (node.choice_cases or node.default_action or post.action_key or post.action_static):
        yield "choice_cases", "is missing"


def enter(visit: NodeVisit) -> Verdict:
    for case in visit.node.choice_cases:
        if expr.holds(case.expr, visit.scope):
            return NodeDone(visit.scope.input, case.action)
    return NodeDone(visit.scope.input)


resume = enter  # it never waits
recall = recall_input
