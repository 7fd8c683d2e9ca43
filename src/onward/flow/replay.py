"""The shared state of a run at any step, rebuilt: nothing of it is kept but the state as it is now.

A run's log says which nodes it entered and how each ended; results lie in the calls. What a node
writes follows from its definition and its result, so going over the log once more gives every state
in between. Where a result is not to be had, its keys are unknown and say why: never a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from onward.core.task import TaskId
from onward.flow.levels import Level
from onward.flow.nodes.fan import successes
from onward.flow.nodes.kind import key_path
from onward.flow.parts import Definition, Node, Prep
from onward.flow.scope import ABSENT, outputs, own, parted, reserved, shared_key
from onward.flow.step import ChildResult, NodeNote

GONE = "the record of its call is gone"
LARGE = "the value was too large to be written down"
RACED = "which calls had ended when the first one failed was not written down"
FROM_UNKNOWN = "it comes from something that is unknown"
EVERYTHING = "*"  # instead of a key: not even the keys are known

Unknown = Mapping[str, str]  # key → why
State = tuple[Mapping[str, Any], Unknown]


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One step, and the state of the graph that its node is in: the run's own, or a subflow's."""

    seq: int
    node: str
    kind: str
    around: tuple[State, ...]  # of the graphs around its own, outermost first
    before: Mapping[str, Any]
    after: Mapping[str, Any] | None  # None: it is not over
    unknown_before: Unknown
    unknown: Unknown  # after it, or as yet


class Ends(msgspec.Struct, frozen=True):
    """How the run's calls ended: by their ids, and those of nodes with many by step and index."""

    single: Mapping[TaskId, ChildResult]
    many: Mapping[int, Mapping[int, ChildResult]] = {}


class Replay:
    def __init__(
        self,
        definition: Definition,
        shared: Mapping[str, Any],
        params: Mapping[str, Any],
        inside: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        self._inside = list(inside)  # what subflows begin with where a fork begins in them
        self._frames = [_Frame(Level(definition, params, ABSENT, ""), own(shared))]
        self._failed_at = ""  # the node at which the latest failure began
        self.moments: dict[int, Moment] = {}

    @property
    def shared(self) -> Mapping[str, Any]:
        """The run's own state, as far as it has been replayed."""
        return self._frames[0].shared

    @property
    def unknown(self) -> Unknown:
        return self._frames[0].unknown

    def through(self, notes: Iterable[NodeNote], ends: Ends) -> None:
        """Over the run's log, in its order."""
        for note in notes:
            if note.type == "node.started":
                self._start(note.data)
            elif note.type == "node.finished":
                self._finish(note.data, ends)

    def _start(self, data: Mapping[str, Any]) -> None:
        frame = self._frames[-1]
        self._keep(data, frame, over=False)
        node = frame.node(data["node"])
        if data["kind"] == "subflow" and node is not None:
            blind = frame.blind(node.prep)
            level = frame.level.inside(node.key, frame.shared)
            given = self._inside.pop(0) if self._inside else None
            begun = level.input if given is None else given
            inner = _Frame(level, {} if blind and given is None else own(begun))
            if blind and given is None:
                inner.unknown[EVERYTHING] = FROM_UNKNOWN
            self._frames.append(inner)

    def _finish(self, data: Mapping[str, Any], ends: Ends) -> None:
        if data["seq"] not in self.moments:
            self._keep(data, self._frames[-1], over=False)
        inner: _Frame | None = None
        if data["kind"] == "subflow" and len(self._frames) > 1:
            inner = self._frames.pop()
        frame = self._frames[-1]
        node = frame.node(data["node"])
        if data["kind"] == "compensation":
            frame = self._frames[0]  # undoing writes nothing, wherever its node lies
        elif node is not None and data["status"] == "ok":
            frame.write(_writes(node, data, frame, inner, ends))
        elif node is not None and data["status"] == "error":
            self._fail(node, data, frame, inner, ends)
        self._keep(data, frame, over=True)

    def _fail(
        self,
        node: Node,
        data: Mapping[str, Any],
        frame: _Frame,
        inner: _Frame | None,
        ends: Ends,
    ) -> None:
        if inner is None:
            self._failed_at = data["node"]
        if node.kind in ("foreach", "parallel"):
            frame.write(_fanned(node, data, ends))
        elif node.kind == "approval" and data["error"]["kind"] == "Rejected":
            frame.write(_decided(node, "rejected"))
        if node.post.error_key is not None and "action" in data:
            frame.write({node.post.error_key: {**data["error"], "node": self._failed_at}})

    def _keep(self, data: Mapping[str, Any], frame: _Frame, *, over: bool) -> None:
        begun = self.moments.get(data["seq"])
        now, unknown = dict(frame.shared), dict(frame.unknown)
        outer = self._frames[: self._frames.index(frame)] if begun is None else []
        around = tuple((dict(each.shared), dict(each.unknown)) for each in outer)
        self.moments[data["seq"]] = Moment(
            seq=data["seq"],
            node=data["node"],
            kind=data["kind"],
            around=around if begun is None else begun.around,
            before=now if begun is None else begun.before,
            after=now if over else None,
            unknown_before=unknown if begun is None else begun.unknown_before,
            unknown=unknown,
        )


class _Unknown(msgspec.Struct, frozen=True):
    why: str


class _Frame:
    """A graph that the run is in, and its state."""

    def __init__(self, level: Level, shared: dict[str, Any]) -> None:
        self.level = level
        self.shared = shared
        self.unknown: dict[str, str] = {}

    def node(self, path: str) -> Node | None:
        return self.level.graph.nodes.get(path.removeprefix(self.level.path))

    def write(self, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            if reserved(key):
                continue
            self.shared.pop(key, None)
            self.unknown.pop(key, None)
            if isinstance(value, _Unknown):
                self.unknown[key] = value.why
            else:
                self.shared[key] = value

    def input_of(self, node: Node) -> Any:
        return _Unknown(FROM_UNKNOWN) if self.blind(node.prep) else self._scope(node).input

    def find(self, node: Node, path: str) -> Any:
        return ABSENT if self._hidden(path) else self._scope(node).find(path)

    def blind(self, prep: Prep) -> bool:
        """Whether an input is made of something unknown."""
        paths = [*prep.input_map.values(), *([] if prep.input_key is None else [prep.input_key])]
        return any(map(self._hidden, paths))

    def _hidden(self, path: str) -> bool:
        root, rest = parted(path)
        if EVERYTHING in self.unknown:
            return root != "$params"
        if root != "$shared":
            return False
        return any(not rest or f"{rest}.".startswith(f"{key}.") for key in self.unknown)

    def _scope(self, node: Node) -> Any:
        return self.level.scope(node, self.shared)


def _writes(
    node: Node, data: Mapping[str, Any], frame: _Frame, inner: _Frame | None, ends: Ends
) -> Mapping[str, Any]:
    """What a node that went well has written."""
    match node.kind:
        case "subflow":
            result: Any = ABSENT if inner is None else dict(inner.shared)
            if inner is not None and inner.unknown:
                result = _Unknown(FROM_UNKNOWN)
        case "choice" | "timer":
            result = frame.input_of(node)
            if isinstance(result, _Unknown):
                result = data.get("input", result)
        case "foreach" | "parallel":
            return _fanned(node, data, ends)
        case "wait_event":
            return _signalled(node, data, frame)
        case "approval":
            result = data.get("output", _Unknown(LARGE))
            word = result["decision"] if isinstance(result, Mapping) else result
            return {**_outputs(node, result), **_decided(node, word)}
        case _:
            answer = ends.single.get(data.get("child", ""))
            known = answer is not None and answer.fault is None
            result = answer.value if answer is not None and known else _Unknown(GONE)
    return _outputs(node, result)


def _outputs(node: Node, result: Any) -> Mapping[str, Any]:
    if not isinstance(result, _Unknown):
        return outputs(node.post, result)
    keys = [*node.post.output_map, *([node.post.output_key] if node.post.output_key else [])]
    return dict.fromkeys(keys, result)


def _signalled(node: Node, data: Mapping[str, Any], frame: _Frame) -> Mapping[str, Any]:
    value = _Unknown(LARGE) if data.get("cut") else data.get("output")
    path = key_path(node, "signal_key")
    key = shared_key(path)
    # It goes on for what lies there already, or for a signal, which alone is written.
    lay_there = path is not None and not isinstance(value, _Unknown) and value
    by_signal = not (lay_there and frame.find(node, path or "") == value)
    writes = {key: value} if key is not None and by_signal else {}
    return {**_outputs(node, value), **writes}


def _decided(node: Node, word: Any) -> Mapping[str, Any]:
    key = shared_key(key_path(node, "approval_key"))
    return {} if key is None else {key: word}


def _fanned(node: Node, data: Mapping[str, Any], ends: Ends) -> Mapping[str, Any]:
    answers = ends.many.get(data["seq"], {})
    calls = data.get("calls", 0)
    cut_short = data.get("failed") and node.failure_strategy == "fail_fast"
    if data["status"] == "error" and not cut_short:
        return {}  # it could not begin, or there was more than it may keep
    if any(index not in answers for index in range(calls)):
        return _outputs(node, _Unknown(GONE))
    every = [answers[index] for index in range(calls)]
    if node.failure_strategy == "collect_errors":
        errors = [
            {"index": index, "kind": each.fault.kind, "message": each.fault.message}
            for index, each in enumerate(every)
            if each.fault is not None
        ]
        return _outputs(node, {"results": successes(every), "errors": errors})
    if cut_short and node.parallel_mode != "sequential":
        return _outputs(node, _Unknown(RACED))
    return _outputs(node, successes(every))
