"""wait_event: goes on once its path holds something true, be it by a signal or by an earlier node.

A signal fits by the node's key (or path), or by the shared key that `params.signal_key` names; its
value is then written there. One whose value is not true would release nobody, and is dropped. A
node without such a key is released by any signal to it.
"""

from __future__ import annotations

from typing import Any

from onward.core.task import Fault
from onward.flow.nodes.kind import (
    Flaws,
    NodeDone,
    NodeFailed,
    NodeVisit,
    NodeWaits,
    Verdict,
    key_path,
    key_path_flaws,
    span_flaws,
)
from onward.flow.parts import Node
from onward.flow.scope import shared_key

RECORD = "we"


def check(node: Node) -> Flaws:
    yield from key_path_flaws(node, "signal_key")
    yield from span_flaws(node, "timeout_ms")


def enter(visit: NodeVisit) -> Verdict:
    visit.begin()
    return resume(visit)


def resume(visit: NodeVisit) -> Verdict:
    path = key_path(visit.node, "signal_key")
    key = shared_key(path)
    names = [visit.node.key, visit.path] + ([] if key is None else [key])
    while (signal := visit.take_signal(names)) is not None:
        if key is None:
            return NodeDone(signal.value)
        if signal.value:
            return NodeDone(signal.value, writes={key: signal.value})
    value: Any = None if path is None else visit.scope.find(path)
    if value:
        return NodeDone(value)
    return _waits(visit)


def _waits(visit: NodeVisit) -> Verdict:
    timeout_ms = visit.span_ms("timeout_ms")
    if isinstance(timeout_ms, Fault):
        return NodeFailed(timeout_ms)
    if timeout_ms is None:
        return NodeWaits("event")
    until = visit.record.start + timeout_ms
    if visit.now < until:
        return NodeWaits("event", until)
    return NodeFailed(Fault(kind="timeout", message=f"no event within {timeout_ms} ms"))
