"""Where a fork begins: the state before a node as the old run met it, and what it undid since.

Pure: from the old run's log and its replay. What the log does not tell is refused, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from onward.core.errors import Conflict
from onward.flow.nodes.approval import REJECTED
from onward.flow.parts import Definition, reached
from onward.flow.replay import Moment, RunReplay
from onward.flow.replay import State as Known
from onward.flow.state import RunState
from onward.flow.step import NodeNote

UNDO = "compensation"


class Fork(msgspec.Struct, frozen=True):
    shared: dict[str, Any]
    inside: tuple[dict[str, Any], ...]  # of the subflows around the node


def visited(replay: RunReplay, node: str) -> Moment | None:
    """The last visit of the node."""
    found = [each for each in replay.moments.values() if each.node == node and each.kind != UNDO]
    return found[-1] if found else None


def undone_before(
    notes: Iterable[NodeNote], moment: Moment | None, memory: RunState | None
) -> list[str]:
    """Nodes that the fork would not do again, though the old run has undone them or is about to."""
    seen = [note.data for note in notes if note.type in ("node.started", "node.finished")]
    undone = {each["node"] for each in seen if each["kind"] == UNDO}
    if memory is not None and memory.winding_up:
        undone |= {each.node for each in memory.undo}
    before = [
        each["node"]
        for each in seen
        if each["kind"] != UNDO and (moment is None or each["seq"] < moment.seq)
    ]
    return [node for node in dict.fromkeys(before) if node in undone]


def unapproved_before(
    definition: Definition, notes: Iterable[NodeNote], began: str, node: str
) -> list[str]:
    """Approvals between the old run's first node and one that it never reached, without a yes.

    What lies before the first node was decided when that run began, if it is a fork itself.
    """
    given: dict[str, bool] = {}
    for each in (note.data for note in notes if note.type == "node.finished"):
        if each["kind"] == "approval":  # the last visit counts
            given[each["node"]] = each["status"] == "ok" and each.get("action") != REJECTED
    ways = set(_ways(definition))
    between = _reached({(to, of) for of, to in ways}, node) & _reached(ways, began)
    return [
        each
        for each, at in definition.walk()
        if at.kind == "approval" and each != node
        if each in between and not given.get(each)
    ]


def _ways(graph: Definition, around: str = "") -> Iterator[tuple[str, str]]:
    """From each node to those that may follow it, through subflows: `s/` is the end of `s`."""
    for key, node in graph.nodes.items():
        path = end = around + key
        if node.subflow is not None:
            end = f"{path}/"
            yield path, end + node.subflow.start
            yield from _ways(node.subflow, end)
        for target in graph.targets(key):
            yield end, around + target
        if around:
            yield end, around


def _reached(ways: Iterable[tuple[str, str]], start: str) -> set[str]:
    follow: dict[str, list[str]] = {}
    for of, to in ways:
        follow.setdefault(of, []).append(to)
    return set(reached(start, lambda each: follow.get(each, ())))


def state_before(
    replay: RunReplay, node: str, given: dict[str, Any] | None, now: dict[str, Any]
) -> Fork:
    """Before the node's last visit. One that was not reached begins with what its graph has now.

    `given` stands in for the state of the node's own graph, `now` is the run's as it is.
    """
    moment = visited(replay, node)
    states: list[Known]
    if moment is not None:
        states = [*moment.around, (moment.before, moment.unknown_before)]
    elif "/" not in node:
        states = [(now, {})]
    else:
        states = _beside(replay, node)
    if given is not None:
        states[-1] = (given, {})
    for _, unknown in states:
        for key, why in unknown.items():
            raise Conflict(
                f"the state before {node!r} is not known: {key!r}, because {why}",
                hint="give the shared state that the fork is to begin with",
            )
    first, *rest = [dict(shared) for shared, _ in states]
    return Fork(first, tuple(rest))


def _beside(replay: RunReplay, node: str) -> list[Known]:
    """The state of a subflow after the last of its nodes that the run was at."""
    subflow = node.rpartition("/")[0]
    inside: Sequence[Moment] = [
        each
        for each in replay.moments.values()
        if each.node.rpartition("/")[0] == subflow and each.kind != UNDO
    ]
    if not inside:
        raise Conflict(
            f"the run has not been in {subflow!r}", hint=f"fork from {subflow.partition('/')[0]!r}"
        )
    last = inside[-1]
    return [*last.around, (last.before if last.after is None else last.after, last.unknown)]
