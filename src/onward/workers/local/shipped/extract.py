"""A summary out of the text's own sentences: no model, no network, the same every time.

A sentence is worth more the more it shares with the rest of the text, and the rarer what it shares
is elsewhere. What counts as a word needs no dictionary, so it works in any language; scripts
without spaces are read in pairs of characters.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

MOST_SENTENCES = 3
MOST_CHARS = 800
LONG = 400  # a sentence longer than this is a list, a table or no prose at all: taken in parts
BLOCK = 64 * 1024
LEAD = 1.25  # the first sentence often names the subject

# After a full stop comes a space, and after that no small letter ("Dr. no", "e.g. this"); after its
# sisters in other scripts there is often no space at all. An empty line ends a sentence, too.
_END = re.compile(
    r"([.!?…][\"'»”’)\]]*)\s++(?![a-zß-öø-ÿа-яё])|([。！？｡．।؟۔][\"'」』”’）]*)\s*|\n\s*\n"
)
_SPACES = re.compile(r"\s+")
_WORDS = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\u0e00-\u0e7f]+|[^\W_]+")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\u0e00-\u0e7f]")


def extract(text: str) -> str:
    """The weightiest sentences, in the order in which they stand there."""
    found = _sentences(text)
    if len(found) <= MOST_SENTENCES and sum(map(len, found)) <= MOST_CHARS:
        return " ".join(found)
    worth = _worth(found)
    best = sorted(range(len(found)), key=lambda at: (-worth[at], at))
    chosen: list[int] = []
    left = MOST_CHARS
    for at in best[: MOST_SENTENCES * 4]:
        if len(chosen) < MOST_SENTENCES and len(found[at]) < left:
            chosen.append(at)
            left -= len(found[at]) + 1
    return " ".join(found[at] for at in sorted(chosen))


def _sentences(text: str) -> list[str]:
    found: list[str] = []
    for block in _blocks(text):
        start = 0
        for end in _END.finditer(block):
            found += _tidied(block[start : max(end.start(), end.end(1), end.end(2))])
            start = end.end()
        found += _tidied(block[start:])
    return found


def _blocks(text: str) -> Iterator[str]:
    """A search through a megabyte would hold the interpreter, and with it the server."""
    at = 0
    while at < len(text):
        space = text.rfind(" ", at + BLOCK // 2, at + BLOCK) if len(text) - at > BLOCK else -1
        end = space if space > 0 else at + BLOCK
        yield text[at:end]
        at = end


def _tidied(piece: str) -> list[str]:
    sentence = _SPACES.sub(" ", piece).strip()
    if len(sentence) > LONG:
        return _parts(sentence)
    return [sentence] if sentence else []


def _parts(sentence: str) -> list[str]:
    """Cut at spaces where there are any, so that each part is short enough to be chosen."""
    parts: list[str] = []
    at = 0
    while len(sentence) - at > LONG:
        space = sentence.rfind(" ", at + LONG // 2, at + LONG)
        end = space if space > 0 else at + LONG
        parts.append(sentence[at:end].strip() + " …")
        at = end
    parts.append(sentence[at:].strip())
    return [part for part in parts if part]


def _worth(sentences: Sequence[str]) -> list[float]:
    words = [_words(sentence) for sentence in sentences]
    everywhere = Counter(word for own in words for word in own)
    among = Counter(word for own in words for word in set(own))
    weight = {
        word: math.log1p(count) * math.log(1 + len(words) / among[word])
        for word, count in everywhere.items()
        if count > 1
    }
    # The root keeps long sentences from winning by their length, and short ones by their lack of it
    worth = [
        sum(weight.get(word, 0.0) for word in set(own)) / math.sqrt(len(own) + 4) for own in words
    ]
    if worth:
        worth[0] *= LEAD
    return worth


def _words(sentence: str) -> list[str]:
    words: list[str] = []
    for word in _WORDS.findall(sentence.casefold()):
        if _UNSPACED.match(word):
            words += [word[at : at + 2] for at in range(max(1, len(word) - 1))]
        elif len(word) > 2:
            words.append(word)
    return words
