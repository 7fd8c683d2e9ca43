"""Which parts of a payload and a result are sensitive, and what they look like masked. Pure.

A path names a part: `card.number`, `people.*.email`, or as a JSON pointer, `/card/number`. `*` is
any key or item, `$` all there is. A list on the way need not be named: each of its items is meant.
Masking too much hides something; masking too little reveals it, so doubt is masked. Free
text is never looked into: an error's message says what its author wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from onward.core.errors import Invalid
from onward.core.task import Event, Json, Task, encode
from onward.wire.paths import ANY, HINT, Path, parse_path

MASK = "•••"

CHUNK = "task.chunk"
_COPIES = ("input", "output", "payload", "result", "value")  # of an event: where work is repeated


def parse(path: str, *, pointer: str = "") -> Path:
    """The keys on the way, none for `$`. Invalid says what is wrong with it."""
    try:
        return parse_path(path)
    except ValueError as error:
        raise Invalid(str(error), pointer=pointer, hint=HINT) from None


def mask(value: Any, paths: Sequence[Path], *, anywhere: bool = False) -> Any:
    """A copy with everything masked that a path leads to; `anywhere`: from any part of it on."""
    return _masked(value, paths, paths if anywhere else ())


def _masked(value: Any, paths: Sequence[Path], roots: Sequence[Path]) -> Any:
    if () in paths:
        return MASK
    if isinstance(value, dict):
        return {key: _masked(part, _on(paths, key, roots), roots) for key, part in value.items()}
    if isinstance(value, list):
        return [
            _masked(part, _through(paths, str(at), roots), roots) for at, part in enumerate(value)
        ]
    return value


def _on(paths: Sequence[Path], key: str, roots: Sequence[Path]) -> Sequence[Path]:
    return [path[1:] for path in paths if path[0] in (ANY, key)] + [*roots]


def _through(paths: Sequence[Path], at: str, roots: Sequence[Path]) -> Sequence[Path]:
    return [path[1:] if path[0] in (ANY, at) else path for path in paths] + [*roots]


def mask_text(text: Json, paths: Sequence[Path], *, anywhere: bool = False) -> Json:
    return encode(mask(msgspec.json.decode(text), paths, anywhere=anywhere))


def masks_in(value: Any, paths: Sequence[Path], *, anywhere: bool = False) -> str | None:
    """The pointer of a part that should be sensitive, and is the mask itself. None: there is none.

    A caller was shown it masked, and has submitted what they saw.
    """
    return _mask_in(value, paths, paths if anywhere else (), "")


def _mask_in(value: Any, paths: Sequence[Path], roots: Sequence[Path], at: str) -> str | None:
    if () in paths and value == MASK:
        return at
    parts: Sequence[tuple[str, Any, Sequence[Path]]] = ()
    below = [path for path in paths if path]
    if isinstance(value, dict):
        parts = [(key, part, _on(below, key, roots)) for key, part in value.items()]
    elif isinstance(value, list):
        parts = [(str(n), part, _through(below, str(n), roots)) for n, part in enumerate(value)]
    for key, part, rest in parts:
        found = _mask_in(part, rest, roots, f"{at}/{key}") if rest else None
        if found is not None:
            return found
    return None


def refuse_masks(value: Any, paths: Sequence[Path], at: str, *, anywhere: bool = False) -> None:
    """Invalid if a mask would be written over what it hides. `at`: where the value itself is."""
    found = masks_in(value, paths, anywhere=anywhere) if paths else None
    if found is not None:
        raise Invalid(
            f"{at}{found} is hidden (•••): reveal its value before editing",
            pointer=f"/{at}{found}",
            hint="GET it with masked=false, and submit the value that it shows",
        )


def mask_task(task: Task, paths: Sequence[Path], *, anywhere: bool = False) -> Task:
    """Payload and result, and what an error has beside its message."""
    error = task.error
    if error is not None:
        error = encode(_copied("error", msgspec.json.decode(error), paths))
    return msgspec.structs.replace(
        task,
        payload=mask_text(task.payload, paths, anywhere=anywhere),
        result=None if task.result is None else mask_text(task.result, paths, anywhere=anywhere),
        error=error,
    )


def mask_event(event: Event, paths: Sequence[Path]) -> Event:
    """What an event repeats of the work itself; when it was, who did it and how stays."""
    if event.data is None:
        return event
    data: Any = msgspec.json.decode(event.data)
    if event.type == CHUNK:
        # Of plain text it is not known which part of a result it is.
        data = mask(data, paths, anywhere=True) if isinstance(data, dict | list) else MASK
    elif isinstance(data, dict):
        data = {name: _copied(name, part, paths) for name, part in data.items()}
    return msgspec.structs.replace(event, data=encode(data))


def _copied(name: str, part: Any, paths: Sequence[Path]) -> Any:
    if name == "error" and isinstance(part, dict) and part.get("details") is not None:
        return {**part, "details": mask(part["details"], paths, anywhere=True)}
    return mask(part, paths, anywhere=True) if name in _COPIES else part
