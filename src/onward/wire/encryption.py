"""Encryption at rest: the keys by name, and a step of a rotation. Never a key itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from onward.wire.base import Body, Wire


class KeyNames(Wire, frozen=True):
    sealing: str | None  # None: nothing is encrypted
    keys: tuple[str, ...] = ()


class Rotate(Body, frozen=True):
    after: Annotated[str, Meta(max_length=1000)] = ""  # `next` of the step before
    dry_run: bool = False  # only count


class RotationStep(Wire, frozen=True):
    looked_at: int
    resealed: int
    unreadable: int
    held: Mapping[str, int]  # texts by the key they are sealed with, as found; "none": with no key
    next: str | None = None  # where the next step begins; None: this was the last
