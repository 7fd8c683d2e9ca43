"""Reading a JSON object field by field, so that all its flaws come out at once.

null and an empty text mean that a field is not set: clients that encode whole records send them.
A field that no part reads is a flaw, with the nearest name as a hint.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from onward.flow.parts import Flaw

MAX_MS = 10 * 365 * 24 * 3_600_000
# Flaws that come with a hint: looking for near names is slow, and more would not be read.
HINTED = 20


class Book:
    """All that was found wrong, or doubtful, in one definition."""

    def __init__(self) -> None:
        self.flaws: list[Flaw] = []
        self.warnings: list[Flaw] = []
        self.nodes = 0
        self.edges = 0
        self._places: set[tuple[str | None, str]] = set()

    def add(self, flaw: Flaw) -> None:
        """Of one place only what comes first: the rest mostly follows from it."""
        if (flaw.node, flaw.field) not in self._places:
            self._places.add((flaw.node, flaw.field))
            self.flaws.append(flaw)

    def nearest(self, word: Any, words: Collection[str]) -> str:
        if len(self.flaws) >= HINTED:
            return ""
        close = get_close_matches(str(word), sorted(words), n=1)
        return f"; did you mean {close[0]!r}?" if close else ""


class Fields:
    def __init__(self, raw: Any, book: Book, *, node: str | None = None, name: str = "") -> None:
        self._book = book
        self.node = node
        self._name = name
        self._asked: set[str] = set()
        self._raw: Mapping[Any, Any] = raw if isinstance(raw, Mapping) else {}
        self._readable = isinstance(raw, Mapping)
        if not self._readable:
            whole = name or ("the definition" if node is None else "a node")
            message = f"{whole} must be an object, not {shown(raw)}"
            book.add(Flaw(node, name, message))

    def flaw(self, field: str, message: str) -> None:
        if self._readable:
            self._book.add(Flaw(self.node, self.named(field), message))

    def doubt(self, field: str, message: str) -> None:
        self._book.warnings.append(Flaw(self.node, self.named(field), message))

    def named(self, field: str) -> str:
        return f"{self._name}.{field}".strip(".") if self._name else field

    def nearest(self, word: Any, words: Collection[str]) -> str:
        return self._book.nearest(word, words)

    def raw(self, field: str) -> Any:
        """As it stands there. None: not set."""
        self._asked.add(field)
        value = self._raw.get(field)
        return None if value == "" else value

    def text(self, field: str, *, required: bool = False) -> str | None:
        value = self.raw(field)
        if value is None:
            if required:
                self.flaw(field, f"{self.named(field)} is missing")
            return None
        if not isinstance(value, str):
            self.flaw(field, f"{self.named(field)} must be text, not {shown(value)}")
            return None
        return value

    def number(self, field: str, high: int, *, low: int = 0) -> int | None:
        value = self.raw(field)
        if value is None:
            return None
        number = whole(value)
        if number is None or not low <= number <= high:
            wanted = f"a whole number from {low} to {high}"
            self.flaw(field, f"{self.named(field)} must be {wanted}, not {shown(value)}")
            return None
        return number

    def flag(self, field: str, default: bool = False) -> bool:
        value = self.raw(field)
        if value is not None and not isinstance(value, bool):
            self.flaw(field, f"{self.named(field)} must be true or false, not {shown(value)}")
        return value if isinstance(value, bool) else default

    def one_of(self, field: str, words: Collection[str]) -> str | None:
        value = self.text(field)
        if value is not None and value not in words:
            hint = self.nearest(value, words) or f"; there are {', '.join(words)}"
            self.flaw(field, f"unknown {self.named(field)} {value!r}{hint}")
            return None
        return value

    def object(self, field: str) -> Mapping[Any, Any]:
        value = self.raw(field)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.flaw(field, f"{self.named(field)} must be an object, not {shown(value)}")
            return {}
        return value

    def texts(self, field: str) -> Iterator[tuple[str, str]]:
        """An object of texts, pair by pair."""
        for key, value in self.object(field).items():
            if isinstance(value, str) and value:
                yield key, value
            else:
                message = f"{self.named(field)}.{key} must be text, not {shown(value)}"
                self.flaw(f"{field}.{key}", message)

    def list(self, field: str) -> list[Any]:
        value = self.raw(field)
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            self.flaw(field, f"{self.named(field)} must be a list, not {shown(value)}")
            return []
        return list(value)

    def inner(self, field: str) -> Fields | None:
        value = self.raw(field)
        name = self.named(field)
        return None if value is None else Fields(value, self._book, node=self.node, name=name)

    def close(self) -> None:
        """No more will be read: what is left over is not ours."""
        for field in self._raw:
            if field not in self._asked:
                hint = self.nearest(field, self._asked)
                self.flaw(str(field), f"unknown field {self.named(str(field))!r}{hint}")


def whole(value: Any) -> int | None:
    """A whole number; 3.0 is one, true is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if math.isfinite(value) and value == int(value) else None


def shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
