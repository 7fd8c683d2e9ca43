"""timer: goes on `params.delay_ms` after it was entered; the input is passed through."""

from __future__ import annotations

from onward.faults import Fault
from onward.flow.nodes import kind as kinds
from onward.flow.parts import Node

RECORD, CALLS, LOGGED = "tm", "", False


def check(node: Node) -> kinds.Flaws:
    if node.params.get("delay_ms") in (None, ""):
        yield "params.delay_ms", "is missing"
    yield from kinds.span_flaws(node, "delay_ms")


def enter(visit: kinds.NodeVisit) -> kinds.Verdict:
    visit.begin()
    return resume(visit)


def resume(visit: kinds.NodeVisit) -> kinds.Verdict:
    delay_ms = visit.span_ms("delay_ms")
    if delay_ms is None:
        delay_ms = Fault(kind="InvalidInput", message="params.delay_ms leads to nothing")
    if isinstance(delay_ms, Fault):
        return kinds.NodeFailed(delay_ms)
    until = visit.record.start + delay_ms
    return (
        kinds.NodeWaits("timer", until) if visit.now < until else kinds.NodeDone(visit.scope.input)
    )


recall = kinds.recall_input
