"""A flow's graph in colours and signs; whatever a colour shows, a sign or a word shows too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from onward.cli import layout
from onward.cli.terminal import plain

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from onward.wire.flows import NodeView

DIM = "bright_black"
KIND_MARKS: Mapping[str, str] = {
    "executor": "●",
    "local": "●",
    "choice": "◆",
    "parallel": "≡",
    "foreach": "≡",
    "subflow": "▣",
    "flow_ref": "▷",
    "timer": "◷",
    "wait_event": "‖",
    "approval": "?",
}


class NodeStyle(msgspec.Struct, frozen=True):
    """How a node is shown: its sign, and what stands right of it, in columns."""

    mark: str
    style: str = ""
    cells: Sequence[str | Text] = ()


def still(node: NodeView) -> NodeStyle:
    """A node outside of any run."""
    from rich.text import Text

    what = plain(node.what)
    kind = Text(node.kind, style=DIM)
    about = "" if what in ("", node.kind) else what
    style = "cyan" if node.start else ""
    return NodeStyle(KIND_MARKS.get(node.kind, "●"), style, (kind, about))


def picture(
    nodes: Sequence[NodeView],
    style_of: Callable[[NodeView], NodeStyle] = still,
    *,
    taken: layout.Taken = frozenset(),
    airy: bool = True,
) -> Table:
    from rich.table import Table
    from rich.text import Text

    styles = {node.key: style_of(node) for node in nodes}
    columns = max((len(each.cells) for each in styles.values()), default=0)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    for _ in range(columns):
        table.add_column()
    for line in layout.lay_out(nodes, taken, airy=airy):
        text = Text.assemble(
            (line.rails, DIM), (_unsteered(line.edge), "bold green" if line.taken else DIM)
        )
        if line.note:
            text.append(line.note, style="yellow")
        if line.leads_to is not None:
            text.append(f"{line.arrow} {_name(line.leads_to)}", style=DIM)
        if line.node is None:
            table.add_row(text)
            continue
        shown = styles[line.node.key]
        text.append(f"{shown.mark} {_name(line.node.key)}", style=shown.style or "default")
        table.add_row(text, *map(_cell, shown.cells))
    return table


def _cell(value: str | Text) -> Text:
    """Cut where the terminal ends: a second line would tear the rails."""
    from rich.text import Text

    text = Text(value) if isinstance(value, str) else value
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _name(path: str) -> str:
    return plain(path.rpartition("/")[2])


def _unsteered(edge: str) -> str:
    """Without control characters, which an action may contain; a blank at the end stays."""
    return plain(edge) + (" " if edge.endswith(" ") else "")
