"""Peers in node: installed once from npm into bench/.cache, each in a folder of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CACHE = Path(__file__).parent.parent / ".cache"


def install(peer: str, *packages: str) -> str | None:
    """Why it cannot be measured here; None: it can."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return "there is no node"
    folder = CACHE / peer
    if not (folder / "node_modules" / ".package-lock.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"private": true}')
        command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", *packages]
        try:
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=30)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            shutil.rmtree(folder)
            return f"npm could not install it ({type(error).__name__})"
    return None


def command(script: Path, peer: str, *arguments: Any) -> list[str]:
    node = ["env", f"BENCH_NODE={CACHE / peer}", "node"]
    return [*node, str(script), *map(str, arguments)]


def answer(command: Sequence[str]) -> Any:
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=30)
    return json.loads(done.stdout)
