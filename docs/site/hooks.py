"""What MkDocs cannot do by itself: pages made from the code, links that lead out of docs/, drawings
in the colours of the page. Without it the documents still read well where they lie.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))

import generated

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PROJECT = {
    "CHANGELOG.md": "Changelog",
    "ARCHITECTURE.md": "Architecture",
    "PROTOCOL.md": "Protocol",
    "CONTRIBUTING.md": "Contributing",
    "clients/typescript/README.md": "TypeScript worker",
    "README.md": "Readme",
}
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
OUTPUT = re.compile(r"<!-- output -->\n+```text\n")
DRAWING = re.compile(r"!\[([^\]]*)\]\(([^)\s]+\.svg)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    decisions = [f"adr/{path.name}" for path in sorted((DOCS / "adr").glob("*.md"))]
    examples = [_place(path) for path in sorted((ROOT / "examples").glob("*/README.md"))]
    project: list[Any] = [{title: _place(ROOT / path)} for path, title in PROJECT.items()]
    for section in config.nav or ():
        if "Project" in section:
            section["Project"] = [*project, {"Decisions": decisions}]
        if "How to" in section and examples:
            section["How to"].append({"Examples": examples})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, text in generated.pages().items():
        files.append(File.generated(config, name, content=text))
    for source in sorted({*_outside()}):
        files.append(File.generated(config, _place(source), content=source.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = page.file.src_uri
    source = next((path for path in _outside() if _place(path) == here), DOCS / here)
    markdown = OUTPUT.sub('```text title="Output"\n', markdown)
    return DRAWING.sub(lambda found: _drawing(found, source), _linked(markdown, source, here))


def _outside() -> Iterator[Path]:
    """Files beside docs/ that have a place on the site: the project's own, and what is linked."""
    seen = {ROOT / name for name in PROJECT} | {*(ROOT / "examples").glob("*/README.md")}
    waiting = [*seen, *DOCS.rglob("*.md")]
    while waiting:
        source = waiting.pop()
        for target in _targets(source):
            if target.is_file() and not target.is_relative_to(DOCS) and target not in seen:
                seen.add(target)
                if target.suffix == ".md":
                    waiting.append(target)
    yield from seen


def _targets(source: Path) -> Iterator[Path]:
    for _, path, _, _ in LINK.findall(source.read_text()):
        if "://" not in path:
            yield Path(os.path.normpath(source.parent / path))


def _place(source: Path) -> str:
    """Where on the site a file beside docs/ is: a page, or a file to look at."""
    inside = source.relative_to(ROOT).as_posix()
    if inside == "README.md":
        return "project/README-of-the-repository.md"  # README.md would be an index of its folder
    if source.name == "README.md":
        return f"project/{source.parent.relative_to(ROOT).as_posix().replace('/', '-')}.md"
    return f"project/{inside}"


def _linked(markdown: str, source: Path, here: str) -> str:
    """Relative links as they must be on the site."""

    def moved(found: re.Match[str]) -> str:
        before, path, anchor, after = found.groups()
        if "://" in path or path.startswith(("mailto:", "/")):
            return found[0]
        target = Path(os.path.normpath(source.parent / path))
        if target.is_relative_to(DOCS):
            place = target.relative_to(DOCS).as_posix()
        elif target.is_file():
            place = _place(target)
        else:
            return found[0]
        relative = os.path.relpath(place, os.path.dirname(here) or ".")  # noqa: PTH120
        return f"{before}{relative}{anchor or ''}{after}"

    return LINK.sub(moved, markdown)


def _drawing(found: re.Match[str], source: Path) -> str:
    """In the page itself, so that it follows its colours; elsewhere it is a picture."""
    drawing = Path(os.path.normpath(source.parent / found[2]))
    if not drawing.is_file():
        drawing = DOCS / "images" / Path(found[2]).name
    text = re.sub(r"<style>.*?</style>", "", drawing.read_text(), count=1, flags=re.S)
    label = f'role="img" aria-label="{found[1]}"'
    return text.replace("<svg ", f'<svg class="drawing" {label} ', 1).replace("\n", "")
