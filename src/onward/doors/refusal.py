"""A request that is refused, and how a door writes that: each door has an `ErrorStyle` in its
package's errors.py, and doors/errors.py has the table of them by path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from onward.errors import OnwardError
from onward.wire.problems import FieldFault

JSON = "application/json"


class Refusal(Exception):
    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        hint: str | None = None,
        faults: tuple[FieldFault, ...] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.hint, self.faults, self.headers = hint, faults, dict(headers or {})


class PlainError(msgspec.Struct, frozen=True):
    """As clients of the dispatcher and of the flow centre read it."""

    error: str


class ErrorStyle(NamedTuple):
    shape: type  # of the body
    body: Callable[[Refusal, str], Any]  # the refusal and the number of the request: a `shape`
    # An error of ours in this door's own words and status; None: as every door has it.
    worded: Callable[[OnwardError], Refusal | None] = lambda _: None
    media: str = JSON
