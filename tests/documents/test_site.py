"""The site: built strictly, without the internet, with a reference that leaves nothing out."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import onward
from onward.cli import terminal
from tests.documents.pages import ROOT
from tests.running_app import running_app

SITE = ROOT / "docs" / "site"
LOADED = re.compile(r"<(?:script|img|iframe)[^>]*\ssrc=\"(\w+:)?//|<link[^>]*\shref=\"(\w+:)?//")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By `make docs`, in a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = [*site.rglob("*.html")]
    assert len(pages) > 60
    loading = [page for page in pages if LOADED.search(page.read_text())]
    assert loading == []


@pytest.mark.slow
def test_what_a_block_prints_is_told_from_what_is_typed(site: Path) -> None:
    page = (site / "how-to" / "call.html").read_text()
    assert '<span class="filename">Output</span>' in page
    assert "<!-- output -->" not in page


@pytest.mark.slow
@pytest.mark.contract("Y-3")
def test_everything_public_has_its_place_in_the_reference(site: Path) -> None:
    pages = [*(site / "reference" / "python").glob("*.html")]
    text = "".join(page.read_text() for page in pages)
    anchors = {name.rpartition(".")[2] for name in re.findall(r'id="(onward\.[\w.]+)"', text)}
    assert set(onward.__all__) - {"__version__"} - anchors == set()


@pytest.fixture
def generators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SITE))


@pytest.mark.usefixtures("generators")
async def test_the_page_of_metrics_has_every_metric() -> None:
    import metrics  # type: ignore[import-not-found]  # docs/site

    async with running_app() as app:
        text = (await app.get("/metrics")).text
    exposed = set(re.findall(r"^# TYPE (onward_\w+) ", text, flags=re.M))
    listed = {each.name for each in metrics.found()}
    assert {name for name in exposed - listed if not name.endswith("_created")} == set()
    assert all(each.help for each in metrics.found())


@pytest.mark.usefixtures("generators")
def test_the_page_of_commands_has_every_exit_code() -> None:
    import commands  # type: ignore[import-not-found]  # docs/site

    known = {
        name for name, value in vars(terminal).items() if name.isupper() and type(value) is int
    }
    assert set(commands.EXIT_CODES) == known
    page = commands.page()
    assert "## onward submit" in page
    assert "### onward task watch" in page


@pytest.mark.usefixtures("generators")
def test_everything_in_the_python_reference_is_explained() -> None:
    """Every class, method and function, but for those of a name that only we use."""
    import python_api  # type: ignore[import-not-found]  # docs/site

    names = [name for _, _, of_page in python_api.NAMES.values() for name in of_page]
    assert [each for name in names for each in without_docstring(name)] == []


def without_docstring(name: str) -> Iterator[str]:
    with suppress(ImportError):
        module = importlib.import_module(name)
        members = {
            each: value
            for each, value in vars(module).items()
            if getattr(value, "__module__", None) == name
        }
        yield from (f"{name}.{each}" for each in members if not _is_told(each, members[each]))
        for each, value in members.items():
            if isinstance(value, type) and not each.startswith("_"):
                yield from _members(f"{name}.{each}", value)
        return
    home, _, last = name.rpartition(".")
    found = getattr(importlib.import_module(home), last)
    if not _is_told(last, found):
        yield name
    if isinstance(found, type):
        yield from _members(name, found)


def _members(name: str, found: type) -> Iterator[str]:
    for each, value in vars(found).items():
        if not _is_told(each, value):
            yield f"{name}.{each}"


def _is_told(name: str, found: object) -> bool:
    if isinstance(found, property):
        found = found.fget
    found = getattr(found, "__func__", found)
    named = inspect.isfunction(found) or inspect.isclass(found)
    return name.startswith("_") or not named or bool(found.__doc__)
