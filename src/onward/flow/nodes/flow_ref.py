"""flow_ref: a run of another flow; its final shared state is the result."""

from __future__ import annotations

from onward.flow.fields import shown, whole
from onward.flow.nodes.executor import LOGGED, RECORD, recall, resume
from onward.flow.nodes.kind import Flaws, NodeVisit, NodeWaits, Verdict
from onward.flow.parts import Node

__all__ = ["CALLS", "LOGGED", "RECORD", "check", "enter", "recall", "resume"]

CALLS = "child"
_OURS = ("flow", "version")


def check(node: Node) -> Flaws:
    flow, version = node.params.get("flow"), node.params.get("version")
    if flow is None or flow == "":
        yield "params.flow", "is missing"
    elif not isinstance(flow, str):
        yield "params.flow", f"must be text, not {shown(flow)}"
    if version is not None and (whole(version) or 0) < 1:
        yield "params.version", f"must be a whole number from 1, not {shown(version)}"


def enter(visit: NodeVisit) -> Verdict:
    params = visit.node.params
    visit.begin(total=1)
    visit.call(
        "flow",
        None,
        visit.scope.input,
        flow=params["flow"],
        version=whole(params.get("version")),
        params={name: value for name, value in visit.scope.params.items() if name not in _OURS},
    )
    return NodeWaits("children")
