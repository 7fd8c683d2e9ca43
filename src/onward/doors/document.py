"""The OpenAPI document: each operation as its route describes it, and what the guard refuses."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from onward.doors import guard
from onward.doors.route import UseCaseRoute, components, error_content

OPENAPI = "3.1.0"


def document(web: FastAPI) -> dict[str, Any]:
    if web.openapi_schema is None:
        paths: dict[str, dict[str, Any]] = {}
        for route in web.routes:
            if isinstance(route, UseCaseRoute) and route.include_in_schema:
                path = paths.setdefault(route.path_format, {})
                path.update({method.lower(): _operation(route) for method in route.methods or ()})
        web.openapi_schema = {
            "openapi": OPENAPI,
            "info": {"title": web.title, "version": web.version},
            "paths": paths,
            "components": {"schemas": components()},
        }
    return web.openapi_schema


def _operation(route: UseCaseRoute) -> dict[str, Any]:
    operation = {
        "tags": [route.tag],
        "summary": route.summary,
        "operationId": route.operation_id,
        **route.described(),
    }
    for status in guard.STATUSES:
        response = operation["responses"].setdefault(str(status), {"description": "refused"})
        response["content"] = {**response.get("content", {}), **error_content(route.path)}
    return operation
