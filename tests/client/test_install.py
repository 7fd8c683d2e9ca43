"""What `pip install onward` brings, and what an import of it loads."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import onward

ROOT = Path(__file__).parents[2]
NAMES = {
    "Client", "SyncClient", "Worker", "Context", "Retry", "Flow", "Refused", "TryAgain",
    "CallFailed", "EffectUnknown", "OnwardError", "Unreachable", "ProblemError", "TaskFailed",
    "StillRunning", "enqueue", "Concurrency", "RateLimit", "Batch",
}  # fmt: skip


def loaded_by(line: str) -> set[str]:
    """The names of all modules after this line, in a process of its own."""
    code = f"import sys, json\n{line}\nprint(json.dumps([*sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    return set(json.loads(done.stdout))


@pytest.mark.contract("Y-3")
def test_everything_public_is_exported() -> None:
    assert set(onward.__all__) - {"__version__"} == NAMES
    assert all(getattr(onward, name).__doc__ for name in NAMES)


@pytest.mark.contract("Y-7")
@pytest.mark.slow
def test_an_import_of_the_client_loads_the_wire_and_little_else() -> None:
    loaded = loaded_by("from onward import Client")

    ours = {name.split(".")[1] for name in loaded if name.startswith("onward.")}
    assert ours <= {"client", "wire", "errors", "urls"}
    assert not {"httpx2", "pydantic", "websockets", "uvicorn"} & loaded


@pytest.mark.contract("Y-7")
@pytest.mark.slow
def test_an_import_of_the_worker_loads_no_server() -> None:
    loaded = {
        name.split(".")[0] for name in loaded_by("from onward import Flow, SyncClient, Worker")
    }

    assert not {"apsw", "fastapi", "redis", "starlette", "structlog", "typer", "uvicorn"} & loaded


@pytest.mark.contract("Y-7")
@pytest.mark.slow
def test_a_command_names_the_install_line_that_is_missing() -> None:
    """As if these packages were not there."""
    for missing, command, extra in (
        ("typer", "submit", "cli"),
        ("typer", "up", "server"),
        ("pydantic_settings", "up", "server"),
    ):
        code = (
            f"import sys; sys.modules[{missing!r}] = None; sys.argv = ['onward', {command!r}]\n"
            "from onward.cli.entry import main; main()"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"pip install 'onward[{extra}]'" in done.stderr


@pytest.mark.contract("Y-7")
def test_a_caller_needs_at_most_fifteen_packages() -> None:
    """By the packages installed here: what the base requires, and what that requires."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted, found = [*project["dependencies"]], {"onward"}
    while wanted:
        wish = Requirement(wanted.pop())
        name = canonicalize_name(wish.name)
        if name not in found and (wish.marker is None or wish.marker.evaluate({"extra": ""})):
            found.add(name)
            wanted += requires(name) or []
    assert len(found) <= 15, found
