"""`onward doctor`: say what must be mended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from onward.cli.terminal import FAILED, AsJson, Server, console, plain, print_json

if TYPE_CHECKING:
    from onward.cli.checkup import Finding

COLOURS = {"✓": "green", "!": "yellow", "✗": "red"}


def doctor(
    ledger: Annotated[
        str | None, typer.Option("--ledger", help="Look at this one.", show_default="ONWARD_LEDGER")
    ] = None,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Mend the lists of a Redis ledger; stop all servers first."),
    ] = False,
    as_json: AsJson = False,
    server: Server = None,
) -> None:
    """Check this machine and the server; exit 1 if something must be mended.

    Examples:

    [cyan]onward doctor[/]

    [cyan]onward doctor --ledger sqlite:////data/onward.db --json[/]

    [cyan]onward doctor --ledger redis://127.0.0.1:6379/0 --repair[/]
    """
    from onward.cli.checkup import BAD, examine

    findings = list(examine(ledger, server, repair=repair))
    if as_json:
        print_json([vars(finding) for finding in findings])
    else:
        _print(findings)
    if any(finding.mark == BAD for finding in findings):
        raise typer.Exit(FAILED)


def _print(findings: Sequence[Finding]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(style="bright_black")
    table.add_column(overflow="fold")
    for finding in findings:
        said = escape(plain(finding.found))
        if finding.todo:
            said += f"\n[cyan]→ {escape(finding.todo)}[/]"
        mark = f"[bold {COLOURS[finding.mark]}]{finding.mark}[/]"
        table.add_row(mark, finding.about, said)
    console().print(table)
