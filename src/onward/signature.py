"""A call's signature: `t=<ms>,v1=<hex HMAC-SHA256 of "<t>.<body>">` (K-11)."""

from __future__ import annotations

import hashlib
import hmac
import re

HEADER = "x-onward-signature"
LONGEST_MS = 5 * 60_000  # between signing and checking: no longer can a copied call be repeated

_parts = re.compile(r"t=(\d{1,15}),v1=([0-9a-f]{64})").fullmatch


def signed(secret: str, body: bytes, now: int) -> str:
    return f"t={now},v1={_digest(secret, str(now), body)}"


def is_signed(header: str, secret: str, body: bytes, now: int) -> bool:
    found = _parts(header)
    if found is None or abs(now - int(found[1])) > LONGEST_MS:
        return False
    return hmac.compare_digest(found[2], _digest(secret, found[1], body))


def _digest(secret: str, at: str, body: bytes) -> str:
    return hmac.new(secret.encode(), at.encode() + b"." + body, hashlib.sha256).hexdigest()
