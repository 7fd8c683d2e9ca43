"""wait_event: goes on once its path holds something true, be it by a signal or by an earlier node.

A signal fits by the node's key (or path), or by the shared key that `params.signal_key` names; its
value is then written there. One whose value is not true would release nothing, and is dropped. A
node without such a key is released by any signal to it.
"""

from __future__ import annotations

from typing import Any

from onward.faults import Fault
from onward.flow.nodes import kind as kinds
from onward.flow.parts import Node
from onward.flow.scope import shared_key

RECORD, CALLS, LOGGED = "we", "", True


def check(node: Node) -> kinds.Flaws:
    yield from kinds.key_path_flaws(node, "signal_key")
    yield from kinds.span_flaws(node, "timeout_ms")


def enter(visit: kinds.NodeVisit) -> kinds.Verdict:
    visit.begin()
    return resume(visit)


def resume(visit: kinds.NodeVisit) -> kinds.Verdict:
    path = kinds.key_path(visit.node, "signal_key")
    key = shared_key(path)
    names = [visit.node.key, visit.path] + ([] if key is None else [key])
    while (signal := visit.take_signal(names)) is not None:
        if key is None:
            return kinds.NodeDone(signal.value)
        if signal.value:
            return kinds.NodeDone(signal.value, writes={key: signal.value})
    value: Any = None if path is None else visit.scope.find(path)
    if value:
        return kinds.NodeDone(value)
    return _waits(visit)


def recall(past: kinds.Past) -> kinds.NodeDone:
    if not past.ok:
        return kinds.NodeDone()
    value = kinds.LARGE if past.data.get("cut") else past.data.get("output")
    path = kinds.key_path(past.node, "signal_key")
    key = shared_key(path)
    # It goes on for what lies there already, or for a signal, which alone is written.
    lay_there = path is not None and value is not kinds.LARGE and value
    by_signal = not (lay_there and past.find(path or "") == value)
    return kinds.NodeDone(value, writes={key: value} if key is not None and by_signal else {})


def _waits(visit: kinds.NodeVisit) -> kinds.Verdict:
    timeout_ms = visit.span_ms("timeout_ms")
    if isinstance(timeout_ms, Fault):
        return kinds.NodeFailed(timeout_ms)
    if timeout_ms is None:
        return kinds.NodeWaits("event")
    until = visit.record.start + timeout_ms
    if visit.now < until:
        return kinds.NodeWaits("event", until)
    return kinds.NodeFailed(Fault(kind="timeout", message=f"no event within {timeout_ms} ms"))
