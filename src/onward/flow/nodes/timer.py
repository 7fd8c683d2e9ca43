"""timer: goes on `params.delay_ms` after it was entered; the input is passed through."""

from __future__ import annotations

from onward.core.task import Fault
from onward.flow.nodes.kind import (
    Flaws,
    NodeDone,
    NodeFailed,
    NodeVisit,
    NodeWaits,
    Verdict,
    span_flaws,
)
from onward.flow.parts import Node

RECORD = "tm"


def check(node: Node) -> Flaws:
    if node.params.get("delay_ms") in (None, ""):
        yield "params.delay_ms", "is missing"
    yield from span_flaws(node, "delay_ms")


def enter(visit: NodeVisit) -> Verdict:
    visit.begin()
    return resume(visit)


def resume(visit: NodeVisit) -> Verdict:
    delay_ms = visit.span_ms("delay_ms")
    if delay_ms is None:
        delay_ms = Fault(kind="InvalidInput", message="params.delay_ms leads to nothing")
    if isinstance(delay_ms, Fault):
        return NodeFailed(delay_ms)
    until = visit.record.start + delay_ms
    return NodeWaits("timer", until) if visit.now < until else NodeDone(visit.scope.input)
