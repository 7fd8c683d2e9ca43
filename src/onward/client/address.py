"""Where the server is: one URL, for HTTP and for the worker socket alike."""

from __future__ import annotations

import os
from typing import TypedDict
from urllib.parse import urlsplit

DEFAULT_URL = "http://127.0.0.1:8070"

_SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}


def server_url(url: str | None = None) -> str:
    """What was given, else ONWARD_URL, else this machine; without a slash at its end."""
    said = url or os.environ.get("ONWARD_URL") or DEFAULT_URL
    parts = urlsplit(said if "://" in said else f"http://{said}")
    scheme = _SCHEMES.get(parts.scheme)
    if scheme is None or not parts.hostname:
        raise ValueError(f"{said!r} is not the URL of a server; one looks like {DEFAULT_URL}")
    return f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def is_said(url: str | None = None) -> bool:
    """Whether somebody has said where the server is."""
    return bool(url or os.environ.get("ONWARD_URL"))


def socket_url(url: str) -> str:
    return f"ws{url.removeprefix('http')}/ws/worker"


class Reach(TypedDict):
    base_url: str
    trust_env: bool
    verify: bool


def reach(url: str) -> Reach:
    """How an HTTP client gets there. Without TLS or a proxy it need not read all certificates."""
    here = is_loopback(url)
    return {
        "base_url": url,
        "trust_env": not here,
        "verify": not (here and url.startswith("http:")),
    }


def is_loopback(url: str) -> bool:
    """On this machine: a proxy from the environment could not reach it."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")
