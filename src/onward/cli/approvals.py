"""`onward approvals …`: what waits for somebody's word, and that word."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onward.cli.submit import read_payload
from onward.cli.tables import Cursor, Limit, card, cell, hint, listing, show_page
from onward.cli.terminal import (
    AsJson,
    By,
    Server,
    ago,
    console,
    converse,
    humane,
    plain,
    print_json,
    user,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from onward.wire.approvals import ApprovalView

app = typer.Typer(help="Approve or reject what waits for somebody's word.", no_args_is_help=True)

LOOK = "onward approvals list --status all"
COLOURS = {"open": "yellow", "approved": "green", "rejected": "red"}

IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The approval's id, or its task's for the present one.")
]
Comment = Annotated[str | None, typer.Option("--comment", "-m", help="Why.")]
Digest = Annotated[
    str | None, typer.Option("--digest", help="Decide only if this is the payload that you saw.")
]


class StatusWord(StrEnum):
    OPEN = "open"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    CANCELED = "canceled"
    ALL = "all"


@app.command("list")
def list_(
    status: Annotated[StatusWord, typer.Option("--status")] = StatusWord.OPEN,
    cursor: Cursor = None,
    limit: Limit = 20,
    as_json: AsJson = False,
    server: Server = None,
) -> None:
    """List approvals, newest first; those that are open unless another status is named.

    Examples:

    [cyan]onward approvals list[/]

    [cyan]onward approvals list --status rejected --json | jq -r '.items[].by'[/]
    """
    page = converse(
        server,
        "list approvals",
        lambda client: client.approvals(status.value, cursor=cursor, limit=limit),
        look=LOOK,
    )
    word = "" if status is StatusWord.ALL else f"{status.value} "
    show_page(page, _rows, none=f"no {word}approvals", as_json=as_json)


@app.command()
def show(id: IdArgument, as_json: AsJson = False, server: Server = None) -> None:
    """Show what is asked, and the payload it is about.

    Example: [cyan]onward approvals show 01990000-….1[/]
    """
    found = converse(server, f"show approval {id}", lambda client: client.approval(id), look=LOOK)
    if as_json:
        print_json(found)
    else:
        _card(found)


@app.command()
def approve(
    id: IdArgument,
    by: By = None,
    comment: Comment = None,
    payload: Annotated[
        str | None,
        typer.Option("--payload", metavar="JSON|@FILE|-", help="Run it with this instead."),
    ] = None,
    digest: Digest = None,
    as_json: AsJson = False,
    server: Server = None,
) -> None:
    """Let a task run. Exit code 4: it was decided already.

    Examples:

    [cyan]onward approvals approve 01990000-….1 -m "checked with Ada"[/]

    [cyan]onward approvals approve 01990000-….1 --payload '{"sum": 50}'[/]
    """
    given: dict[str, Any] = {} if payload is None else {"payload": read_payload(payload)}
    found = converse(
        server,
        f"approve {id}",
        lambda client: client.approve(id, by=by or user(), comment=comment, digest=digest, **given),
        look=LOOK,
    )
    _decided(found, as_json=as_json)


@app.command()
def reject(
    id: IdArgument,
    by: By = None,
    comment: Comment = None,
    digest: Digest = None,
    as_json: AsJson = False,
    server: Server = None,
) -> None:
    """Refuse a task: it has failed, and never ran. Exit code 4: it was decided already.

    Example: [cyan]onward approvals reject 01990000-….1 -m "too dear"[/]
    """
    found = converse(
        server,
        f"reject {id}",
        lambda client: client.reject(id, by=by or user(), comment=comment, digest=digest),
        look=LOOK,
    )
    _decided(found, as_json=as_json)


def _decided(found: ApprovalView, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        console().print(f"{_mark(found.status)}  [bright_black]{plain(found.task_id)}[/]")


def _mark(status: str) -> str:
    return f"[{COLOURS.get(status, 'bright_black')}]{status}[/]"


def _rows(approvals: Sequence[ApprovalView]) -> Table:
    table = listing("id", "type", "status", "asked", "expires", "by", "about")
    for found in approvals:
        table.add_row(
            cell(found.id),
            cell(found.type),
            _mark(found.status),
            ago(found.requested_at),
            _expiry(found),
            cell(found.by or "–"),
            cell(found.comment or found.reason or "", 100),
        )
    return table


def _expiry(found: ApprovalView) -> str:
    import time

    if found.expires_at is None or found.decided_at is not None:
        return "–"
    left = humane(max(0, found.expires_at - int(time.time() * 1000)))
    return f"in {left}, then {found.default}"


def _card(found: ApprovalView) -> None:
    import msgspec

    rows = [
        ("task", found.task_id),
        ("type", found.type),
        ("queue", found.queue),
        ("asked", ago(found.requested_at)),
        ("expires", _expiry(found)),
        ("reason", found.reason or "–"),
        ("payload", msgspec.json.encode(found.payload).decode()),
        ("digest", found.digest),
    ]
    if found.decided_at is not None:
        rows += [
            ("decided", ago(found.decided_at)),
            ("by", found.by or "–"),
            ("comment", found.comment or "–"),
        ]
    out = console()
    out.print(f"{_mark(found.status)}  [bright_black]{cell(found.id)}[/]")
    out.print(card(rows))
    if found.status == "open":
        hint(f"onward approvals approve {found.id}   or   onward approvals reject {found.id}")
