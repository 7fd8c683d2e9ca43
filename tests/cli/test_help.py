"""Every command explains itself: how it is called, and an example that can be copied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from onward.cli.__main__ import app

TYPERS_OWN = ("--install-completion", "--show-completion", "--help")


def commands(group: Any = None, path: str = "onward") -> Iterator[tuple[str, bool]]:
    group = group or get_command(app)
    below = getattr(group, "commands", {})
    yield path, bool(below)
    for name, command in below.items():
        yield from commands(command, f"{path} {name}")


@pytest.mark.contract("N-1")
@pytest.mark.parametrize(("command", "is_group"), list(commands()))
def test_every_command_has_help(command: str, is_group: bool) -> None:
    done = CliRunner().invoke(app, [*command.split()[1:], "--help"])
    assert done.exit_code == 0
    assert f"Usage: {command}" in done.stdout
    flags = [line for line in done.stdout.splitlines() if "<bool>" in line]
    assert all(any(name in line for name in TYPERS_OWN) for line in flags), "it takes no value"
    example = done.stdout.partition("Example")[2]
    assert is_group or all(word in example for word in command.split())
