"""A run's memory between two advances: where it stands, its shared state, what it waits for.

Small on purpose: of a node's calls it keeps counters and the indexes that are out or failed, never
items or results. Encoded it is the journal of the run's task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from onward.core.task import Instant, Json, TaskId
from onward.flow.parts import Definition
from onward.flow.scope import RESERVED, own

CALLS = "ex"  # records of single calls, which no reader of the run needs to see


class Record(msgspec.Struct, omit_defaults=True):
    """What a node remembers while it waits, and what is shown of it later as `_rt`."""

    start: Instant
    first: int = 0  # the number of its first child; the others follow
    total: int = 0
    next: int = 0  # the index to be called next
    open: list[int] = msgspec.field(default_factory=list)
    failed: list[int] = msgspec.field(default_factory=list)
    mode: str = ""
    max: int = 0
    strategy: str = ""
    decision: str = ""

    def done(self) -> list[int]:
        """Indexes that ended well."""
        out = {*self.open, *self.failed}
        return [index for index in range(self.next) if index not in out]


class Frame(msgspec.Struct, omit_defaults=True):
    """A place in one graph: the run's own, or that of a subflow inside it."""

    node: str
    seq: int = 0  # the step in which the node was entered; 0: not yet
    shared: dict[str, Any] = msgspec.field(default_factory=dict)
    records: dict[str, Record] = msgspec.field(default_factory=dict)
    passed: dict[str, Passed] = msgspec.field(default_factory=dict)  # subflows that are over
    last: str = ""


class Passed(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is left of a subflow: its shared state lies in the parent's output key, if anywhere."""

    curr: str
    last: str = ""
    output: str = ""


class Stashed(msgspec.Struct, frozen=True):
    name: str
    value: Any = None


class Undo(msgspec.Struct, frozen=True):
    node: str
    input: Any = None


class Undoing(msgspec.Struct, frozen=True):
    node: str
    child: TaskId
    seq: int


class Failure(msgspec.Struct, frozen=True):
    kind: str
    message: str
    node: str


class RunState(msgspec.Struct, omit_defaults=True):
    frames: list[Frame]  # the last one is where the run stands
    step_count: int = 0
    last_action: str = ""
    children: int = 0  # numbers given to children so far
    signals: list[Stashed] = msgspec.field(default_factory=list)
    undo: list[Undo] = msgspec.field(default_factory=list)  # the last is undone first
    undoing: Undoing | None = None
    failure: Failure | None = None
    canceling: bool = False
    winding_up: bool = False  # no further node: what is out is stopped, what was done undone
    stop_by: Instant | None = None


_decode = msgspec.json.Decoder(RunState).decode


def encode(state: RunState) -> Json:
    return msgspec.json.encode(state).decode()


def decode(journal: Json) -> RunState:
    return _decode(journal)


def begin(definition: Definition, shared: Any = None, *, at: str | None = None) -> RunState:
    """A run before its first step. `at` begins at another node, as a fork does."""
    return RunState(frames=[Frame(node=at or definition.start, shared=own(shared))])


def copy(state: RunState) -> RunState:
    """So that an advance leaves what it was given alone. Values in shared are never changed."""
    return msgspec.structs.replace(
        state,
        frames=[_copied(frame) for frame in state.frames],
        signals=list(state.signals),
        undo=list(state.undo),
    )


def _copied(frame: Frame) -> Frame:
    records = {
        key: msgspec.structs.replace(record, open=list(record.open), failed=list(record.failed))
        for key, record in frame.records.items()
    }
    return msgspec.structs.replace(
        frame, shared=dict(frame.shared), records=records, passed=dict(frame.passed)
    )


def current_node(state: RunState) -> str:
    """The path of the node at which the run stands."""
    return "/".join(frame.node for frame in state.frames)


def visible(state: RunState) -> dict[str, Any]:
    """Shared as readers of the run see it: with the engine's records under `_rt`."""
    return _visible(state.frames)


def _visible(frames: list[Frame]) -> dict[str, Any]:
    frame = frames[0]
    shown: dict[str, Any] = {
        key: _projected(key, record)
        for key, record in frame.records.items()
        if not key.startswith(CALLS + ":")
    }
    for key, over in frame.passed.items():
        left = frame.shared.get(over.output, {})
        shown[f"sf:{key}"] = {"curr": over.curr, "shared": left, "last": over.last}
    if len(frames) > 1:
        inner = {"curr": frames[1].node, "shared": _visible(frames[1:]), "last": frames[1].last}
        shown[f"sf:{frame.node}"] = inner
    return {**frame.shared, RESERVED: shown} if shown else dict(frame.shared)


def _projected(key: str, record: Record) -> Mapping[str, Any]:
    kind = key.partition(":")[0]
    if kind in ("pl", "fe"):
        fan = {
            "done": record.done(),
            "errs": record.failed,
            "mode": record.mode,
            "max": record.max,
            "strategy": record.strategy,
        }
        return fan if kind == "pl" else {**fan, "idx": record.next}
    if kind == "ap":
        decision = {"decision": record.decision} if record.decision else {}
        return {"start": record.start, **decision}
    return {"start": record.start}
