"""The command line, from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer.main

from onward.cli import terminal
from onward.cli.__main__ import app

EXIT_CODES = {
    "OK": "done; with `--wait`: the task succeeded",
    "FAILED": "it did not succeed: the task failed, or a check found a fault",
    "USAGE": "an option, a setting or a payload that cannot be read or is not accepted",
    "NOT_FOUND": "there is no such task, run, flow, schedule, queue",
    "REFUSED": "the server refused: the task is not in a state for that, or the key may not do it",
    "UNREACHABLE": "no server answers, or it is not well (503)",
    "TIMED_OUT": "the time to wait is over, and the task goes on",
    "INTERRUPTED": "Ctrl-C",
}


def page() -> str:
    root = typer.main.get_command(app)
    return "\n".join(["# The command line", "", *_head(), *_exit_codes(), *_commands(root, [])])


def _head() -> Iterator[str]:
    yield (
        "Made from the commands themselves; `onward COMMAND --help` prints the same. Results go to "
        "stdout, all else to stderr; `--json` prints JSON for scripts. Commands that call a server "
        "find it by `--server` or `ONWARD_URL`, and send the key of `--key` or `ONWARD_KEY`."
    )
    yield ""


def _exit_codes() -> Iterator[str]:
    yield from ("## Exit codes", "", "| code | when |", "|---|---|")
    for name, when in EXIT_CODES.items():
        yield f"| {getattr(terminal, name)} | {when} |"
    yield from ("", "A process that a signal ends has 128 and the signal's number.", "")


def _commands(command: Any, above: list[str]) -> Iterator[str]:
    name = [*above, command.name or "onward"]
    children = getattr(command, "commands", {})
    if above:
        yield from (f"{'#' * min(len(name), 4)} {' '.join(name)}", "", *_help(command))
        if not children:
            yield from _usage(command, " ".join(name))
    for child in children.values():
        if not child.hidden:
            yield from _commands(child, name)


def _help(command: Any) -> Iterator[str]:
    text = re.sub(r"\[/?[a-z_ ]*\]", "", command.help or "")
    before, _, examples = text.partition("Examples:")
    yield from (before.strip(), "")
    if commands := [line.strip() for line in examples.splitlines() if line.strip()]:
        yield from ("```sh", *commands, "```", "")


def _usage(command: Any, name: str) -> Iterator[str]:
    context = command.context_class(command, info_name=name)
    pieces = [
        piece.removeprefix("{").removesuffix("}") for piece in command.collect_usage_pieces(context)
    ]
    yield from ("```text", " ".join([name, *pieces]), "```", "")
    records = [each.get_help_record(context) for each in command.params]
    if shown := [record for record in records if record and record[0].split()[0] != "--help"]:
        yield from ("| | |", "|---|---|")
        yield from (f"| `{_cell(names)}` | {_cell(text)} |" for names, text in shown)
        yield ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
