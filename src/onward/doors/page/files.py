"""The page under /ui: the built files of web/, served with a strict policy.

Every path that is not a file is the page itself, which reads the rest of the address. Files with a
digest in their name never change; everything else is asked for again each time.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

POLICY = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "referrer-policy": "no-referrer",
}
INDEX = "index.html"
FOREVER = "public, max-age=31536000, immutable"
SQUEEZED = (".html", ".js", ".css", ".svg")


class File(msgspec.Struct, frozen=True, kw_only=True):
    body: bytes
    squeezed: bytes | None
    kind: str
    etag: str
    lasting: bool


def build() -> APIRouter:
    router = APIRouter(include_in_schema=False)
    found = _files()

    @router.get("/")
    async def home() -> Response:
        return RedirectResponse("/ui")

    @router.get("/ui")
    @router.get("/ui/{path:path}")
    async def serve(request: Request, path: str = "") -> Response:
        file = found.get(path)
        if file is None and path.startswith("assets/"):
            return Response("no such file", 404, media_type="text/plain")
        return _answer(request, file or found[INDEX])

    return router


@cache  # they come with the package, and squeezing them takes a while
def _files() -> Mapping[str, File]:
    folder = files("onward.doors.page") / "static"
    return {name: _read(name, path) for name, path in _walk(folder)}


def _walk(folder: Traversable, under: str = "") -> list[tuple[str, Traversable]]:
    found: list[tuple[str, Traversable]] = []
    for entry in folder.iterdir():
        name = f"{under}{entry.name}"
        found += _walk(entry, f"{name}/") if entry.is_dir() else [(name, entry)]
    return found


def _read(name: str, path: Traversable) -> File:
    body = path.read_bytes()
    return File(
        body=body,
        squeezed=gzip.compress(body, mtime=0) if name.endswith(SQUEEZED) else None,
        kind=mimetypes.guess_type(name)[0] or "application/octet-stream",
        etag=f'"{hashlib.sha256(body).hexdigest()[:20]}"',
        lasting=name.startswith("assets/"),
    )


def _answer(request: Request, file: File) -> Response:
    headers = {
        **POLICY,
        "cache-control": FOREVER if file.lasting else "no-cache",
        "etag": file.etag,
        "vary": "accept-encoding",
    }
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    body = file.body
    if file.squeezed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        body, headers["content-encoding"] = file.squeezed, "gzip"
    return Response(body, media_type=file.kind, headers=headers)
