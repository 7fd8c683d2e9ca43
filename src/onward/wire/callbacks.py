"""Callbacks: what a receiver checks them with. What is posted is a `TaskView`, without payload."""

from __future__ import annotations

from onward.wire.base import Wire


class CallbackSecret(Wire, frozen=True):
    secret: str  # as Standard Webhooks write it: whsec_ and base64
