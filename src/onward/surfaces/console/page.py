"""The page under /ui: a few files, served with a strict policy and no stale copies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import RedirectResponse, Response

POLICY = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
}
FILES = {
    "": ("index.html", "text/html"),
    "/style.css": ("style.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}


def build() -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def home() -> Response:
        return RedirectResponse("/ui")

    for path, (name, kind) in FILES.items():
        router.add_api_route(f"/ui{path}", _serve(name, kind))
    router.add_api_route("/ui/", _serve(*FILES[""]))
    return router


def _serve(name: str, kind: str) -> Callable[[], Awaitable[Response]]:
    body = (files("onward.surfaces.console") / "static" / name).read_bytes()

    async def serve() -> Response:
        return Response(body, media_type=kind, headers=POLICY)

    return serve
