"""Errors of /api/v1: one text, under `detail` (S3-1)."""

from __future__ import annotations

import msgspec

from onward.doors.refusal import ErrorStyle, Refusal

PREFIXES = ("/api/v1",)


class Detail(msgspec.Struct, frozen=True):
    detail: str


def _body(refusal: Refusal, _: str) -> Detail:
    # One text is all that this door's clients read.
    return Detail(f"{refusal.message}; {refusal.hint}" if refusal.hint else refusal.message)


STYLE = ErrorStyle(Detail, _body)
