"""The table of resources: for each, the columns of its list, the rows of its card, and its verbs.

A group is named by the singular of what it acts on, as in `onward queue pause mail`. Fixed by
contract are `approvals`, `keys` and `dlq`; and it is `onward workers`, because `onward worker
MODULE:ATTR` runs one. Commands that do more than one call (watch, replay, add …) are functions in
modules of their own.
"""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from onward.cli.commands import Resource, Verb, argument, flag, option
from onward.cli.submit import read_payload
from onward.cli.tables import Fields, as_text, cell, print_page, since, span
from onward.cli.task import TASK
from onward.cli.terminal import COLOURS, MARKS, ago, count_per_ms, format_duration, user

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from onward.client.http import ApprovalView, Client
    from onward.wire.base import Page
    from onward.wire.limits import LimitView
    from onward.wire.queues import QueueView


class StatusWord(StrEnum):
    OPEN = "open"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    CANCELED = "canceled"
    ALL = "all"


def _status(found: ApprovalView) -> str:
    colours = {"open": "yellow", "approved": "green", "rejected": "red"}
    return f"[{colours.get(found.status, 'bright_black')}]{found.status}[/]"


def _expiry(found: ApprovalView) -> str:
    if found.expires_at is None or found.decided_at is not None:
        return ""
    left = format_duration(max(0, found.expires_at - int(time.time() * 1000)))
    return f"in {left}, then {found.default}"


def _next_steps(found: ApprovalView) -> str:
    steps = (f"onward approvals {verb} {found.id}" for verb in ("approve", "reject"))
    return "   or   ".join(steps) if found.status == "open" else ""


async def _approve(
    client: Client,
    key: str,
    by: str | None,
    comment: str | None,
    payload: str | None,
    digest: str | None,
) -> ApprovalView:
    value = msgspec.UNSET if payload is None else read_payload(payload)
    return await client.approve(key, by=by or user(), comment=comment, digest=digest, payload=value)


APPROVALS = Resource(
    "approvals",
    "Approve or reject tasks that wait for a person.",
    noun="approval",
    key=argument("ID", "The approval's id, or the id of its task."),
    example="01990000-….1",
    see_also="onward approvals list --status all",
    columns={
        "id": "id",
        "type": "type",
        "status": _status,
        "asked": since("requested_at"),
        "expires": _expiry,
        "by": "by",
        "about": lambda found: cell(found.comment or found.reason or "", 100),
    },
    title=lambda found: f"{_status(found)}  [bright_black]{cell(found.task_id)}[/]",
    card={
        "approval": "id",
        "type": "type",
        "queue": "queue",
        "asked": since("requested_at"),
        "expires": _expiry,
        "reason": "reason",
        "payload": as_text("payload"),
        "digest": "digest",
        "decided": since("decided_at"),
        "by": "by",
        "comment": "comment",
    },
    next_steps=_next_steps,
    options={
        "status": option("--status", "Those with this status.", StatusWord, StatusWord.OPEN),
        "comment": option("--comment -m", "Your reason."),
        "payload": option("--payload", "Run it with this payload instead.", metavar="JSON|@FILE|-"),
        "digest": option("--digest", "Decide only if the payload still has this digest."),
    },
    verbs=(
        Verb(
            "list",
            """List approvals, newest first; only open ones unless --status names another.

            $ onward approvals list
            $ onward approvals list --status rejected --json | jq -r '.items[].by'""",
            lambda client, status, cursor, limit: client.approvals(
                status.value, cursor=cursor, limit=limit
            ),
            none="no approvals with this status; onward approvals list --status all",
        ),
        Verb(
            "show",
            "Show what is to be decided, with the payload.",
            lambda client, key: client.approval(key),
        ),
        Verb(
            "approve",
            """Let a task run. Exit code 4: it was already decided.

            $ onward approvals approve 01990000-….1 -m "checked with Ada"
            $ onward approvals approve 01990000-….1 --payload '{"sum": 50}'""",
            _approve,
        ),
        Verb(
            "reject",
            "Refuse a task: it fails without having run. Exit code 4: it was already decided.",
            lambda client, key, by, comment, digest: client.reject(
                key, by=by or user(), comment=comment, digest=digest
            ),
        ),
    ),
)


def _pace(found: QueueView) -> str:
    """Whether tasks are handed out, and if not, why."""
    if found.paused is not None:
        about = ", ".join(filter(None, (found.paused.by, found.paused.reason)))
        return f"[yellow]paused[/] {ago(found.paused.since)}{cell(f', {about}' if about else '')}"
    if found.breaker is not None and found.breaker.state != "closed":
        return f"[red]breaker {found.breaker.state}[/]"
    full = [use for use in found.limits if use.used is not None and use.used >= use.max]
    if full:
        return f"[yellow]{full[0].kind} limit {cell(full[0].name)}: {full[0].used}/{full[0].max}[/]"
    # Not "served": workers that read streams are unknown to the server.
    return "[green]active[/]"


ATTENTION = Resource(
    "attention",
    "See what needs a person now.",
    noun="item",
    columns={"rule": "rule", "since": since("since"), "about": "message"},
    verbs=(
        Verb(
            "list",
            """List what needs a person now, the worst first.

            $ onward attention list
            $ onward attention list --json | jq -r '.items[].message'""",
            lambda client: _items(client, "attention"),
            none="nothing needs attention",
        ),
    ),
)

QUEUE = Resource(
    "queue",
    "See what waits in each queue; pause a queue and resume it.",
    key=argument("NAME", "The queue's name."),
    example="summarize",
    columns={
        "name": "name",
        "queued": "queued",
        "retries": "retrying",
        "running": lambda found: str(found.states.get("running", 0)),
        "dead": lambda found: str(found.states.get("dead", 0)),
        "workers": "workers",
        "slots": "slots",
        "state": _pace,
    },
    title=lambda found: f"{cell(found.name)}  {_pace(found)}, {found.queued} queued",
    folds=("name", "state"),
    verbs=(
        Verb(
            "list",
            """List queues by name, with their tasks and workers.

            $ onward queue list
            $ onward queue list --json | jq -r '.items[] | select(.paused).name'""",
            lambda client: client.queues.list(),
            none="no queues; onward submit TYPE puts a task into one",
        ),
        Verb(
            "pause",
            "Hand out no more tasks of a queue. Running tasks go on; new ones are still accepted.",
            lambda client, key, reason, by: client.queues.pause(
                key, by=by or user(), reason=reason
            ),
            options={"reason": option("--reason -m", "Why it is paused.")},
        ),
        Verb(
            "resume",
            "Hand out a paused queue's tasks again.",
            lambda client, key: client.queues.resume(key),
        ),
    ),
)


def _held_to(found: LimitView) -> str:
    """What it lets run and start."""
    parts: list[str] = []
    if found.concurrency is not None:
        total, each = found.concurrency.total, found.concurrency.per_partition
        parts += [] if total is None else [f"{total} at once"]
        parts += [] if each is None else [f"{each} of a partition"]
    parts += [
        f"{rate.count} per {format_duration(rate.per_ms)}"
        + (" of a partition" if rate.per == "partition" else "")
        for rate in found.rate
    ]
    return ", ".join(parts)


async def _put_limit(
    client: Client,
    key: str,
    concurrency: int | None,
    per_partition: int | None,
    rate: str | None,
    burst: int | None,
) -> LimitView:
    from onward.wire.limits import Concurrency, RateLimit

    at_once = None
    if concurrency is not None or per_partition is not None:
        at_once = Concurrency(total=concurrency, per_partition=per_partition)
    rates: tuple[RateLimit, ...] = ()
    if rate is not None:
        count, per_ms = count_per_ms(rate)
        rates = (RateLimit(count=count, per_ms=per_ms, burst=1 if burst is None else burst),)
    return await client.limits.put(key, concurrency=at_once, rate=rates)


LIMIT = Resource(
    "limit",
    "See and change the limits that services share.",
    key=argument("NAME", "The limit's name."),
    example="openai",
    columns={
        "name": "name",
        "lets": _held_to,
        "running": "in_use",
        "next": lambda found: "" if found.next_at is None else ago(found.next_at),
        "services": "services",
    },
    title=lambda found: f"{cell(found.name)}  {_held_to(found)}, {found.in_use} running",
    card={"services": "services"},
    folds=("services",),
    verbs=(
        Verb(
            "list",
            "List the limits by name, with how many tasks count to each now.",
            lambda client: client.limits.list(),
            none="no limits; onward limit set NAME makes one, and a service names it",
        ),
        Verb("show", "Show a limit.", lambda client, key: client.limits.get(key)),
        Verb(
            "set",
            """Make a limit, or replace it. It holds within a second, on every server.

            $ onward limit set openai --concurrency 20 --rate 500/m
            $ onward limit set crm --per-partition 2""",
            _put_limit,
            options={
                "concurrency": option("--concurrency", "How many run at once.", int | None, min=0),
                "per_partition": option(
                    "--per-partition", "How many of one partition run at once.", int | None, min=0
                ),
                "rate": option("--rate", "How many start, as 10/s, 500/m or 10000/h."),
                "burst": option("--burst", "How many more at once (1).", int | None, min=0),
            },
        ),
        Verb(
            "delete",
            "Delete a limit. Services that name it are not limited by it any more.",
            lambda client, key: client.limits.remove(key),
            done="deleted",
        ),
    ),
)

# The SDK has no methods for the verbs of workers, services and sessions.


def _item(client: Client, method: str, *path: str, **more: Any) -> Awaitable[dict[str, Any]]:
    return client._api.call(dict[str, Any], method, *path, **more)  # noqa: SLF001


def _items(client: Client, path: str, **query: Any) -> Awaitable[Any]:
    from onward.wire.base import Page

    return client._api.call(Page[dict[str, Any]], "GET", path, **query)  # noqa: SLF001


def _ready(worker: dict[str, Any]) -> str:
    return "[yellow]draining[/]" if worker["draining"] else "[green]ready[/]"


WORKERS = Resource(
    "workers",
    "See which workers are connected; let one finish its tasks and leave.",
    noun="worker",
    key=argument("ID", "The worker's id."),
    example="mail-1",
    columns={
        "id": "id",
        "transport": "transport",
        "queues": "queues",
        "slots": "slots",
        "busy": "busy",
        "connected": since("connected_at"),
        "": _ready,
    },
    title=lambda worker: f"{cell(worker['id'])}  {_ready(worker)}",
    folds=("queues",),
    verbs=(
        Verb(
            "list",
            "List the workers.",
            lambda client: _items(client, "workers"),
            none="no workers; onward worker MODULE:ATTR runs one",
        ),
        Verb(
            "drain",
            "Give a worker no more tasks. It finishes those it has, and then leaves.",
            lambda client, key: _item(client, "POST", "workers", key, "drain"),
        ),
        Verb(
            "undrain",
            "Give a draining worker tasks again, if it has not left yet.",
            lambda client, key: _item(client, "DELETE", "workers", key, "drain"),
        ),
    ),
)


def _declare(client: Client, file: str) -> Awaitable[dict[str, Any]]:
    body = read_payload("-" if file == "-" else f"@{file}", "the declaration")
    return _item(client, "POST", "services", body=body)


SERVICE = Resource(
    "service",
    "See which services are declared; declare one or delete it.",
    key=argument("NAME", "The service's name."),
    example="report",
    columns={
        "name": "name",
        "task types": "task_types",
        "via": "via",
        "approval": lambda found: "yes" if found["requires_approval"] else "",
        "timeout": span("timeout_ms"),
        "retries": "max_retries",
        "declared by": "declared_by",
    },
    title=lambda found: f"{cell(found['name'])}  {cell(', '.join(found['task_types']))}",
    card={
        "via": "via",
        "approval": lambda found: "each task" if found["requires_approval"] else "",
        "timeout": span("timeout_ms"),
        "retries": "max_retries",
        "sensitive": "sensitive",
        "declared by": "declared_by",
        "schema": lambda found: as_text("schema")(found) if found["schema"] else "",
    },
    folds=("task types",),
    verbs=(
        Verb(
            "list",
            "List the declared services.",
            lambda client: _items(client, "services"),
            none="no services; a worker declares what it serves when it connects",
        ),
        Verb(
            "show",
            "Show a service: its task types, their schemas, and what holds for its tasks.",
            lambda client, key: _item(client, "GET", "services", key),
        ),
        Verb(
            "declare",
            """Declare a service, or replace its declaration.

            $ onward service declare report.json
            $ echo '{"name": "report", "task_types": ["make"]}' | onward service declare -""",
            _declare,
            options={"file": argument("FILE|-", "A JSON file, or - to read stdin.")},
        ),
        Verb(
            "delete",
            "Delete the declaration of a service. Its tasks stay; a worker may declare it again.",
            lambda client, key: client._api.tell("DELETE", "services", key),  # noqa: SLF001
            done="deleted",
        ),
    ),
)


def _states(session: dict[str, Any]) -> str:
    return "  ".join(
        f"[{COLOURS.get(state, 'default')}]{MARKS.get(state, '?')}[/] {count} {state}"
        for state, count in session["states"].items()
        if count
    )


async def _notifications_of(
    client: Client, key: str, cursor: str | None, limit: int, unread: bool
) -> Page[dict[str, Any]]:
    from onward.wire.base import Page

    return await client._api.call(  # noqa: SLF001
        Page[dict[str, Any]], "GET", "sessions", key, "notifications",
        peek="true", unread="true" if unread else None, cursor=cursor, limit=limit,
    )  # fmt: skip


NOTIFICATION: Fields = {
    "type": "type",
    "task": "task_id",
    "read": lambda one: "yes" if one["read"] else "",
    "delivered": lambda one: (
        f"{one['delivered_by']} {ago(one['delivered_at'])}" if one.get("delivered_by") else ""
    ),
    "about": lambda one: cell(one["message"]),
}

SESSION = Resource(
    "session",
    "See which sessions there are, their tasks and their notifications.",
    key=argument("ID", "The session's id."),
    example="ada",
    columns={
        "id": "id",
        "tasks": "tasks",
        "states": _states,
        "unread": "unread",
        "listening": "connected",
        "last": since("last_at"),
    },
    title="id",
    folds=("id", "states"),
    verbs=(
        Verb(
            "list",
            "List sessions, the latest active first.",
            lambda client, cursor, limit: _items(client, "sessions", cursor=cursor, limit=limit),
            options={"limit": option("--limit", "How many to list.", int, 50, min=1, max=200)},
            none="no sessions; onward submit TYPE --session ID begins one",
        ),
        Verb(
            "show",
            "Show a session: its tasks by state, unread notifications, and how many listen.",
            lambda client, key: _item(client, "GET", "sessions", key),
        ),
        Verb(
            "tasks",
            "List the tasks of a session, newest first.",
            lambda client, key, cursor, limit: client.list(session=key, cursor=cursor, limit=limit),
            show=lambda page: TASK.print_page(page, none="no tasks in this session"),
        ),
        Verb(
            "notifications",
            "List a session's notifications, newest first; none of them is delivered by this.",
            _notifications_of,
            options={"unread": flag("--unread", "Only those that were not acknowledged.")},
            show=lambda page: print_page(page, NOTIFICATION, none="no notifications"),
        ),
    ),
)
