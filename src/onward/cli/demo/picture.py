"""What is seen of the demo in the terminal: where to look, what there is, what just happened."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from onward.cli.demo.inventory import Inventory, read
from onward.cli.tables import hint, welcome
from onward.cli.terminal import COLOURS, MARKS, console, plain

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from onward.cli.demo.scenario import Scenario

EVERY_S = 2.0


def opening(url: str, *, own: bool) -> None:
    mine = "its own, on a temporary ledger; to keep one: onward up"
    yours = "yours; kill it and start it again: the demo goes on"
    rows = [
        ("page", f"{url}/ui"),
        ("server", mine if own else yours),
        ("try", f"onward task list --server {url}"),
    ]
    last = "Ctrl-C ends it and takes workers and schedules away."
    welcome("demo   a print shop at work", rows, last)


def closing() -> None:
    hint("ending: workers finish what they have in hand; Ctrl-C once more to leave at once")


@asynccontextmanager
async def shown(scene: Scenario) -> AsyncIterator[None]:
    """On a terminal a table that is kept true; elsewhere a line for each thing that is said."""
    out = console(stderr=True)
    if not sys.stderr.isatty():
        scene.on_said = lambda text: out.print(plain(text), markup=False)
        yield
        return
    from rich.live import Live

    there = Inventory()

    def drawn() -> RenderableType:
        return picture(there, scene)

    async def look() -> None:
        from onward.core.errors import OnwardError

        nonlocal there
        while True:
            with suppress(OnwardError):  # the acts notice too, and say so
                there = await read(scene)
            await asyncio.sleep(EVERY_S)

    looking = asyncio.create_task(look())
    try:
        with Live(console=out, get_renderable=drawn, refresh_per_second=4, transient=True):
            yield
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


def picture(there: Inventory, scene: Scenario) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    lines = [Text(f"  {plain(text)}", style="bright_black") for text in scene.said]
    if scene.away:
        lines.append(Text("  no server answers; waiting for it to come back", style="yellow"))
    return Group(_table(there), Text(), *lines)


def _table(there: Inventory) -> Table:
    from rich.table import Table

    runs: dict[str, int] = {}
    for states in there.runs.values():
        for state, count in states.items():
            runs[state] = runs.get(state, 0) + count
    dead = sum(there.dead_letters.values())
    shut = there.breaker != "closed"
    rows = [
        ("tasks", "/ui/tasks", _states(there.tasks)),
        ("runs", "/ui/runs", _states(runs)),
        ("dead letters", "/ui/dead-letters", f"{dead} of {len(there.dead_letters)} kinds"),
        ("approvals", "/ui/approvals", f"{there.open_approvals} wait for you"),
        ("schedules", "/ui/schedules", ", ".join(there.schedules) or "–"),
        ("sessions", "/ui/sessions", _counts(there.notices, "notices in")),
        ("workers", "/ui/workers", _counts(there.workers, "by")),
        ("courier", "/ui/queues", f"[yellow]its breaker is {there.breaker}[/]" if shut else "well"),
    ]
    table = Table(box=None, show_header=False, padding=(0, 2))
    table.add_column(style="bright_black", no_wrap=True)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _states(counts: Mapping[str, int]) -> str:
    parts = [
        f"[{COLOURS.get(state, 'default')}]{mark}[/] {counts[state]} {state}"
        for state, mark in MARKS.items()
        if counts.get(state)
    ]
    return "  ".join(parts) or "–"


def _counts(counts: Mapping[str, int], word: str) -> str:
    return ", ".join(f"{count} {word} {name}" for name, count in sorted(counts.items())) or "–"
