"""What goes into an advance and what comes out of it: news and results, calls, notes and endings.

Records only. The executor turns letters into news, calls into child tasks, and a StepResult into a
move.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from onward.core.task import Instant, TaskId
from onward.faults import Fault
from onward.flow.state import RunState

TIMEOUTS = frozenset({"TIMEOUT", "timeout"})  # kinds of fault that take the edge `timeout`


class ChildEnded(msgspec.Struct, frozen=True):
    child: TaskId
    ok: bool
    size: int = 0  # of its result or error, in characters


class Signal(msgspec.Struct, frozen=True):
    name: str
    value: Any = None


class Cancel(msgspec.Struct, frozen=True):
    pass


News: TypeAlias = ChildEnded | Signal | Cancel


class ChildResult(msgspec.Struct, frozen=True):
    """How a child ended, as it stands in the child: its result, or why there is none."""

    value: Any = None
    fault: Fault | None = None


class ChildCall(msgspec.Struct, frozen=True, kw_only=True):
    """A child to be born with the move. Its id is the same however often the advance is made."""

    id: TaskId
    kind: Literal["service", "approval", "flow"]
    node: str  # the node's path; subflows are parted by "/"
    seq: int  # the step that it belongs to, as in the notes
    index: int = 0  # which of the node's calls
    purpose: Literal["node", "compensation"] = "node"
    service: str | None = None
    input: Any = None
    params: Mapping[str, Any] = {}
    tries: int = 1  # calls of one worker
    workers: int = 1
    wait_ms: int = 0  # between calls of one worker
    attempt_delay_ms: int = 0  # before the next worker
    weighted_by_load: bool = True
    timeout_ms: int | None = None  # one call at most; of an approval: the question stands so long
    reason: str | None = None  # approval: why a person is asked
    flow: str | None = None  # flow: name or id, and which version (None: the newest)
    version: int | None = None


class NodeNote(msgspec.Struct, frozen=True):
    """Something for the run's log."""

    type: Literal["node.started", "node.finished", "signal.dropped"]
    data: Mapping[str, Any]


class RunCompleted(msgspec.Struct, frozen=True):
    shared: Mapping[str, Any]


class RunFailed(msgspec.Struct, frozen=True):
    kind: str
    message: str
    node: str


class RunCanceled(msgspec.Struct, frozen=True):
    pass


End: TypeAlias = RunCompleted | RunFailed | RunCanceled


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """One advance. With `need` nothing has happened: come again with those answers too.

    A run that waits for a person is `waiting_for` its child, which asks: a task that itself waits
    for "approval" would be woken by no letter.
    """

    state: RunState
    need: tuple[TaskId, ...] = ()
    calls: tuple[ChildCall, ...] = ()
    stop: tuple[TaskId, ...] = ()
    notes: tuple[NodeNote, ...] = ()
    end: End | None = None
    waiting_for: Literal["children", "event", "timer"] | None = None
    until: Instant | None = None


def timed_out(fault: Fault) -> bool:
    return fault.kind in TIMEOUTS
