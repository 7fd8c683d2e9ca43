"""The page under /ui: the built files of web/, served with a strict policy.

Every path that is not a file is the page itself, which reads the rest of the address. Files with a
digest in their name never change; a browser asks for everything else each time.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

POLICY = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "font-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
        "base-uri 'none'; require-trusted-types-for 'script'"
    ),
    "referrer-policy": "no-referrer",
}
INDEX = "index.html"
FOREVER = "public, max-age=31536000, immutable"
mimetypes.add_type("font/woff2", ".woff2")  # older Pythons do not know it
GZIPPED = (".html", ".js", ".css", ".svg")


class File(msgspec.Struct, frozen=True, kw_only=True):
    body: bytes
    gzipped: bytes | None
    kind: str
    etag: str
    immutable: bool


def routes() -> Sequence[Route]:
    found = _files()

    async def home(_: Request) -> Response:
        return RedirectResponse("/ui")

    async def serve(request: Request) -> Response:
        path = request.path_params.get("path", "")
        file = found.get(path)
        if file is None and path.startswith("assets/"):
            return Response("no such file", 404, media_type="text/plain")
        return _answer(request, file or found[INDEX])

    return [Route("/", home), Route("/ui", serve), Route("/ui/{path:path}", serve)]


@cache  # they come with the package, and compressing them takes a while
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
        gzipped=gzip.compress(body, mtime=0) if name.endswith(GZIPPED) else None,
        kind=mimetypes.guess_type(name)[0] or "application/octet-stream",
        # Weak: it names the file, whether it is sent compressed or not.
        etag=f'W/"{hashlib.sha256(body).hexdigest()[:20]}"',
        immutable=name.startswith("assets/"),
    )


def _answer(request: Request, file: File) -> Response:
    headers = {
        **POLICY,
        "cache-control": FOREVER if file.immutable else "no-cache",
        "etag": file.etag,
        "vary": "accept-encoding",
    }
    if _has_it(request.headers.get("if-none-match", ""), file.etag):
        return Response(status_code=304, headers=headers)
    body = file.body
    if file.gzipped is not None and "gzip" in request.headers.get("accept-encoding", ""):
        body, headers["content-encoding"] = file.gzipped, "gzip"
    return Response(body, media_type=file.kind, headers=headers)


def _has_it(asked: str, etag: str) -> bool:
    """`If-None-Match`: a list of tags, any of which a cache may have made weak or strong."""
    tags = {tag.strip().removeprefix("W/") for tag in asked.split(",")}
    return "*" in tags or etag.removeprefix("W/") in tags
