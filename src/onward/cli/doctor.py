"""`onward doctor`: print what needs fixing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from onward.cli.commands import Options, flag, option
from onward.cli.terminal import FAILED, console, plain, print_json, silence_log

if TYPE_CHECKING:
    from onward.cli.checkup import Finding

COLOURS = {"✓": "green", "!": "yellow", "✗": "red"}


OPTIONS: Options = {
    "ledger": option("--ledger", "The ledger to check.", show_default="ONWARD_LEDGER"),
    "repair": flag("--repair", "Mend the lists of a Redis ledger; stop all servers first."),
}


def doctor(ledger: str | None, repair: bool, as_json: bool, server: str | None) -> None:
    """Check this machine, the ledger and the server. Exit code 1: something needs fixing.

    $ onward doctor
    $ onward doctor --ledger sqlite:////data/onward.db --json
    $ onward doctor --ledger postgresql://onward@127.0.0.1/onward
    $ onward doctor --ledger redis://127.0.0.1:6379/0 --repair
    """
    from onward.cli.checkup import BAD, examine

    silence_log()
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
        text = escape(plain(finding.found))
        if finding.todo:
            text += f"\n[cyan]→ {escape(finding.todo)}[/]"
        mark = f"[bold {COLOURS[finding.mark]}]{finding.mark}[/]"
        table.add_row(mark, finding.about, text)
    console().print(table)
