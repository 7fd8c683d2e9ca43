"""The command line as a person or a script runs it: real processes, real exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.processes import HTTP
from tests.support import poll_until

ONWARD = (sys.executable, "-m", "onward.cli")
KEPT = ("PATH", "HOME", "LANG", "XDG_STATE_HOME")
LONG_S = 100  # no command here takes as long, whatever else the machine has to do


def environment(**more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return {**kept, "PYTHONWARNINGS": "error", **more}


def run(
    *arguments: str, cwd: Path | str = ".", input: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ONWARD, *arguments],
        cwd=cwd,
        env=environment(**env),
        input=input,
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )


class Shell:
    """A folder, and the address of the server that the commands in it call."""

    def __init__(self, url: str, place: Path) -> None:
        self.url = url
        self.place = place

    def environment(self, **more: str) -> dict[str, str]:
        return environment(**{"ONWARD_URL": self.url, "USER": "ada", **more})

    def run(self, *arguments: str, input: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        return run(*arguments, cwd=self.place, input=input, **self.environment(**env))

    def json(self, *arguments: str, code: int = 0) -> Any:
        done = self.run(*arguments, "--json")
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    def read(self, path: str) -> Any:
        """Not by the command line: a process for each look would be too much."""
        return HTTP.get(f"{self.url}/api/v2/{path}").json()

    def wait_for(self, task: str, state: str) -> None:
        poll_until(lambda: self.read(f"tasks/{task}")["state"] == state)

    def write(self, name: str, value: Any) -> str:
        text = value if isinstance(value, str) else json.dumps(value, indent=2)
        (self.place / name).write_text(text)
        return name
