"""`onward task …`: look at tasks, and intervene."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from onward.cli.commands import Resource, Verb, argument, command, flag, option
from onward.cli.tables import Fields, Page, as_text, cell, hint, print_page, since
from onward.cli.terminal import MARKS, console, format_duration, plain, state_mark, with_client

if TYPE_CHECKING:
    from onward.client.http import Client, Explanation, TaskView

ID = argument("ID", "The task's id.")
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


def _happened(page: Page) -> None:
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
            },
            none="no such tasks; onward submit makes one",
        ),
        Verb(
            "cancel",
            "Cancel a task: at once if it waits; if it runs, its worker is asked to stop.",
            lambda client, key: client.cancel(key),
            show=_canceled,
        ),
        Verb(
            "retry",
            "Run a task again that failed, died or was canceled.",
            lambda client, key: client.retry(key),
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
    ),
)


@command(TASK.app, {"id": ID, "as_json": flag("--json", "Print each event as a line of JSON.")})
def watch(id: str, timeout: int | None, as_json: bool, server: str | None) -> None:
    """Follow a task until it is over. Exit codes: 0 succeeded, 1 failed, 124 not over in time.

    $ onward task watch 01990000-…
    $ onward task watch 01990000-… --json | jq -c 'select(.type == "task.chunk")'
    """
    from onward.cli import watching

    async def call(client: Client) -> TaskView:
        task = await client.get(id)
        follow = watching.print_events if as_json else watching.until_over
        return await follow(client, task, timeout_ms=timeout)

    task = with_client(server, f"watch task {id}", call)
    if as_json:
        raise typer.Exit(watching.exit_code(task))
    watching.report(task, as_json=False)
