"""URLs as they may be shown, without user and password; and which hosts are this machine."""

from __future__ import annotations

import ipaddress
import re

# Up to the last @ of the word: a password with a / or @ in it should have been quoted, and is not
# to be seen all the same.
_USERINFO = re.compile(r"(?<=://)[^\s'\"<>]*@")
_PASSWORD = re.compile(r"(?<=password=)[^&\s'\"<>]*")


def shown(text: str) -> str:
    """A URL, or a text with URLs in it, as it may be logged, printed or raised."""
    return _PASSWORD.sub("***", _USERINFO.sub("", text))


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
