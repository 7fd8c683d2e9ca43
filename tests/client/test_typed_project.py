"""A user's project under type checkers: what has a type is not `Any`. `make type` reads it, too."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import onward

PROJECT = Path(__file__).with_name("typed_project.py")
# What a user holds in the hand. The blocking twins of `onward.client.sync` are typed by the
# methods that they are made from; the transports and the command line are nobody's interface.
PUBLIC = ("api", "batch", "context", "errors", "failures", "http", "resources", "service", "worker")
needs_node = pytest.mark.skipif(
    shutil.which("node") is None,
    reason="no Node here: pyright is left out (Node 20.19 or later)",
)


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
@needs_node
def test_pyright_finds_nothing_strictly(tmp_path: Path) -> None:
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


@pytest.mark.contract("Y-1", "Y-3")
@pytest.mark.slow
@needs_node
def test_no_public_type_is_unknown_or_left_to_inference() -> None:
    what = ["--verifytypes", "onward.client", "--ignoreexternal", "--outputjson"]
    done = subprocess.run(
        [sys.executable, "-m", "pyright", *what],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    assert len(symbols) > 500
    unclear = {each["name"]: each for each in symbols if not each["isTypeKnown"]}
    assert not [name for name, each in unclear.items() if not each["isTypeAmbiguous"]]
    public = tuple(f"onward.client.{name}." for name in PUBLIC)
    assert not [name for name in unclear if name.startswith(public) and name[-4:] != ".log"]
