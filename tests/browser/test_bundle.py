"""What is committed of the page is what its sources make, byte for byte."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WEB = ROOT / "web"
BUILT = ROOT / "src" / "onward" / "doors" / "page" / "static"

pytestmark = pytest.mark.slow


def test_the_bundle_is_what_its_sources_make(tmp_path: Path) -> None:
    if shutil.which("npx") is None or not (WEB / "node_modules" / "vite").exists():
        pytest.skip("the page cannot be built here (node 20.19 or later, then: cd web && npm ci)")
    subprocess.run(
        ["npx", "vite", "build", "--outDir", str(tmp_path), "--logLevel", "error"],
        cwd=WEB,
        check=True,
        timeout=110,
    )
    made, kept = _files(tmp_path), _files(BUILT)
    assert sorted(made) == sorted(kept), "make ui"
    assert [name for name in made if made[name] != kept[name]] == []


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
