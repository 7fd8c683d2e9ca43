"""`onward task …`: look at tasks, and intervene."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

from onward.cli import operation
from onward.cli.commands import Options, Resource, Verb, argument, command, flag, option
from onward.cli.tables import Fields, HasItems, as_text, cell, hint, print_page, since
from onward.cli.terminal import (
    MARKS,
    USAGE,
    console,
    fail,
    format_duration,
    plain,
    print_json,
    print_json_line,
    state_mark,
)

if TYPE_CHECKING:
    from onward.client.http import Client, Explanation, TaskView
    from onward.wire.logs import LogRecord

ID = argument("ID", "The task's id.")
EVENTS = flag("--json", "Print each event as a line of JSON.")
FILTERS = {
    "type": option("--type", "Only of this type."),
    "queue": option("--queue", "Only in this queue."),
    "q": option("--search -q", "Only those that contain this text."),
}


def _progress(task: TaskView) -> str:
    if task.progress is None:
        return ""
    return cell(f"{task.progress:.0%} {task.progress_message or ''}")


def _canceled(task: TaskView) -> None:
    if task.state == "running":
        console().print(f"{MARKS['canceled']} canceling  [bright_black]{plain(task.id)}[/]")
        hint(f"its worker was asked to stop: onward task watch {task.id}")
    else:
        TASK.print_line(task)


def _explained(found: Explanation) -> None:
    console().print(plain(found.sentence), markup=False)
    if found.hint:
        console().print(f"→ {plain(found.hint)}", markup=False)


def _happened(page: HasItems) -> None:
    began, data = page.items[0].at, as_text("data")
    columns: Fields = {
        "n": "n",
        "after": lambda event: format_duration(event.at - began),
        "event": "type",
        "data": lambda event: data(event) if event.data else "",
    }
    print_page(page, columns, none="", folds=("data",))


TASK = Resource(
    "task",
    "Look at tasks, and intervene.",
    key=ID,
    example="01990000-…",
    columns={
        "id": "id",
        "type": "type",
        "state": lambda task: state_mark(task.state),
        "created": since("created_at"),
        "about": lambda task: cell(
            task.reason if task.error is not None else task.progress_message or "", 100
        ),
    },
    title=lambda task: f"{state_mark(task.state)}  [bright_black]{plain(task.id)}[/]",
    card={
        "type": "type",
        "queue": "queue",
        "tags": lambda task: ", ".join(task.tags),
        "partition": "partition",
        "owner": "owner",
        "attempt": lambda task: f"{task.attempt}, generation {task.generation}",
        "created": since("created_at"),
        "started": since("started_at"),
        "finished": since("finished_at"),
        "progress": _progress,
        "error": lambda task: cell(task.reason) if task.error is not None else "",
        "payload": as_text("payload"),
        "result": lambda task: as_text("result")(task) if task.state == "succeeded" else "",
    },
    verbs=(
        Verb("get", "Show a task.", lambda client, key: client.get(key)),
        Verb(
            "list",
            """List tasks, newest first.

            $ onward task list --state dead --type report
            $ onward task list --json --limit 1000 | jq -r '.items[].id'""",
            lambda client, cursor, limit, **query: client.list(cursor=cursor, limit=limit, **query),
            options={
                "state": option("--state", "Only in this state, such as queued or dead."),
                **FILTERS,
                "session": option("--session", "Only of this session."),
                "owner": option("--owner", "Only those that the key of this id handed in."),
                "tag": option("--tag", "Only with this tag; may be given again.", list[str] | None),
                "batch": option("--batch", "Only of this batch."),
                "partition": option("--partition", "Only of this partition."),
            },
            none="no such tasks; onward submit makes one",
        ),
        Verb(
            "explain",
            "Explain why a task is in its present state, and what can be done about it.",
            lambda client, key: client.explain(key),
            show=_explained,
        ),
        Verb(
            "events",
            "Show what has happened to a task.",
            lambda client, key: client.events(key),
            show=_happened,
        ),
        Verb(
            "callback-secret",
            "Print the secret that signs your tasks' callbacks, for the program that checks them.",
            lambda client: client.callback_secret(),
            show=print,
        ),
    ),
)


def _print_line(record: LogRecord) -> None:
    at = datetime.fromtimestamp(record.at / 1000).astimezone().strftime("%X")
    line = f"{at}  {record.attempt}  {record.level:<7}  {record.logger}: {record.message}"
    console().print(plain(line), markup=False, highlight=False, soft_wrap=True)
    for text in str(record.traceback or "").splitlines():
        console().print(f"  {plain(text)}", markup=False, highlight=False, soft_wrap=True)


@TASK.command(
    "read the log of task {id}",
    id=ID,
    follow=flag("--follow -f", "Go on until the task is over."),
    as_json=flag("--json", "Print each record as a line of JSON."),
)
async def logs(client: Client, id: str, follow: bool, as_json: bool) -> None:
    """Show what the handlers of a task logged, with the tracebacks of their errors.

    $ onward task logs 01990000-…
    $ onward task logs 01990000-… --follow
    """
    show = print_json_line if as_json else _print_line
    if follow:
        async for record in client.follow_task_logs(id):
            show(record)
        return
    page = await client.task_logs(id)
    if not page.items and not as_json:
        hint(f"nothing was logged; what happened to it: onward task events {id}")
    while True:
        for record in page.items:
            show(record)
        if page.next is None:
            return
        page = await client.task_logs(id, page.next)


@TASK.command("watch task {id}", id=ID, as_json=EVENTS)
async def watch(client: Client, id: str, timeout: int | None, as_json: bool) -> None:
    """Follow a task until it is over. Exit codes: 0 succeeded, 1 failed, 124 not over in time.

    $ onward task watch 01990000-…
    $ onward task watch 01990000-… --json | jq -c 'select(.type == "task.chunk")'
    """
    from onward.cli import watching

    task = await client.get(id)
    if as_json:
        ended = await watching.print_events(client, task, timeout_ms=timeout)
        raise typer.Exit(watching.exit_code(ended))
    watching.report(await watching.until_over(client, task, timeout_ms=timeout), as_json=False)


ONE_OR_MANY: Options = {
    "key": argument("[ID]", "The task's id; or --filter.", None),
    **operation.FILTER,
}


async def _one_or_many(
    client: Client, verb: str, key: str | None, as_json: bool, **many: Any
) -> TaskView | None:
    """One by its id, which is returned; or all that match."""
    filter = many.pop("filter")
    if (key is None) == (not filter):
        what = "no task is chosen" if key is None else "both an id and a filter are given"
        fail(USAGE, what, "", f"onward task {verb} ID, or onward task {verb} --filter state=queued")
    if key is None:
        await operation.operate(client, verb, filter, as_json=as_json, **many)
        return None
    found: TaskView = await getattr(client, verb)(key)
    if as_json:
        print_json(found)
        return None
    return found


@command(TASK.app, ONE_OR_MANY, "cancel task {key}", after_conflict="onward task get {key}")
async def cancel(client: Client, key: str | None, as_json: bool, **many: Any) -> None:
    """Cancel a task: at once if it waits; if it runs, its worker is asked to stop. Or many.

    $ onward task cancel 01990000-…
    $ onward task cancel --filter type=report --filter state=queued
    """
    task = await _one_or_many(client, "cancel", key, as_json, **many)
    if task is not None:
        _canceled(task)


@command(TASK.app, ONE_OR_MANY, "retry task {key}", after_conflict="onward task get {key}")
async def retry(client: Client, key: str | None, as_json: bool, **many: Any) -> None:
    """Run a task again that failed, died or was canceled. Or many.

    $ onward task retry 01990000-…
    $ onward task retry --filter state=dead --filter tag=night --rate 10
    """
    task = await _one_or_many(client, "retry", key, as_json, **many)
    if task is not None:
        TASK.print_line(task)


@command(TASK.app, operation.FILTER, "delete tasks")
async def delete(client: Client, as_json: bool, filter: list[str] | None, **many: Any) -> None:
    """Delete all finished tasks that match; those that are not over stay.

    $ onward task delete --filter state=succeeded --filter created_before=1767225600000
    """
    if not filter:
        fail(USAGE, "no tasks are chosen", "", "onward task delete --filter state=succeeded")
    await operation.operate(client, "delete", filter, as_json=as_json, **many)
