"""What the run's log says of a node: that it was entered, and how it ended.

A node that is over at once has one note, of its end. Input and output are written for nodes that
make no call; a call's are in its child. Large values are left out, and `cut` is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from onward.faults import Fault
from onward.flow.nodes import KINDS
from onward.flow.nodes.kind import NodeVisit
from onward.flow.scope import ABSENT
from onward.flow.step import NodeNote

LARGE = 4_096  # about so many characters


def started(visit: NodeVisit) -> NodeNote:
    data = _about(visit)
    _add_input(data, visit)
    return NodeNote("node.started", data)


def finished(
    visit: NodeVisit,
    status: Literal["ok", "error", "canceled"],
    action: str | None,
    *,
    output: Any = ABSENT,
    fault: Fault | None = None,
    fresh: bool = False,
) -> NodeNote:
    data = _about(visit)
    data["status"] = status
    if action is not None:
        data["action"] = action
    if fresh:
        _add_input(data, visit)
    if KINDS[visit.node.kind].LOGGED:
        _add(data, "output", output)
    if fault is not None:
        data["error"] = {"kind": fault.kind, "message": fault.message}
    return NodeNote("node.finished", data)


def _about(visit: NodeVisit) -> dict[str, Any]:
    data: dict[str, Any] = {"seq": visit.seq, "node": visit.path, "kind": visit.node.kind}
    record = visit.records.get(visit.record_key)
    if record is None or not record.total:
        return data
    if KINDS[visit.node.kind].CALLS == "services":
        data["calls"] = record.next
        if record.failed:
            data["failed"] = len(record.failed)
    else:
        data["child"] = visit.child(0)
    return data


def _add_input(data: dict[str, Any], visit: NodeVisit) -> None:
    """Of one call it is in the child."""
    if KINDS[visit.node.kind].CALLS not in ("service", "child"):
        _add(data, "input", visit.scope.input)


def _add(data: dict[str, Any], field: str, value: Any) -> None:
    if value is ABSENT or value is None:
        return
    if _large(value):
        data["cut"] = True
    else:
        data[field] = value


def _large(value: Any) -> bool:
    weight, waiting = 0, [value]
    while waiting and weight <= LARGE:
        each = waiting.pop()
        weight += len(each) if isinstance(each, str) else 4
        if isinstance(each, Mapping):
            weight += sum(map(len, each))
            waiting.extend(each.values())
        elif isinstance(each, list):
            weight += len(each)
            waiting.extend(each)
    return weight > LARGE
