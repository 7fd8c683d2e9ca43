"""The blocks of a page, in the order in which a reader meets them.

A fence with a title is a file of that name; `sh` with a title that begins with "Terminal" is a
terminal of its own, which stays open. A block that readers need not see stands in a comment:
`<!-- run: sh`, its lines, `-->`. `<!-- not run: why -->` before a fence exempts it, and
`<!-- output -->` before one has it compared with what the block before printed; `…` is anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

# Why a block need not be run. Whoever adds a reason also says where the block is tried instead.
REASONS = (
    "needs Docker",
    "installs packages",  # tests/client/test_install.py
    "needs a Redis and a Celery worker",  # tests/celery
    "needs an agent's configuration",
    "is a fragment",  # of a program whose rest is the reader's own; it must compile
    "is of another library",  # to compare with
)
BLOCK = re.compile(
    r"(?:<!-- (?P<note>not run: [^\n]+?|output) -->\n+)?"
    r"^(?P<indent> *)```(?P<language>\w*)(?P<head>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$"
    r"|^<!-- run: (?P<hidden>\w+)(?P<hidden_head>[^\n]*)\n(?P<hidden_text>.*?)^-->$",
    flags=re.M | re.S,
)


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    title: str
    text: str
    exempt: str = ""  # why it is not run
    is_output: bool = False

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def stays_open(self) -> bool:
        return self.language == "sh" and self.title.lower().startswith("terminal")


def pages() -> list[Path]:
    docs = ROOT / "docs"
    found = [ROOT / "README.md", docs / "index.md", docs / "tutorial.md"]
    return [*found, *sorted((docs / "how-to").glob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in BLOCK.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        part = found.groupdict()
        if part["hidden"]:
            yield Block(
                page, line, part["hidden"], _title(part["hidden_head"]), part["hidden_text"]
            )
            continue
        note = part["note"] or ""
        body = re.sub(f"^{part['indent']}", "", part["text"], flags=re.M)
        yield Block(
            page,
            line,
            part["language"],
            _title(part["head"]),
            body,
            exempt=note.removeprefix("not run: ") if note.startswith("not run") else "",
            is_output=note == "output",
        )


def _title(head: str) -> str:
    found = re.search(r'title="([^"]+)"', head)
    return found[1] if found else ""
