"""A user's project under type checkers: what has a type is not `Any`. `make type` reads it, too."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import onward

PROJECT = Path(__file__).with_name("typed_project.py")


@pytest.mark.contract("Y-1", "Y-3")
def test_the_project_uses_everything_public() -> None:
    used = {
        name.name
        for node in ast.walk(ast.parse(PROJECT.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "onward"
        for name in node.names
    }
    assert used == set(onward.__all__) - {"__version__"}


@pytest.mark.contract("Y-1", "Y-3")
@pytest.mark.slow
def test_pyright_finds_nothing_strictly(tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("no Node here: pyright is left out (Node 20.19 or later)")
    shutil.copy(PROJECT, tmp_path / "project.py")
    settings = {"include": ["project.py"], "typeCheckingMode": "strict"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
