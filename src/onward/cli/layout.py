"""How a flow's graph lies on a terminal: lines of nodes, branches that hang from them, rails.

A line runs down the page. It goes on past a fork where its branches meet again, and past a failure
edge along the other one. Each node stands once; any other edge to it is an arrow with its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from onward.flow.parts import DEFAULT, reached

if TYPE_CHECKING:
    from onward.wire.flows import EdgeView, NodeView

FAILURES = frozenset({"error", "timeout"})
DEEPEST = 8  # branches inside each other; what hangs deeper gets a line of its own
LONGEST_WORD = 24
EXIT = ""

Taken = frozenset[tuple[str, str]]  # node and target, by path


class Line(msgspec.Struct):
    """One line of the picture: rails, then an edge, then a node or an arrow to one."""

    rails: str
    edge: str = ""
    node: NodeView | None = None
    leads_to: str | None = None  # the path of a node that stands elsewhere
    arrow: Literal["↑", "↓"] = "↓"
    taken: bool = False
    note: str = ""


class Stop(msgspec.Struct):
    """A node on a line, and how the line goes on from it."""

    node: NodeView
    word: str | None = None  # the edge's action; None: wherever its branches meet
    target: str | None = None
    branches: list[DrawnBranch] = []


class DrawnBranch(msgspec.Struct):
    word: str
    target: str
    line: list[Stop]  # empty: it stands elsewhere


def lay_out(
    nodes: Sequence[NodeView], taken: Taken = frozenset(), *, airy: bool = True
) -> list[Line]:
    """`taken` are edges that a run went along; `airy` leaves room between nodes."""
    levels: dict[str, list[NodeView]] = {}
    for node in nodes:
        levels.setdefault(_folder(node.key), []).append(node)
    lines = list(_Drawing(levels, taken, airy).level("", ""))
    stands = {line.node.key: at for at, line in enumerate(lines) if line.node is not None}
    for at, line in enumerate(lines):
        if line.leads_to is not None and stands.get(line.leads_to, at) < at:
            line.arrow = "↑"
    return lines


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


class _Level:
    """One graph, planned: the run's own, or that of a subflow."""

    def __init__(self, nodes: Sequence[NodeView]) -> None:
        self.nodes = {node.key.rpartition("/")[2]: node for node in nodes}
        self._joins = joins({key: _ways(node) for key, node in self.nodes.items()})
        self._placed: set[str] = set()
        start = next((key for key, node in self.nodes.items() if node.start), EXIT)
        self._reached = set(reached(start, self._targets))
        self.lines: list[list[Stop]] = []
        for key in [start, *self.nodes]:
            if key in self.nodes and key not in self._placed:
                self.lines.append(self._line(key, None, 0))

    def _targets(self, key: str) -> list[str]:
        return [edge.to for edge in self.nodes[key].edges] if key in self.nodes else []

    def astray(self, line: Sequence[Stop]) -> bool:
        """Whether no edge leads here from the start."""
        return line[0].node.key.rpartition("/")[2] not in self._reached

    def _line(self, key: str | None, until: str | None, depth: int) -> list[Stop]:
        """The nodes of the line first, so that a branch points at them and does not take them."""
        line: list[Stop] = []
        while key is not None and key in self.nodes and key not in self._placed and key != until:
            self._placed.add(key)
            stop = self._stop(self.nodes[key], key)
            line.append(stop)
            key = stop.target
        for stop in line:
            for edge in stop.node.edges:
                if edge.action != stop.word:
                    stop.branches.append(self._branch(stop, edge, depth))
        return line

    def _stop(self, node: NodeView, key: str) -> Stop:
        ways = [edge for edge in node.edges if edge.action not in FAILURES]
        if len(ways) == 1:
            return Stop(node, ways[0].action, ways[0].to, [])
        join = self._joins.get(key) if ways else None
        return Stop(node, None, join or None, [])

    def _branch(self, stop: Stop, edge: EdgeView, depth: int) -> DrawnBranch:
        meets = stop.word is None and edge.action not in FAILURES
        deep = depth >= DEEPEST
        line = [] if deep else self._line(edge.to, stop.target if meets else None, depth + 1)
        return DrawnBranch(edge.action, edge.to, line)


def _ways(node: NodeView) -> list[str]:
    return [edge.to for edge in node.edges if edge.action not in FAILURES]


class _Drawing:
    def __init__(self, levels: Mapping[str, Sequence[NodeView]], taken: Taken, airy: bool) -> None:
        self._levels = levels
        self._taken = taken
        self._airy = airy

    def level(self, path: str, rails: str) -> Iterator[Line]:
        plan = _Level(self._levels.get(path, ()))
        for number, line in enumerate(plan.lines):
            if number:
                yield Line(rails)
            if number and plan.astray(line):
                yield Line(rails, note="no edge leads here:")
            yield from self._line(line, rails, Line(rails), None)

    def _line(
        self, line: Sequence[Stop], rails: str, first: Line, until: str | None
    ) -> Iterator[Line]:
        for number, stop in enumerate(line):
            begin = first if number == 0 else Line(rails)
            begin.node = stop.node
            yield begin
            follows = number + 1 < len(line)
            if stop.node.kind == "subflow":
                inner = "│" if follows or stop.branches else " "
                yield from self.level(stop.node.key, f"{rails}{inner} ┊ ")
            points = not follows and self._points(stop, until)
            yield from self._branches(stop, rails, more=follows or points)
            if follows:
                yield from self._between(stop, rails)
            elif points:
                yield self._arrow(stop, rails)

    @staticmethod
    def _points(stop: Stop, until: str | None) -> bool:
        """Whether the last edge of a line is drawn: not where the branches of a fork meet again."""
        if stop.target is None:
            return False
        return stop.target != until or stop.word not in (None, DEFAULT)

    def _arrow(self, stop: Stop, rails: str) -> Line:
        target = stop.target or ""
        taken = self._went(stop, target)
        edge = _edge("└", "" if stop.word in (None, DEFAULT) else stop.word or "", 0, taken)
        return Line(rails, edge, leads_to=_beside(stop.node, target), taken=taken)

    def _between(self, stop: Stop, rails: str) -> Iterator[Line]:
        named = stop.word not in (None, DEFAULT)
        if named or self._airy or stop.branches:
            taken = stop.word is not None and self._went(stop, stop.target or "")
            rail = "┃" if taken else "│"
            yield Line(rails, f"{rail} {_short(stop.word or '')}" if named else rail, taken=taken)

    def _branches(self, stop: Stop, rails: str, *, more: bool) -> Iterator[Line]:
        width = max((len(_short(branch.word)) for branch in stop.branches), default=0)
        for number, branch in enumerate(stop.branches):
            last = number + 1 == len(stop.branches) and not more
            taken = self._went(stop, branch.target)
            edge = _edge("└" if last else "├", branch.word, width, taken)
            if not branch.line:
                to = _beside(stop.node, branch.target)
                yield Line(rails, edge, leads_to=to, taken=taken)
                continue
            below = rails + (" " if last else "│") + " " * (len(edge) - 1)
            until = stop.target if stop.word is None and branch.word not in FAILURES else None
            yield from self._line(branch.line, below, Line(rails, edge, taken=taken), until)

    def _went(self, stop: Stop, target: str) -> bool:
        return (stop.node.key, _beside(stop.node, target)) in self._taken


def _beside(node: NodeView, key: str) -> str:
    folder = _folder(node.key)
    return f"{folder}/{key}" if folder else key


def _edge(corner: str, word: str, width: int, taken: bool) -> str:
    dash = "━" if taken else "─"
    name = _short(word)
    if not name:
        return f"{corner}{dash} "
    return f"{corner}{dash} {name} {dash * (max(width, len(name)) - len(name) + 1)} "


def _short(word: str) -> str:
    return word if len(word) <= LONGEST_WORD else word[: LONGEST_WORD - 1] + "…"


def joins(ways: Mapping[str, Sequence[str]]) -> Mapping[str, str]:
    """For each node the nearest one that every way from it to an end passes; EXIT: there is none.

    That is its immediate postdominator. A node from which no way leads to an end has none.
    """
    into: dict[str, list[str]] = {EXIT: [key for key, targets in ways.items() if not targets]}
    for key, targets in ways.items():
        for target in targets:
            into.setdefault(target, []).append(key)
    # From the ends backwards: most are settled at the first pass.
    order = reached(EXIT, lambda key: into.get(key, ()))
    passed = dict.fromkeys(order, frozenset(order)) | {EXIT: frozenset({EXIT})}
    changed = True
    while changed:
        changed = False
        for key in order[1:]:
            known = [passed[target] for target in ways[key] or [EXIT] if target in passed]
            found = frozenset.intersection(*known) | {key}
            changed |= found != passed[key]
            passed[key] = found

    # Those that every way passes stand in a row; the nearest one is passed by the most others.
    def passes(key: str) -> int:
        return len(passed[key])

    return {EXIT: EXIT} | {key: max(passed[key] - {key}, key=passes) for key in order[1:]}
