"""The keys: what is written at rest is sealed under the first, and opened with whichever sealed it.

AES-256-GCM. A sealed text is `sealed:<key id>:<base64 of nonce, cipher and tag>`, which no JSON can
be mistaken for, so a ledger may hold both. It opens only for the owner and the field it was sealed
for. Each owner has a key of its own, derived from the named one: a random nonce is then never used
up, however many values one key seals.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onward.core.errors import Invalid, Unreadable
from onward.core.task import encode

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SEALED = "sealed:"
SETTING = "ONWARD_ENCRYPTION_KEYS"
EXTRA = "pip install 'onward[encryption]'"
SIZE, NONCE = 32, 12
HINT = "onward keys encryption new prints one"
_ID = re.compile(r"[A-Za-z0-9_.-]{1,32}")


class Keyring:
    def __init__(self, keys: Sequence[tuple[str, bytes]]) -> None:
        self._aes, self._refusal = _cipher()
        self._secrets = dict(keys)
        self.ids = tuple(self._secrets)
        self.sealing = self.ids[0]

    @classmethod
    def read(cls, text: str, file: str | None = None) -> Keyring | None:
        """As the settings name them: `id:base64,id:base64`, in a file also by lines. None: none."""
        given = text
        if file is not None:
            try:
                given = f"{text},{Path(file).read_text()}" if text else Path(file).read_text()
            except (OSError, UnicodeDecodeError) as error:
                raise Invalid(f"the encryption keys in {file} cannot be read") from error
        keys = [_key(part) for part in re.split(r"[,\s]+", given) if part]
        twice = {id for id, _ in keys if [other for other, _ in keys].count(id) > 1}
        if twice:
            raise Invalid(f"two encryption keys are called {min(twice)!r}", hint=HINT)
        return cls(keys) if keys else None

    def seal(self, text: str, owner: str, field: str) -> str:
        nonce = os.urandom(NONCE)
        key = self._own(self.sealing, owner)
        body = nonce + key.encrypt(nonce, text.encode(), _bound(owner, field))
        return f"{SEALED}{self.sealing}:{base64.b64encode(body).decode()}"

    def open(self, text: str, owner: str, field: str) -> str:
        """What was sealed; a text that is not sealed, as it is."""
        if not text.startswith(SEALED):
            return text
        id, _, body = text.removeprefix(SEALED).partition(":")
        if id not in self._secrets:
            raise Unreadable(
                f"{_named(owner, field)} is sealed under the key {id!r}, which this server lacks",
                hint=f"add {id} to {SETTING} again: behind the first key it only opens",
            )
        try:
            raw = base64.b64decode(body, validate=True)
            key = self._own(id, owner)
            return key.decrypt(raw[:NONCE], raw[NONCE:], _bound(owner, field)).decode()
        except (self._refusal, ValueError) as error:
            raise Unreadable(
                f"{_named(owner, field)} does not open with the key {id!r}: it was changed, moved"
                " there from elsewhere, or sealed under another key of that name",
                hint=f"compare {id} in {SETTING} with the servers that wrote it",
            ) from error

    def _own(self, id: str, owner: str) -> AESGCM:
        return self._aes(hmac.digest(self._secrets[id], owner.encode(), "sha256"))


def new_key(id: str) -> str:
    if not _ID.fullmatch(id):
        raise Invalid(f"{id!r} is no name for a key", hint="letters, digits, and . _ - between")
    return f"{id}:{base64.b64encode(os.urandom(SIZE)).decode()}"


def key_of(text: str) -> str | None:
    """The id of the key that it is sealed under. None: it is not sealed."""
    if not text.startswith(SEALED):
        return None
    return text.removeprefix(SEALED).partition(":")[0]


def _cipher() -> tuple[type[AESGCM], type[Exception]]:
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ModuleNotFoundError as error:
        raise Invalid("encryption needs the package cryptography", hint=EXTRA) from error
    return AESGCM, InvalidTag


def _key(part: str) -> tuple[str, bytes]:
    # Nothing of the key itself is repeated: this is printed, and logged.
    id, _, secret = part.partition(":")
    if not secret or not _ID.fullmatch(id):
        raise Invalid("an encryption key is written id:base64", hint=HINT)
    try:
        raw = base64.b64decode(secret, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Invalid(f"the encryption key {id!r} is no base64", hint=HINT) from error
    if len(raw) != SIZE:
        raise Invalid(f"the encryption key {id!r} has {len(raw)} bytes, not {SIZE}", hint=HINT)
    return id, raw


def _bound(owner: str, field: str) -> bytes:
    return encode([owner, field]).encode()


def _named(owner: str, field: str) -> str:
    return f"{field} of {owner.replace(':', ' ', 1)}"
