"""Calls to HTTP workers are signed: with another secret, body or time the signature is none."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from onward.signature import LONGEST_MS, is_signed, signed

NOW = 1_700_000_000_000


@pytest.mark.contract("K-11")
def test_a_signature_is_what_the_documents_say() -> None:
    digest = hmac.new(b"secret", f"{NOW}.".encode() + b"{}", hashlib.sha256).hexdigest()
    assert signed("secret", b"{}", NOW) == f"t={NOW},v1={digest}"


@pytest.mark.contract("K-11")
def test_only_the_very_call_is_signed() -> None:
    header = signed("secret", b"{}", NOW)
    assert is_signed(header, "secret", b"{}", NOW + LONGEST_MS)
    assert not is_signed(header, "other", b"{}", NOW)
    assert not is_signed(header, "secret", b"{ }", NOW)
    assert not is_signed(header, "secret", b"{}", NOW + LONGEST_MS + 1), "a copy, sent later"
    assert not is_signed(header.replace(f"t={NOW}", f"t={NOW + 1}"), "secret", b"{}", NOW)
    for nonsense in ("", "t=1", "v1=00", f"t=,v1={'0' * 64}"):
        assert not is_signed(nonsense, "secret", b"{}", NOW)
