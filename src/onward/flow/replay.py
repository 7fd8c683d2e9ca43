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
from onward.flow.nodes import KINDS
from onward.flow.nodes.kind import FROM_UNKNOWN, Past, Unknown
from onward.flow.parts import Definition, Node, Prep
from onward.flow.scope import ABSENT, outputs, own, parted, reserved
from onward.flow.step import ChildResult, NodeNote

EVERYTHING = "*"  # instead of a key: not even the keys are known

Reasons = Mapping[str, str]  # by key, why its value is unknown
State = tuple[Mapping[str, Any], Reasons]


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One step, and the state of the graph that its node is in: the run's own, or a subflow's."""

    seq: int
    node: str
    kind: str
    around: tuple[State, ...]  # of the graphs around its own, outermost first
    before: Mapping[str, Any]
    after: Mapping[str, Any] | None  # None: it is not over
    unknown_before: Reasons
    unknown: Reasons  # after it, or as yet


class Ends(msgspec.Struct, frozen=True):
    """How the run's calls ended: by their ids, and those of nodes with many by step and index."""

    single: Mapping[TaskId, ChildResult]
    many: Mapping[int, Mapping[int, ChildResult]] = {}


class RunReplay:
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
    def unknown(self) -> Reasons:
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
                inner.unknown[EVERYTHING] = FROM_UNKNOWN.why
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
        elif node is not None and data["status"] in ("ok", "error"):
            frame.write(_written(frame.past(node, data, inner, ends)))
            if data["status"] == "error":
                self._fail(node, data, frame, inner)
        self._keep(data, frame, over=True)

    def _fail(
        self, node: Node, data: Mapping[str, Any], frame: _Frame, inner: _Frame | None
    ) -> None:
        if inner is None:
            self._failed_at = data["node"]
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
            if isinstance(value, Unknown):
                self.unknown[key] = value.why
            else:
                self.shared[key] = value

    def past(self, node: Node, data: Mapping[str, Any], inner: _Frame | None, ends: Ends) -> Past:
        last: Any = ABSENT if inner is None else dict(inner.shared)
        if inner is not None and inner.unknown:
            last = FROM_UNKNOWN
        scope = self.level.scope(node, self.shared)
        return Past(
            node=node,
            data=data,
            input=FROM_UNKNOWN if self.blind(node.prep) else scope.input,
            find=lambda path: ABSENT if self._hidden(path) else scope.find(path),
            inner=last,
            answer=ends.single.get(data.get("child", "")),
            answers=ends.many.get(data["seq"], {}),
        )

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


def _written(past: Past) -> Mapping[str, Any]:
    """As the engine writes it, but for what is unknown."""
    node, done = past.node, KINDS[past.node.kind].recall(past)
    if isinstance(done.result, Unknown):
        keys = [*node.post.output_map, *([node.post.output_key] if node.post.output_key else [])]
        return {**dict.fromkeys(keys, done.result), **done.writes}
    return {**outputs(node.post, done.result), **done.writes}
