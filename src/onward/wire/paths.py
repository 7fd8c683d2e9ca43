"""A path to a part of a payload or a result: `card.number`, `people.*.email`, `/card/number`."""

from __future__ import annotations

from typing import TypeAlias

Path: TypeAlias = tuple[str, ...]

ANY, WHOLE = "*", "$"
LONGEST = 500  # characters of a path
HINT = "a path is like card.number, people.*.email or /card/number; $ means everything"


def parse_path(path: str) -> Path:
    """The keys on the way, none for `$`. ValueError names what is wrong with it."""
    if path == WHOLE:
        return ()
    if path.startswith("/"):
        parts = [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]
    else:
        parts = path.split(".")
    if len(path) > LONGEST:
        raise ValueError(f"a path of {len(path)} characters is too long")
    if not all(parts) or parts[0] == WHOLE or any("[" in part for part in parts):
        raise ValueError(f"{path!r} is no path into a payload")
    return tuple(parts)
