"""How a run is drawn on a terminal: its graph with states and times, and what it waits for.

Made of a run as it was read, its definition, and the time; sends no requests.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from onward.cli.drawing import DIM, NodeStyle, picture
from onward.cli.layout import Taken
from onward.cli.terminal import COLOURS, MARKS, format_duration, plain
from onward.flow.nodes import CALLING
from onward.flow.parts import DEFAULT

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from onward.client.http import Explanation
    from onward.flow.parts import Definition
    from onward.wire.flows import NodeView
    from onward.wire.runs import NodeRun, RunDetail

BAR = 20
FANS: Mapping[str, str] = {"foreach": "fe", "parallel": "pl"}
SHIPPED = frozenset({"transform", "sum", "route"})  # what `onward exec-worker` serves
PATIENT = frozenset({"timer", "wait_event", "approval"})
SHOWN: Mapping[str, tuple[str, str]] = {  # a node's state: its sign and its colour
    "ok": ("✓", "green"),
    "running": ("●", "cyan"),
    "waiting": ("‖", "yellow"),
    "queued": ("○", "yellow"),
    "error": ("✗", "red"),
    "canceled": ("–", DIM),
    "": ("·", DIM),
}


class FanProgress(msgspec.Struct, frozen=True):
    """How far a node that makes many calls has come."""

    done: int
    failed: int
    total: int | None  # None: not known from outside


class RunRenderer:
    def __init__(
        self,
        run: RunDetail,
        definition: Definition | None = None,
        waits: Explanation | None = None,  # why the call that the run waits for is not over
        undoing: Collection[str] = (),  # the tasks that undo what a node did
    ) -> None:
        self.run = run
        self.waits = waits
        self._undoing = undoing
        self._undone: set[str] = set()
        self._definition = definition
        self._runs: dict[str, list[NodeRun]] = {}
        for row in run.node_runs:
            if self.undoes(row):
                self._undone.add(row.node_key)
            else:
                self._runs.setdefault(row.node_key, []).append(row)

    def undoes(self, row: NodeRun) -> bool:
        return row.id.rpartition(":")[0] in self._undoing

    def whole(self, *, airy: bool = True) -> Group:
        from rich.console import Group
        from rich.text import Text

        parts: list[Text | Table] = [self.header(), Text(""), self.graph(airy=airy)]
        if hints := self.hints():
            parts += [Text(""), *hints]
        return Group(*parts)

    def header(self) -> Text:
        from rich.text import Text

        run, state = self.run, self._stands()
        colour = COLOURS.get(state, "default")
        ended = run.finished_at or _now()
        version = f" v{run.version}" if run.version else ""
        return Text.assemble(
            (f"{MARKS.get(state, '?')} {state}", f"bold {colour}"),
            f"  {plain(run.flow)}{version}  ",
            (format_duration(max(0, ended - run.created_at)), "bold"),
            (f"  {plain(run.id)}", DIM),
        )

    def _stands(self) -> str:
        """A run that waits for a call that runs is shown as running."""
        at = self._node(self.run.current_node or "")
        if self.run.over or at is None:
            return self.run.state
        return self.state_of(at)

    def graph(self, *, airy: bool = True) -> Table:
        return picture(self.run.nodes, self._style, taken=self._taken(), airy=airy)

    def hints(self) -> list[Text]:
        """What it waits for, and the commands that help."""
        from rich.text import Text

        run, waits = self.run, self.waits
        if run.over:
            return []
        at = self._node(run.current_node or "")
        if at is None or self.state_of(at) == "running":
            return []
        about: list[Text] = []
        then = ""
        if at.kind == "wait_event":
            then = f"onward run signal {run.id} {at.key}"
        elif waits is not None:
            about, then = [Text(plain(f"{at.key}: {waits.sentence}"))], waits.hint or ""
            if waits.reason == "no_worker" and at.what in SHIPPED:
                then = "onward exec-worker"
        steps = then.split("   or   ") if then else []
        return about + [Text.assemble(("→ ", "cyan"), plain(step)) for step in steps]

    def state_of(self, node: NodeView) -> str:
        if node.status != "running":
            return node.status or ""
        if self.run.over:
            return self.run.state if self.run.state == "canceled" else "error"
        if node.kind in PATIENT:
            return "waiting"
        rows = self._rows(node.key)
        begun = bool(rows) if node.kind in FANS else any(row.status == "running" for row in rows)
        return "queued" if node.kind in CALLING and not begun else "running"

    def _style(self, node: NodeView) -> NodeStyle:
        from rich.text import Text

        state = self.state_of(node)
        mark, colour = SHOWN.get(state, SHOWN[""])
        what = plain(node.what) or node.kind
        cells = (
            Text(what, style=DIM),
            Text(state, style=colour),
            Text(self._took(node), justify="right"),
            self._about(node, state),
        )
        return NodeStyle(mark, colour if state else DIM, cells)

    def _about(self, node: NodeView, state: str) -> Text:
        from rich.text import Text

        about = Text()
        fan = self.fan(node) if node.kind in FANS else None
        if fan is not None:
            _measure(about, fan)
        elif (count := self._tries(node)) > 1:
            about.append(f"attempt {count}  ", style="yellow")
        if node.key in self._undone:
            about.append("undone  ", style="yellow")
        rows = self._rows(node.key)
        if state == "error" and rows:
            about.append(plain(next((r.error_text for r in rows[::-1] if r.error_text), ""))[:200])
        return about

    def _node(self, path: str) -> NodeView | None:
        return next((node for node in self.run.nodes if node.key == path), None)

    def _rows(self, path: str) -> Sequence[NodeRun]:
        return self._runs.get(path, [])

    def _last(self, node: NodeView) -> Sequence[NodeRun]:
        """The attempts of its last visit; of many calls, all of them."""
        rows = self._rows(node.key)
        if not rows or node.kind in FANS:
            return rows
        call = rows[-1].id.rpartition(":")[0]
        return [row for row in rows if row.id.rpartition(":")[0] == call]

    def _tries(self, node: NodeView) -> int:
        return max((row.attempt_no for row in self._last(node)), default=0)

    def _took(self, node: NodeView) -> str:
        rows = self._last(node)
        if not rows:
            return ""
        over = all(row.finished_at is not None for row in rows)
        ended = max(row.finished_at or 0 for row in rows) if over else _now()
        return format_duration(max(0, ended - min(row.started_at or 0 for row in rows)))

    def _taken(self) -> Taken:
        edges = {node.key: {edge.action: edge.to for edge in node.edges} for node in self.run.nodes}
        taken = set()
        for row in self.run.node_runs:
            ways = edges.get(row.node_key, {})
            target = ways.get(row.action) or ways.get(DEFAULT)
            if row.action and target is not None:
                folder = row.node_key.rpartition("/")[0]
                taken.add((row.node_key, f"{folder}/{target}" if folder else target))
        return frozenset(taken)

    def fan(self, node: NodeView) -> FanProgress | None:
        """None: it has not begun."""
        *around, key = node.key.split("/")
        shared: Any = self.run.shared
        for each in around:
            shared = _record(shared, f"sf:{each}").get("shared", {})
        record = _record(shared, f"{FANS[node.kind]}:{key}")
        if not record:
            return None
        return FanProgress(
            len(record["done"]), len(record["errs"]), self._total(around, key, shared)
        )

    def _total(self, around: Sequence[str], key: str, shared: Mapping[str, Any]) -> int | None:
        """How many calls it will be: as many as its list has items, read as the engine does."""
        from onward.flow.levels import Level
        from onward.flow.scope import ABSENT

        if self._definition is None:
            return None
        level = Level(self._definition, self.run.params, ABSENT, "")
        outer: Any = self.run.shared
        for each in around:
            level = level.inside(each, outer)
            outer = _record(outer, f"sf:{each}").get("shared", {})
        node = level.graph.nodes.get(key)
        if node is None:
            return None
        scope = level.scope(node, shared)
        if node.kind == "foreach":
            items = scope.input
        else:
            items = list(node.parallel_services) or node.params.get("services")
            items = scope.find(items) if isinstance(items, str) else items
        return len(items) if isinstance(items, list) else None


def _record(shared: Any, name: str) -> Mapping[str, Any]:
    records = shared.get("_rt") if isinstance(shared, Mapping) else None
    found = records.get(name) if isinstance(records, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _measure(about: Text, fan: FanProgress) -> None:
    over = fan.done + fan.failed
    if fan.total:
        filled = round(BAR * min(1.0, over / fan.total))
        about.append("━" * filled, style="green")
        about.append("╌" * (BAR - filled), style=DIM)
        about.append(f" {over}/{fan.total}")
    else:
        about.append(f"{over} done")
    if fan.failed:
        about.append(f"  {fan.failed} failed", style="red")
    about.append("  ")


def _now() -> int:
    return int(time.time() * 1000)
