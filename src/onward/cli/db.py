"""`onward db …`: a whole ledger, copied, backed up, restored, checked. No server is asked."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import typer

from onward.cli.commands import Options, argument, command, option
from onward.cli.serve import read_settings
from onward.cli.tables import progress_bar
from onward.cli.terminal import FAILED, REFUSED, console, fail, plain, print_json, silence_log
from onward.urls import shown

if TYPE_CHECKING:
    from onward.ledgers.portable.check import Check
    from onward.ledgers.portable.copying import Progress
    from onward.ledgers.portable.records import Portable

T = TypeVar("T")

app = typer.Typer(
    help="Copy a ledger into another, back it up, restore it, check it.", no_args_is_help=True
)

LEDGER = option("--ledger", "The ledger.", metavar="URL", show_default="ONWARD_LEDGER")
OPTIONS: Options = {
    "source": argument("FROM", "The ledger to copy, by its URL."),
    "target": argument("TO", "An empty one, by its URL."),
    "file": argument("FILE", "The backup."),
    "ledger": LEDGER,
}
CHECKED: Options = {"file": argument("FILE", "A backup; a ledger if none.", None), "ledger": LEDGER}


@command(app, OPTIONS)
def copy(source: str, target: str, as_json: bool) -> None:
    """Copy everything of one ledger into another, of any kind, and compare the two.

    Stop all servers first. The target must be empty.

    $ onward db copy sqlite:///onward.db redis://127.0.0.1:6379/0
    $ onward db copy redis://127.0.0.1:6379/0 postgresql://onward@127.0.0.1/onward
    """
    _copy(source, target, as_json, "copied", stopped=True)


@command(app, OPTIONS)
def backup(file: str, ledger: str | None, as_json: bool) -> None:
    """Write everything of a ledger into one file, from which any kind of ledger can be restored.

    Servers on SQLite or Postgres may run on; those on Redis must be stopped.

    $ onward db backup /backup/monday.gz
    $ onward db backup monday.gz --ledger redis://127.0.0.1:6379/0
    """
    _copy(_ledger(ledger), file, as_json, "backed up", stopped=False)


@command(app, OPTIONS)
def restore(file: str, ledger: str | None, as_json: bool) -> None:
    """Write everything of a backup into an empty ledger, of any kind, and compare the two.

    $ onward db restore /backup/monday.gz --ledger sqlite:///onward.db
    """
    _copy(file, _ledger(ledger), as_json, "restored", stopped=True)


@command(app, CHECKED)
def check(file: str | None, ledger: str | None, as_json: bool) -> None:
    """Read all of a ledger or backup, and report its faults. Exit code 1: it has some.

    $ onward db check
    $ onward db check /backup/monday.gz
    """
    found = _with_progress("check", lambda progress: _checked(file or _ledger(ledger), progress))
    if as_json:
        print_json({"tasks": found.states, "faults": found.faults})
    else:
        for fault in found.faults:
            console().print(f"[bold red]✗[/] {plain(fault)}")
    if found.faults:
        raise typer.Exit(FAILED)
    if not as_json:
        console().print(f"no fault: {_listed(found.states) or 'no tasks'}")


def _copy(source: str, target: str, as_json: bool, done: str, *, stopped: bool) -> None:
    from onward.ledgers.portable.copying import contents, copy

    async def run(progress: Progress) -> Mapping[str, int]:
        before, after = _open(source), _open(target)
        await _refuse_servers(before, even_if_snapshot=stopped)
        if "://" not in source:
            # Its checksum stands at its end: a damaged one must not half fill a ledger.
            await contents(before, "reading", progress)
        return (await copy(before, after, progress)).counts

    counts = _with_progress("copy", run)
    if as_json:
        print_json(counts)
    else:
        console().print(f"{done}, and compared: {_listed(counts) or 'an empty ledger'}")


async def _checked(place: str, progress: Progress) -> Check:
    from onward.ledgers.portable.check import check

    ledger = _open(place)
    await _refuse_servers(ledger, even_if_snapshot=False)
    quiet = not await ledger.servers(_now())
    return await check(ledger, progress, quiet=quiet)


async def _refuse_servers(ledger: Portable, *, even_if_snapshot: bool) -> None:
    from onward.core.errors import Invalid

    running = await ledger.servers(_now())
    if running and (even_if_snapshot or not ledger.snapshot):
        raise Invalid(
            f"servers run on it: {', '.join(running)}",
            hint="stop them; one that was killed is forgotten after 10 s",
        )


def _open(place: str) -> Portable:
    from onward.ledgers.portable import open_portable

    return open_portable(place, prefix=read_settings().redis_prefix)


def _ledger(given: str | None) -> str:
    return read_settings(ledger=given).ledger


def _with_progress(doing: str, run: Callable[[Progress], Awaitable[T]]) -> T:
    from onward.core.errors import LedgerUnavailable
    from onward.errors import OnwardError

    silence_log()
    done: Counter[str] = Counter()

    def progress(what: str, more: int) -> None:
        done[what] += more
        bar.update(row, description=f"{what}: {done[what]:,}")

    async def main() -> T:
        return await run(progress)

    try:
        with progress_bar(counts=False) as bar:
            row = bar.add_task(doing, total=None)
            return asyncio.run(main())
    except OnwardError as error:
        # The hint of that whole class is meant for callers who have submitted a task.
        hint = "onward doctor" if error.hint == LedgerUnavailable.hint else error.hint or ""
        fail(REFUSED, f"cannot {doing}", shown(str(error)), hint)
    except OSError as error:
        fail(REFUSED, f"cannot {doing}", str(error))


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))


def _now() -> int:
    return time.time_ns() // 1_000_000
