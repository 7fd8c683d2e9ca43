"""The OpenAPI document: each operation as its route describes it, and what the guard refuses."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from onward.doors import guard
from onward.doors.route import components, error_content


def document(web: FastAPI) -> dict[str, Any]:
    if web.openapi_schema is None:
        found = get_openapi(title=web.title, version=web.version, routes=web.routes)
        for route in web.routes:
            if isinstance(route, APIRoute) and route.include_in_schema:
                for method in route.methods or ():
                    _complete(route, found["paths"][route.path_format][method.lower()])
        found.setdefault("components", {}).setdefault("schemas", {}).update(components())
        web.openapi_schema = found
    return web.openapi_schema


def _complete(route: APIRoute, operation: dict[str, Any]) -> None:
    """What the route says of itself is all of it; the framework assumes JSON and 422."""
    operation.update(route.described())  # type: ignore[attr-defined]  # set by route.route
    for status in guard.STATUSES:
        response = operation["responses"].setdefault(str(status), {"description": "refused"})
        response["content"] = {**response.get("content", {}), **error_content(route.path)}
