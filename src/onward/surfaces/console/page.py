"""The page under /ui."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import RedirectResponse, Response


def build() -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def home() -> Response:
        return RedirectResponse("/ui")

    return router
