"""Sentences picked out of a text: in their order, few, and the same ones every time."""

from __future__ import annotations

import pytest

from onward.workers.local.shipped.extract import MOST_CHARS, extract

NEWS = (
    "The ledger keeps every task. Rain is expected. A worker that claims a task raises its fence. "
    "Somebody sneezed. The ledger refuses a worker whose fence is old. Tea was served. "
    "So a task that two workers ran is settled by one worker, and the ledger holds one result."
)


def test_the_weighty_sentences_are_taken_in_the_order_of_the_text() -> None:
    summary = extract(NEWS)
    kept = [sentence for sentence in NEWS.split(". ") if sentence.rstrip(".") in summary]
    assert len(kept) == 3
    assert ". ".join(kept) == summary
    for idle in ("Rain", "sneezed", "Tea"):
        assert idle not in summary
    assert extract(NEWS) == summary


@pytest.mark.parametrize("text", ["", "   \n\t", "\n\n\n"])
def test_nothing_gives_nothing(text: str) -> None:
    assert extract(text) == ""


def test_a_short_text_is_its_own_summary() -> None:
    assert extract("Only this") == "Only this"
    assert extract('He said: "Go."  Then,\ne.g.  now, he left.') == (
        'He said: "Go." Then, e.g. now, he left.'
    )


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        (
            "東京は日本の首都です。猫。東京には会社が多いです。犬。東京の電車は便利です。雨。",
            "東京",
        ),
        ("Москва — столица. Дождь. Москва большая. Чай. Столица растёт, Москва строит.", "Москва"),
        ("القاهرة عاصمة مصر. مطر. مصر بلد كبير. شاي. عاصمة مصر القاهرة مدينة كبيرة.", "مصر"),
    ],
)
def test_any_language_will_do(text: str, whole: str) -> None:
    summary = extract(text)
    assert 0 < len(summary) < len(text)
    assert whole in summary


@pytest.mark.parametrize(
    "text",
    ["a" * 300_000, "a " * 150_000, "." * 300_000, "東" * 300_000, "x. " * 100_000, '."' * 150_000],
    ids=["one word", "words", "stops", "no spaces", "tiny sentences", "quotes"],
)
def test_what_is_no_prose_still_gives_something_short(text: str) -> None:
    assert 0 < len(extract(text)) <= MOST_CHARS
