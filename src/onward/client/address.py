"""Where the server is: one URL, for HTTP and for the worker socket alike."""

from __future__ import annotations

import os
import ssl
from base64 import b64encode
from typing import TypedDict
from urllib.parse import unquote, urlsplit

from onward.core.urls import shown

DEFAULT_URL = "http://127.0.0.1:8070"

_SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}


def server_url(url: str | None = None) -> str:
    """The given URL, else ONWARD_URL, else this machine; without a slash at its end."""
    chosen = url or os.environ.get("ONWARD_URL") or DEFAULT_URL
    parts = urlsplit(chosen if "://" in chosen else f"http://{chosen}")
    scheme = _SCHEMES.get(parts.scheme)
    if scheme is None or not parts.hostname:
        raise ValueError(
            f"{shown(chosen)!r} is not the URL of a server; one looks like {DEFAULT_URL}"
        )
    return f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def is_explicit(url: str | None = None) -> bool:
    """Whether the server's URL was given, as an argument or as ONWARD_URL."""
    return bool(url or os.environ.get("ONWARD_URL"))


def socket_url(url: str) -> str:
    return f"ws{_bare(url).removeprefix('http')}/ws/worker"


def credentials(url: str) -> dict[str, str]:
    """User and password as a header: libraries put the URLs that they get into logs and errors."""
    parts = urlsplit(url)
    if parts.username is None and parts.password is None:
        return {}
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return {"authorization": f"Basic {b64encode(pair.encode()).decode()}"}


def _bare(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


class HttpOptions(TypedDict):
    base_url: str
    headers: dict[str, str]
    trust_env: bool
    verify: ssl.SSLContext | bool


def http_options(url: str) -> HttpOptions:
    """Options of an HTTP client. Without TLS or a proxy it need not load the certificates."""
    here = is_loopback(url)
    return {
        "base_url": _bare(url),
        "headers": credentials(url),
        "trust_env": not here,
        "verify": _trusted(url) if here else True,
    }


def _trusted(url: str) -> ssl.SSLContext | bool:
    """On this machine no proxy is used, but SSL_CERT_FILE is, as for the worker socket."""
    return ssl.create_default_context() if url.startswith("https:") else False


def is_loopback(url: str) -> bool:
    """On this machine: a proxy from the environment could not reach it."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")
