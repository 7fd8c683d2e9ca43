"""A run's memory between two advances: where it stands, its shared state, what it waits for.

Small on purpose: of a node's calls it keeps counters and the indexes that are out or failed, never
items or results. Encoded it is the journal of the run's task. Values, if they are large, are kept
apart as the task's bulk: most steps change counters only, and write nothing of them.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from onward.core.task import Instant, Json, TaskId
from onward.flow.parts import Definition
from onward.flow.scope import RESERVED, own

CALLS = "ex"  # records of single calls, which no reader of the run needs to see


class NodeRecord(msgspec.Struct, omit_defaults=True):
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
    size: int = 0  # of the results that there are, in characters

    def done(self) -> list[int]:
        """Indexes that ended well."""
        out = {*self.open, *self.failed}
        return [index for index in range(self.next) if index not in out]


class Frame(msgspec.Struct, omit_defaults=True):
    """A place in one graph: the run's own, or that of a subflow inside it."""

    node: str
    seq: int = 0  # the step in which the node was entered; 0: not yet
    shared: dict[str, Any] = msgspec.field(default_factory=dict)
    records: dict[str, NodeRecord] = msgspec.field(default_factory=dict)
    passed: dict[str, Passed] = msgspec.field(default_factory=dict)  # subflows that are over
    last: str = ""


class Passed(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is left of a subflow: its shared state lies in the parent's output key, if anywhere."""

    curr: str
    last: str = ""
    output: str = ""


class Inner(msgspec.Struct, frozen=True):
    """Where in a subflow to begin, and with what: a fork from a node inside it."""

    node: str
    shared: dict[str, Any]


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


class NodeFailure(msgspec.Struct, frozen=True):
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
    failure: NodeFailure | None = None
    canceling: bool = False
    winding_up: bool = False  # no further node: what is out is stopped, what was done undone
    stop_by: Instant | None = None
    inside: list[Inner] = msgspec.field(default_factory=list)  # subflows still to be entered so


class Values(msgspec.Struct, frozen=True):
    """The values in a run's memory, as its bulk holds them."""

    shared: list[dict[str, Any]]  # of each frame
    undo: list[Undo]
    signals: list[Stashed]


class LargeValues(msgspec.Struct, frozen=True):
    """Values as they lie in the ledger: a step that leaves them alone need not write them."""

    text: Json
    values: Values

    def holds(self, state: RunState) -> bool:
        """Whether it has this state's values. By identity: values are replaced, never changed."""
        mine = self.values
        return (
            len(mine.shared) == len(state.frames)
            and all(map(_same_items, mine.shared, [frame.shared for frame in state.frames]))
            and _same(mine.undo, state.undo)
            and _same(mine.signals, state.signals)
        )


class _Split(msgspec.Struct):
    """A journal whose values are in the bulk. No reader takes it for a whole one."""

    split: RunState


LARGE = 4_096  # characters of values; fewer stay in the journal

_decode = msgspec.json.Decoder(RunState).decode
_decode_split = msgspec.json.Decoder(_Split).decode
_decode_values = msgspec.json.Decoder(Values).decode


def encode(state: RunState) -> Json:
    return msgspec.json.encode(state).decode()


def decode(journal: Json, bulk: LargeValues | None = None) -> RunState:
    if bulk is None:
        return _decode(journal)
    state, values = _decode_split(journal).split, bulk.values
    for frame, shared in zip(state.frames, values.shared, strict=True):
        frame.shared = shared
    return msgspec.structs.replace(state, undo=values.undo, signals=values.signals)


def read_bulk(text: Json | None) -> LargeValues | None:
    return None if text is None else LargeValues(text, _decode_values(text))


def divide(state: RunState, bulk: LargeValues | None) -> tuple[Json, LargeValues | None]:
    """As journal and bulk, given the bulk as it was: the same object, if it need not be written."""
    if bulk is None or not bulk.holds(state):
        whole = encode(state)
        if len(whole) <= LARGE:
            return whole, None
        values = Values([frame.shared for frame in state.frames], state.undo, state.signals)
        bulk = LargeValues(msgspec.json.encode(values).decode(), values)
        if len(bulk.text) <= LARGE:
            return whole, None
    frames = [msgspec.structs.replace(frame, shared={}) for frame in state.frames]
    rest = msgspec.structs.replace(state, frames=frames, undo=[], signals=[])
    return msgspec.json.encode(_Split(rest)).decode(), bulk


def _same_items(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(one[key] is other[key] for key in one)


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(map(operator.is_, one, other))


def begin(
    definition: Definition,
    shared: Any = None,
    *,
    at: str | None = None,
    inside: Sequence[Mapping[str, Any]] = (),
) -> RunState:
    """A run before its first step. A fork begins at another node, by its path.

    Of a node in a subflow, `inside` has the state of each graph around it but the run's own.
    """
    key, *inner = (at or definition.start).split("/")
    return RunState(
        frames=[Frame(node=key, shared=own(shared))],
        inside=[Inner(node, own(state)) for node, state in zip(inner, inside, strict=True)],
    )


def copy(state: RunState) -> RunState:
    """So that an advance leaves what it was given alone. Values in shared are never changed."""
    return msgspec.structs.replace(
        state,
        frames=[_copied(frame) for frame in state.frames],
        signals=list(state.signals),
        undo=list(state.undo),
        inside=list(state.inside),
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
    return "/".join([frame.node for frame in state.frames] + [one.node for one in state.inside])


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


def _projected(key: str, record: NodeRecord) -> Mapping[str, Any]:
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
