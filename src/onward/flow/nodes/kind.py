"""What a node kind is, and the visit in which it looks at its node.

A kind is a module with what `Kind` asks for. It reads and writes nothing but the visit: pure, no
clock, no ids of its own. What follows from its verdict is the engine's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, Unpack

import msgspec

from onward.core.task import Instant, TaskId
from onward.faults import Fault
from onward.flow.fields import MAX_MS, whole
from onward.flow.parts import Definition, Node
from onward.flow.scope import ABSENT, FlowScope, is_path, path_flaw
from onward.flow.state import NodeRecord, Stashed
from onward.flow.step import ChildCall, ChildEnded, ChildResult, timed_out


class NodeDone(msgspec.Struct, frozen=True):
    result: Any = ABSENT
    action: str | None = None  # None: as `post` and `default_action` say
    writes: Mapping[str, Any] = {}


class NodeFailed(msgspec.Struct, frozen=True):
    fault: Fault
    result: Any = ABSENT  # what there is nevertheless
    writes: Mapping[str, Any] = {}
    undo: Any = ABSENT  # what there is to undo, if it is not to be a result


class NodeWaits(msgspec.Struct, frozen=True):
    what: Literal["children", "event", "timer"]
    until: Instant | None = None


class EnterSubflow(msgspec.Struct, frozen=True):
    """Go on in the subflow, which begins with this shared state."""

    shared: Mapping[str, Any]


Verdict: TypeAlias = NodeDone | NodeFailed | NodeWaits | EnterSubflow
Flaws: TypeAlias = Iterator[tuple[str, str]]  # field, what is wrong with it


class Unknown(msgspec.Struct, frozen=True):
    """In place of a value that cannot be rebuilt."""

    why: str


GONE = Unknown("the record of its call is gone")
LARGE = Unknown("the value was too large to be written down")
FROM_UNKNOWN = Unknown("it comes from something that is unknown")


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """A visit that is over, as the log has it. Any value in it may be Unknown."""

    node: Node
    data: Mapping[str, Any]  # of its `node.finished`
    input: Any
    find: Callable[[str], Any]  # what a path led to then; ABSENT if that is unknown
    inner: Any  # the last state of a subflow
    answer: ChildResult | None  # of its one call
    answers: Mapping[int, ChildResult]  # of its many

    @property
    def ok(self) -> bool:
        return bool(self.data["status"] == "ok")


class Kind(Protocol):
    RECORD: str  # how its record is called in `_rt`; "": it keeps none
    CALLS: str  # "service": one call of one; "services": many; "child": of a person or a flow; ""
    LOGGED: bool  # whether its result is in the run's log: no call has it

    def check(self, node: Node) -> Flaws: ...
    def enter(self, visit: NodeVisit) -> Verdict: ...
    def resume(self, visit: NodeVisit) -> Verdict: ...

    def recall(self, past: Past) -> NodeDone:
        """What it wrote then: the same as the verdict with which it ended."""
        ...


class Missing(Exception):
    """Answers that are needed and were not given."""

    def __init__(self, children: Iterable[TaskId]) -> None:
        super().__init__()
        self.children = tuple(children)


class Advance(msgspec.Struct):
    """What one advance was given, and what it has asked for so far."""

    run_id: str
    now: Instant
    ended: Mapping[TaskId, ChildEnded]
    results: Mapping[TaskId, ChildResult]
    numbers: int  # given to children so far, in the whole run
    calls: list[ChildCall] = msgspec.field(default_factory=list)
    stop: list[TaskId] = msgspec.field(default_factory=list)

    def number(self, count: int = 1) -> int:
        """The first of so many fresh numbers for children."""
        self.numbers += count
        return self.numbers - count

    def child(self, number: int) -> TaskId:
        return f"{self.run_id}-{number}"

    def answers(self, children: Sequence[TaskId]) -> list[ChildResult]:
        missing = [child for child in children if child not in self.results]
        if missing:
            raise Missing(missing)
        return [self.results[child] for child in children]


class Rest(TypedDict, total=False):
    """What few calls have besides."""

    params: Mapping[str, Any]
    timeout_ms: int | None
    reason: str | None
    flow: str | None
    version: int | None


class NodeVisit(msgspec.Struct):
    node: Node
    path: str
    seq: int
    graph: Definition
    scope: FlowScope  # with the node's own params merged in, and its input
    records: dict[str, NodeRecord]
    record_key: str
    signals: list[Stashed]
    advance: Advance
    top: bool  # in the run's own graph, not in a subflow

    @property
    def now(self) -> Instant:
        return self.advance.now

    @property
    def record(self) -> NodeRecord:
        return self.records[self.record_key]

    def begin(self, total: int = 0) -> NodeRecord:
        """A fresh record, with numbers for so many children."""
        record = NodeRecord(start=self.now, first=self.advance.number(total), total=total)
        self.records[self.record_key] = record
        return record

    def child(self, index: int) -> TaskId:
        return self.advance.child(self.records[self.record_key].first + index)

    def call(
        self,
        kind: Literal["service", "approval", "flow"],
        service: str | None,
        value: Any,
        **rest: Unpack[Rest],
    ) -> None:
        """The next of this node's calls."""
        record, node = self.record, self.node
        index = record.next
        record.open.append(index)
        record.next += 1
        settings: Rest = {"params": self.scope.params, "timeout_ms": node.timeout_ms, **rest}
        self.advance.calls.append(
            ChildCall(
                id=self.child(index),
                kind=kind,
                node=self.path,
                seq=self.seq,
                index=index,
                service=service,
                input=None if value is ABSENT else value,
                tries=node.max_retries + 1,
                workers=node.max_attempts,
                wait_ms=node.wait_ms,
                attempt_delay_ms=node.attempt_delay_ms,
                weighted_by_load=node.weighted_by_load,
                **settings,
            )
        )

    def hear(self) -> None:
        """Take note of calls that have ended; a letter from any other child changes nothing."""
        record = self.record
        still: list[int] = []
        for index in record.open:
            ended = self.advance.ended.get(self.child(index))
            if ended is None:
                still.append(index)
                continue
            record.size += ended.size
            if not ended.ok:
                record.failed.append(index)
        record.open = still

    def stop(self) -> None:
        self.advance.stop.extend(self.child(index) for index in self.record.open)

    def answers(self, indexes: Iterable[int]) -> list[ChildResult]:
        return self.advance.answers([self.child(index) for index in indexes])

    def take_signal(self, names: Iterable[str]) -> Stashed | None:
        """The oldest signal by one of these names; it is used up."""
        wanted = frozenset(names)
        for signal in self.signals:
            if signal.name in wanted:
                self.signals.remove(signal)
                return signal
        return None

    def leads(self, action: str) -> bool:
        return self.graph.leads(self.node.key, action)

    def failure_action(self, fault: Fault) -> str | None:
        """Which edge a failure takes. Never the default one; None: there is none."""
        if timed_out(fault) and self.leads("timeout"):
            return "timeout"
        return "error" if self.leads("error") else None

    def span_ms(self, name: str) -> int | Fault | None:
        """A duration from the node's own params: a number, or a path to one. None: not set."""
        value = self.node.params.get(name)
        if isinstance(value, str) and value:
            value = self.scope.find(value)
        if value is None or value is ABSENT or value == "":
            return None
        span = whole(value)
        if span is None or not 0 <= span <= MAX_MS:
            message = f"params.{name} is no duration in ms"
            return Fault(kind="InvalidInput", message=message, retryable=False)
        return span


def recall_input(past: Past) -> NodeDone:
    """Of a kind that passes its input through."""
    if not past.ok:
        return NodeDone()
    unknown = isinstance(past.input, Unknown)
    return NodeDone(past.data.get("input", past.input) if unknown else past.input)


def span_flaws(node: Node, name: str) -> Flaws:
    value = node.params.get(name)
    if isinstance(value, str) and value:
        flaw = path_flaw(value) if is_path(value) else "must be a number of ms, or a path to one"
        if flaw is not None:
            yield f"params.{name}", flaw
    elif value is not None and value != "":
        span = whole(value)
        if span is None or not 0 <= span <= MAX_MS:
            yield f"params.{name}", f"must be a whole number from 0 to {MAX_MS}, or a path to one"


def key_path_flaws(node: Node, name: str) -> Flaws:
    """Of a path in params that may also be a bare shared key."""
    value = node.params.get(name)
    if value is None or value == "":
        return
    flaw = path_flaw(value) if isinstance(value, str) else "must be a path"
    if flaw is not None:
        yield f"params.{name}", flaw


def key_path(node: Node, name: str) -> str | None:
    value = node.params.get(name)
    return value if isinstance(value, str) and value else None


def service_flaws(node: Node) -> Flaws:
    if node.service is None:
        yield "service", "is missing"
