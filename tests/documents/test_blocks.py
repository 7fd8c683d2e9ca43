"""Every block of README, tutorial and how-tos does what it is there for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents.pages import REASONS, ROOT, blocks, pages
from tests.documents.reader import Reader

LANGUAGES = {"sh", "python", "json", "yaml", "text", "promql", "toml", "typescript", "html", ""}


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_reader_can_do_what_the_page_says(page: Path, reader: Reader) -> None:
    for block in blocks(page):
        reader.do(block)


def test_a_block_that_is_not_run_says_why() -> None:
    found = [block for page in pages() for block in blocks(page)]
    exempt = [block for block in found if block.exempt]
    assert {block.exempt for block in exempt} <= set(REASONS), [*map(str, exempt)]
    assert {block.language for block in found} <= LANGUAGES
    counts = Counter("exempt" if block.exempt else block.language for block in found)
    assert counts["sh"] + counts["python"] > 2 * len(exempt), counts
