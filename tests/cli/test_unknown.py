"""A command that does not exist names the one that was probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from onward.cli.__main__ import app


def refusal_of(command: str) -> str:
    done = CliRunner().invoke(app, command.split(), env={"COLUMNS": "200"})
    assert done.exit_code == 2, done.output
    return " ".join(done.output.split())


@pytest.mark.contract("N-1")
@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("explain 01990000", "'onward task explain'"),
        ("backup onward.gz", "'onward db backup'"),
        ("replay 01990000", "'onward dlq replay'"),
        ("queues", "'queue'"),
        ("run report", "'onward submit report'"),
        ("run review", "'onward flow run review'"),
    ],
)
def test_what_was_meant_is_named(command: str, meant: str) -> None:
    assert meant in refusal_of(command)


@pytest.mark.contract("N-1")
def test_what_many_groups_have_is_not_guessed() -> None:
    assert "Did you mean" not in refusal_of("show 01990000")


@pytest.mark.contract("N-1")
@pytest.mark.parametrize("name", ["list", "drain"])
def test_a_command_on_workers_is_not_taken_for_a_worker(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"onward workers {name}" in refusal_of(f"worker {name}")
