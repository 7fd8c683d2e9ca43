"""What a run is made of in the ledger: its task, and the tasks that it bears. Records, and reading.

A run's payload says how it began, its journal where it stands, its result what it ended with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from onward.core.approval import Status, approval_of
from onward.core.task import Claimed, Instant, Priority, State, Task, TaskId, encode, fault_of
from onward.faults import Fault
from onward.flow import state as states
from onward.flow.catalog import Published
from onward.flow.state import RunState
from onward.flow.step import ChildResult

PROFILE, NODE = "flow", "node"
QUEUE = "flow:runs"
QUESTION = "flow:approval"  # the type of a child that asks a person
SIGNAL = "signal"  # the name of the letter that brings one


class Start(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The payload of a run."""

    version: str = ""  # "": there was none to be found, and the run says so
    flow: str = ""
    params: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    at: str = ""  # the path of the node that it begins with
    inside: tuple[dict[str, Any], ...] = ()  # states of the subflows around that node
    forked_from: str | None = None
    depth: int = 0
    priority: Priority = Priority.NORMAL


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The payload of a question to a person: what they see before they decide."""

    run: TaskId
    node: str
    input: Any = None
    params: Mapping[str, Any] = {}


class Called(msgspec.Struct, frozen=True, kw_only=True):
    """The payload of a call, as the worker protocol of flows has it."""

    input: Any
    params: Mapping[str, Any]


class CallPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where in its run a call belongs; kept as the journal of the call's task."""

    node: str
    seq: int
    index: int = 0
    purpose: str = "node"
    generation: int = 1


_decode_start = msgspec.json.Decoder(Start).decode
_decode_place = msgspec.json.Decoder(CallPlace).decode


def start_of(payload: str) -> Start:
    try:
        return _decode_start(payload)
    except msgspec.DecodeError:  # replayed with another payload: it fails, readably
        return Start()


def place_of(child: Task) -> CallPlace | None:
    """None if this child is not the call of a service."""
    if child.journal is None or child.profile != NODE or child.type == QUESTION:
        return None
    return _decode_place(child.journal)


def memory_of(run: Task) -> RunState | None:
    """None: it has not made its first step."""
    if run.journal is None:
        return None
    return states.decode(run.journal, states.read_bulk(run.bulk))


def shared_of(run: Task) -> dict[str, Any]:
    """The shared state as it is now, with the engine's records beside it."""
    memory = memory_of(run)
    if memory is None:
        return start_of(run.payload).shared
    if run.state is State.SUCCEEDED and run.result is not None:
        memory.frames[0].shared = msgspec.json.decode(run.result)
    return states.visible(memory)


def node_of(run: Task) -> str:
    """The path of the node at which it stands, or will begin."""
    memory = memory_of(run)
    return start_of(run.payload).at if memory is None else states.current_node(memory)


def scope_of(run: Task | Claimed) -> str:
    """What the ids of children begin with: a replayed run has children of its own."""
    return run.id if run.generation == 1 else f"{run.id}-g{run.generation}"


def call_of(run: Task) -> TaskId | None:
    """The call that the run waits for, if its node makes one alone."""
    memory = memory_of(run)
    if memory is None or run.state is not State.WAITING:
        return None
    frame = memory.frames[-1]
    record = frame.records.get(f"{states.CALLS}:{frame.node}")
    return f"{scope_of(run)}-{record.first}" if record is not None and record.open else None


def answer_of(child: Task | None) -> ChildResult:
    """How a call ended, for the run that made it."""
    if child is None:
        return ChildResult(fault=Fault(kind="Missing", message="its record is gone"))
    if child.state is State.SUCCEEDED:
        return ChildResult(value=msgspec.json.decode(child.result or "null"))
    fault = fault_of(child.error)
    if fault is None or child.state is State.CANCELED:
        return ChildResult(fault=Fault(kind="canceled", message="it was canceled"))
    asked = approval_of(child)
    if asked is not None and asked.status is Status.EXPIRED:
        fault = Fault(kind="timeout", message="nobody decided in time")
    return ChildResult(fault=fault)


def new_run(id: TaskId, published: Published, now: Instant, start: Start, **more: Any) -> Task:
    """`start` says the rest; which flow, and where it begins, follows from what is published."""
    version, definition = published
    begun = msgspec.structs.replace(
        start, version=version.id, flow=version.name, at=start.at or definition.start
    )
    return unpublished_run(id, begun, now, **more)


def unpublished_run(id: TaskId, start: Start, now: Instant, **more: Any) -> Task:
    """Without a version it fails when it is claimed, and says why."""
    return Task(
        id=id,
        type=f"flow:{start.flow}",
        queue=QUEUE,
        profile=PROFILE,
        payload=encode(start),
        created_at=now,
        priority=start.priority,
        **more,
    )
