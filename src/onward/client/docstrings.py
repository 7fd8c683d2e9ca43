"""What a docstring says of a function and of each parameter, in Google's, NumPy's or Sphinx' form.

For people and models that read a declaration. What is in none of these forms is text like any
other; nothing here can fail.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

PARAMETERS = frozenset({"args", "arguments", "parameters", "params", "keyword args", "other args"})
SECTIONS = PARAMETERS | {
    "returns", "return", "yields", "raises", "example", "examples", "note", "notes", "see also",
    "references", "warnings", "todo", "other parameters", "attributes",
}  # fmt: skip
_SPHINX = re.compile(r":(\w+)(?:\s+([^:]*))?:\s*(.*)")
_SPHINX_PARAMETERS = frozenset({"param", "parameter", "arg", "argument", "key", "keyword"})
_GOOGLE = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")


class Docs(NamedTuple):
    text: str  # without the sections about parameters, results and errors
    parameters: Mapping[str, str]


def read(doc: str, names: Collection[str]) -> Docs:
    """`doc` as inspect.getdoc returns it; only `names` are looked for."""
    text: list[str] = []
    found: dict[str, str] = {}
    for title, numpy, lines in _sections(doc.splitlines()):
        if title is None:
            text += _without_fields(lines, found)
        elif title in PARAMETERS or title == "other parameters":
            found |= _listed(lines, _NUMPY if numpy else _GOOGLE)
    known = {name: words for name, words in found.items() if name in names and words}
    return Docs("\n".join(text).strip(), known)


def _sections(lines: list[str]) -> Iterator[tuple[str | None, bool, list[str]]]:
    """Each with its title in small letters (None: the text before) and whether it is NumPy's."""
    title, numpy, held = None, False, list[str]()
    skip = False
    for at, line in enumerate(lines):
        if skip:
            skip = False
            continue
        word = line.strip().lower().rstrip(":")
        below = lines[at + 1].strip() if at + 1 < len(lines) else ""
        ruled = len(below) >= 3 and set(below) == {"-"}
        named = line[:1].strip() != "" and word in SECTIONS
        if named and (ruled or line.rstrip().endswith(":")):
            yield title, numpy, held
            title, numpy, held, skip = word, ruled, [], ruled
        elif title is not None and not numpy and line[:1].strip():
            # Text at the margin ends a section of Google's: it belongs to no parameter.
            yield title, numpy, held
            title, held = None, ["", line]
        else:
            held.append(line)
    yield title, numpy, held


def _listed(lines: list[str], head: re.Pattern[str]) -> Mapping[str, str]:
    """Parameters at the section's own indentation, what describes them deeper or behind."""
    filled = [line for line in lines if line.strip()]
    if not filled:
        return {}
    margin = min(len(line) - len(line.lstrip()) for line in filled)
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for line in filled:
        opened = head.match(line.strip()) if line[margin:][:1].strip() else None
        if opened is None:
            for name in names:
                found[name].append(line.strip())
            continue
        names = [name.strip(" *") for name in opened[1].split(",")]
        first = opened[2] if head is _GOOGLE else ""
        found |= {name: [first] if first else [] for name in names}
    return {name: " ".join(words).strip() for name, words in found.items()}


def _without_fields(lines: list[str], found: dict[str, str]) -> list[str]:
    """The lines that are no field of Sphinx'; what its parameters are goes to `found`."""
    text: list[str] = []
    name: str | None = None
    inside = False
    for line in lines:
        opened = _SPHINX.match(line) if line.startswith(":") else None
        if opened is not None:
            words = (opened[2] or "").split()
            inside = True
            name = words[-1] if opened[1] in _SPHINX_PARAMETERS and words else None
            if name is not None:
                found[name] = opened[3].strip()
        elif inside and line[:1].isspace() and line.strip():
            if name is not None:
                found[name] = f"{found[name]} {line.strip()}".strip()
        else:
            inside, name = inside and not line.strip(), None
            text.append(line)
    return text
