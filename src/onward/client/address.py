"""Where the server is: one URL, for HTTP and for the worker socket alike."""

from __future__ import annotations

import os
import ssl
from base64 import b64encode
from collections.abc import Mapping
from typing import TypedDict
from urllib.parse import unquote, urlsplit

from onward.urls import shown

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


def key_of(key: str | None = None) -> str | None:
    """The given token, else ONWARD_KEY."""
    return key or os.environ.get("ONWARD_KEY") or None


def credentials(url: str, key: str | None = None) -> dict[str, str]:
    """User and password as a header: libraries put the URLs that they get into logs and errors.

    They are for a proxy; so a key then has a header of its own.
    """
    parts = urlsplit(url)
    if parts.username is None and parts.password is None:
        return {} if key is None else {"authorization": f"Bearer {key}"}
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    basic = {"authorization": f"Basic {b64encode(pair.encode()).decode()}"}
    return basic if key is None else {**basic, "x-api-key": key}


def _bare(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


class HttpOptions(TypedDict):
    base_url: str
    headers: dict[str, str]
    trust_env: bool
    verify: ssl.SSLContext | bool


def http_options(
    url: str,
    headers: Mapping[str, str] | None = None,
    verify: bool | str | ssl.SSLContext | None = None,
    key: str | None = None,
) -> HttpOptions:
    """Options of an HTTP client. Without TLS or a proxy it need not load the certificates."""
    here = is_loopback(url)
    return {
        "base_url": _bare(url),
        "headers": {**credentials(url, key), **(headers or {})},
        "trust_env": not here,
        "verify": _trusted(url, here) if verify is None else _verified(verify),
    }


def _trusted(url: str, here: bool) -> ssl.SSLContext | bool:
    """On this machine no proxy is used, but SSL_CERT_FILE is, as for the worker socket."""
    if not here:
        return True
    return ssl.create_default_context() if url.startswith("https:") else False


def _verified(verify: bool | str | ssl.SSLContext) -> ssl.SSLContext | bool:
    """A text is the file with the authority's certificate."""
    return ssl.create_default_context(cafile=verify) if isinstance(verify, str) else verify


def is_loopback(url: str) -> bool:
    """On this machine: a proxy from the environment could not reach it."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")
