"""`onward submit TYPE --from rows.jsonl`: a task for each line, as one batch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from onward.cli.batch import BATCH, has_failures, until_over
from onward.cli.tables import hint, progress_bar
from onward.cli.terminal import FAILED, USAGE, console, fail, plain, print_json

if TYPE_CHECKING:
    from onward.client.http import Client
    from onward.wire.batches import BatchView

MOST_SHOWN = 20


async def submit(
    client: Client,
    type: str,
    path: str,
    options: dict[str, Any],
    wait: bool,
    timeout: int | None,
    as_json: bool,
) -> None:
    lines, broken = _read(path)
    with progress_bar() as progress:
        row = progress.add_task("submitting", total=len(lines))
        batch = await client.submit_many(
            type,
            lines.values(),
            on_submitted=lambda more: progress.advance(row, more),
            **options,
        )
    numbers = list(lines)
    refused = {numbers[at]: str(error) for at, error in batch.refused.items()}
    broken = dict(sorted({**broken, **refused}.items()))
    ended = await batch.get()
    if wait:
        ended = await until_over(client, ended, timeout)
    _report(ended, broken, wait=wait, as_json=as_json)


def _read(path: str) -> tuple[dict[int, Any], dict[int, str]]:
    """The payloads, and what is wrong with the other lines, by line."""
    payloads: dict[int, Any] = {}
    broken: dict[int, str] = {}
    try:
        text = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        fail(USAGE, f"{path} cannot be read", str(error), "name a file of JSON, a value a line")
    for number, line in _numbered(text):
        try:
            payloads[number] = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            broken[number] = f"not JSON: {error}"
    return payloads, broken


def _numbered(text: bytes) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(text.split(b"\n"), start=1):
        if line.strip():
            yield number, line


def _report(batch: BatchView, broken: Mapping[int, str], *, wait: bool, as_json: bool) -> None:
    if as_json:
        lines = [{"line": number, "error": why} for number, why in broken.items()]
        print_json({"batch": batch, "broken": lines})
    else:
        BATCH.print_line(batch)
        hint(f"onward task list --batch {batch.id}")
    errors = console(stderr=True)
    for number, why in list(broken.items())[:MOST_SHOWN]:
        errors.print(f"✗ line {number}: {plain(why)}", markup=False, style="red")
    if len(broken) > MOST_SHOWN:
        errors.print(f"… and {len(broken) - MOST_SHOWN} more", style="red")
    if broken or (wait and has_failures(batch)):
        raise typer.Exit(FAILED)
