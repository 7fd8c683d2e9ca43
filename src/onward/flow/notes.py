"""What the run's log says of a node: that it was entered, and how it ended.

A node that is over at once has only its end told. Input and output are told of nodes that make no
call; a call's are in its child. Values that are large are left out, and `cut` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from onward.core.task import Fault
from onward.flow.nodes.kind import Visit
from onward.flow.scope import ABSENT
from onward.flow.step import Note

LARGE = 4_096  # about so many characters
SINGLE = frozenset({"executor", "local", "flow_ref", "approval"})
TELL_OUTPUT = frozenset({"wait_event", "approval"})


def started(visit: Visit) -> Note:
    told = _about(visit)
    if visit.node.kind not in SINGLE:
        _tell(told, "input", visit.scope.input)
    return Note("node.started", told)


def finished(
    visit: Visit,
    status: Literal["ok", "error", "canceled"],
    action: str | None,
    *,
    output: Any = ABSENT,
    fault: Fault | None = None,
    fresh: bool = False,
) -> Note:
    told = _about(visit)
    told["status"] = status
    if action is not None:
        told["action"] = action
    if fresh and visit.node.kind not in SINGLE:
        _tell(told, "input", visit.scope.input)
    if visit.node.kind in TELL_OUTPUT:
        _tell(told, "output", output)
    if fault is not None:
        told["error"] = {"kind": fault.kind, "message": fault.message}
    return Note("node.finished", told)


def _about(visit: Visit) -> dict[str, Any]:
    told: dict[str, Any] = {"seq": visit.seq, "node": visit.path, "kind": visit.node.kind}
    record = visit.records.get(visit.record_key)
    if record is None or not record.total:
        return told
    if visit.node.kind not in SINGLE:
        told["calls"] = record.next
        if record.failed:
            told["failed"] = len(record.failed)
    else:
        told["child"] = visit.child(0)
    return told


def _tell(told: dict[str, Any], field: str, value: Any) -> None:
    if value is ABSENT or value is None:
        return
    if _large(value):
        told["cut"] = True
    else:
        told[field] = value


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
