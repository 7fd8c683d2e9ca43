"""Where a worker that the server calls listens: a socket at its URL, and an HTTP server."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
from collections.abc import Generator
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette

from onward.urls import shown

log = logging.getLogger("onward.worker")

DEFAULT_URL = "http://127.0.0.1:8080"


def bind(url: str) -> tuple[socket.socket, str]:
    """A socket at that URL, or at another port if that one is in use, and its actual URL."""
    parts = urlsplit(url)
    try:
        port = 80 if parts.port is None else parts.port
    except ValueError:
        port = -1
    bare = not (parts.path.strip("/") or parts.query or parts.fragment or parts.username)
    if parts.scheme != "http" or not parts.hostname or port < 0 or not bare:
        raise ValueError(
            f"{shown(url)!r} is not where a worker can listen; one looks like {DEFAULT_URL}"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    listening = _bind(parts.hostname, port)
    return listening, f"http://{host}:{listening.getsockname()[1]}"


def _bind(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        # IPv4 first: clients of "localhost" try it first, too.
        family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                listening.close()
                raise
            listening.bind((address[0], 0))
            log.info("port %d is taken; using %d", port, listening.getsockname()[1])
    except OSError as error:
        raise ValueError(f"cannot listen at {host}:{port}: {error.strerror or error}") from error
    listening.listen(1024)
    return listening


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """The worker handles signals: it finishes its tasks first."""
        yield


def server_of(app: Starlette) -> uvicorn.Server:
    return _Server(
        uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=1,
        )
    )
