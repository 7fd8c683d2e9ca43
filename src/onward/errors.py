"""The root of every error that Onward raises for a caller, on either side of the wire."""

from __future__ import annotations


class OnwardError(Exception):
    """`code` is stable and for machines; `hint` is the next step, in words, if one is known."""

    code = "internal"
    hint: str | None = None

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint
