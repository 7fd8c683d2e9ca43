"""The OpenAPI document: what FastAPI describes, and the shapes of `wire` that routes name."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from onward.doors.rest.route import components


def document(web: FastAPI) -> dict[str, Any]:
    if web.openapi_schema is None:
        found = get_openapi(title=web.title, version=web.version, routes=web.routes)
        found.setdefault("components", {}).setdefault("schemas", {}).update(components())
        web.openapi_schema = found
    return web.openapi_schema
