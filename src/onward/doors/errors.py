"""Errors on their way out: one catalogue of statuses, each door's own body (wire.error_body)."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from onward.core.errors import (
    Conflict,
    Forbidden,
    Invalid,
    KeyReused,
    LedgerUnavailable,
    NotFound,
    NotLetIn,
    NoWorker,
    OnwardError,
    QueueFull,
    TooBusy,
    Unreadable,
    our_words,
)
from onward.doors.error_body import error_body
from onward.doors.hints import hint_text
from onward.doors.route import BadBody

STATUS: dict[type[OnwardError], int] = {
    Forbidden: 403,
    NotFound: 404,
    Conflict: 409,
    KeyReused: 422,
    Invalid: 422,
    QueueFull: 503,
    NoWorker: 503,
    TooBusy: 503,
    LedgerUnavailable: 503,
    NotLetIn: 503,
    Unreadable: 503,
}
CODES = {404: "not_found", 405: "method_not_allowed", 413: "too_large", 415: "unsupported"}

# The next step for what is refused before any door is asked.
ELSEWHERE = {
    404: "there is no such path: GET /openapi.json lists all of them, /ui is the page",
    405: "GET /openapi.json lists what each path takes",
}


def install(web: FastAPI) -> None:
    @web.exception_handler(OnwardError)
    async def ours(request: Request, error: OnwardError) -> Response:
        return refuse(request.url.path, _id_of(request), error)

    @web.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        if isinstance(error, BadBody):
            return refuse(request.url.path, _id_of(request), error.error, status=400)
        code = CODES.get(error.status_code, "invalid_request")
        where = (request.url.path, _id_of(request))
        hint = ELSEWHERE.get(error.status_code)
        extra = {} if hint is None else {"hint": hint}
        response = _answer(*where, error.status_code, code, str(error.detail), **extra)
        response.headers.update(error.headers or {})
        if error.status_code == 405:
            response.headers["allow"] = ", ".join(_methods(web, request))
        return response

    @web.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        faults = [
            {"pointer": _pointer(fault["loc"]), "message": our_words(fault["msg"])}
            for fault in error.errors()
        ]
        text = ": ".join(filter(None, faults[0].values()))
        where = (request.url.path, _id_of(request))
        return _answer(*where, 422, Invalid.code, text, errors=faults)


def _methods(web: FastAPI, request: Request) -> list[str]:
    """Of every route of this path: the framework names those of the first one alone."""
    found = {
        method
        for route in web.router.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
    return sorted(found | {"HEAD"} if "GET" in found else found)


def refuse(
    path: str, request_id: str, error: OnwardError, *, status: int | None = None
) -> Response:
    """Our own errors, as the door that `path` belongs to says them."""
    status = status or next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)
    extra: dict[str, Any] = {}
    if (hint := hint_text(error)) is not None:
        extra["hint"] = hint
    if isinstance(error, Invalid) and error.pointer:
        extra["errors"] = [{"pointer": error.pointer, "message": str(error)}]
    response = _answer(path, request_id, status, error.code, str(error), **extra)
    if status == 503:
        response.headers["retry-after"] = str(getattr(error, "retry_after_s", 1))
    return response


def _answer(
    path: str, request_id: str, status: int, code: str, text: str, **extra: Any
) -> Response:
    kind, body = error_body(path, status, code, text, request_id, **extra)
    return Response(body, status, media_type=kind)


def _id_of(request: Request) -> str:
    return getattr(request.state, "request_id", "")


def _pointer(where: Any) -> str:
    """FastAPI says ("body", "payload", 0): a JSON pointer into the body, or a parameter's name."""
    place, *rest = where
    path = "".join(f"/{part}" for part in rest)
    return path if place == "body" else path.removeprefix("/")
