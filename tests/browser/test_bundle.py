"""The page passes its own checks, and what is committed of it is what its sources make."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WEB = ROOT / "web"
BUILT = ROOT / "src" / "onward" / "doors" / "page" / "static"

FIRST_SCREEN = 200_000  # bytes, compressed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]


@pytest.fixture(autouse=True)
def _node() -> None:
    if shutil.which("npx") is None or not (WEB / "node_modules" / "vitest").exists():
        pytest.skip("the page cannot be built here (node 20.19 or later, then: cd web && npm ci)")


def test_the_bundle_is_what_its_sources_make(tmp_path: Path) -> None:
    _run("npx", "vite", "build", "--outDir", str(tmp_path), "--logLevel", "error")
    made, kept = _files(tmp_path), _files(BUILT)
    assert sorted(made) == sorted(kept), "make ui"
    assert [name for name in made if made[name] != kept[name]] == []


def test_the_sources_pass_types_lint_and_format() -> None:
    subprocess.run([sys.executable, "web/openapi.py"], cwd=ROOT, check=True)
    _run("npm", "run", "--silent", "types")
    _run("npm", "run", "--silent", "check")


def test_the_units_of_the_page() -> None:
    _run("npm", "test", "--silent")


def test_the_first_screen_is_small() -> None:
    """What a browser fetches to show the Overview: the page, and what it names and imports."""
    assets = BUILT / "assets"
    seen: set[Path] = set()
    left = [BUILT / "index.html", next(assets.glob("Overview-*.js"))]
    while left:
        file = left.pop()
        if file in seen:
            continue
        seen.add(file)
        if file.suffix == ".woff2":
            continue
        text = file.read_text()
        named = re.findall(r"/assets/([\w.-]+)", text) if file.suffix != ".js" else []
        named += re.findall(r"""(?:from|import)\s*["']\./([\w.-]+)["']""", text)
        left += [assets / name for name in named if (assets / name).exists()]
    assert len(seen) > 5
    size = sum(len(gzip.compress(file.read_bytes(), 9)) for file in seen)
    assert size <= FIRST_SCREEN, sorted(file.name for file in seen)


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=WEB, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
