"""Errors on their way out: one catalogue of statuses, each door's own style."""

from __future__ import annotations

import msgspec
from fastapi import FastAPI
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
    Malformed,
    NotFound,
    NotLetIn,
    NotYet,
    NoWorker,
    OwnApproval,
    QueueFull,
    RateLimited,
    TooBusy,
    Unauthorized,
    Unreadable,
)
from onward.doors.chat import errors as chat
from onward.doors.dispatcher import errors as dispatcher
from onward.doors.flows import errors as flows
from onward.doors.hints import hint_text
from onward.doors.refusal import ErrorStyle, Refusal
from onward.doors.rest import errors as rest
from onward.doors.tasks import errors as tasks
from onward.errors import OnwardError
from onward.wire.problems import FieldFault, Problem

STATUS: dict[type[OnwardError], int] = {
    Unauthorized: 401,
    OwnApproval: 403,
    Forbidden: 403,
    NotFound: 404,
    Conflict: 409,
    KeyReused: 422,
    Malformed: 400,
    Invalid: 422,
    NotYet: 422,
    RateLimited: 429,
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

STYLES: dict[str, ErrorStyle] = {
    prefix: door.STYLE for door in (dispatcher, chat, tasks, flows) for prefix in door.PREFIXES
}


def style_of(path: str) -> ErrorStyle:
    """By whole segments: /tasksy is no path of the flow centre."""
    for prefix, style in STYLES.items():
        if path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("", "/"):
            return style
    return rest.STYLE


def render(path: str, refusal: Refusal, request_id: str = "") -> tuple[str, bytes]:
    """Content type and body, as clients of the door that `path` belongs to read them."""
    style = style_of(path)
    return style.media, msgspec.json.encode(style.body(refusal, request_id))


def refuse(
    path: str, request_id: str, error: OnwardError, *, status: int | None = None
) -> Response:
    """An error of ours. `status`: another than it has by itself."""
    refusal = style_of(path).worded(error) or _refusal(error)
    refusal.status = status or refusal.status
    if refusal.status == 401:
        refusal.headers.setdefault("www-authenticate", "Bearer")
    if refusal.status in (429, 503):
        refusal.headers.setdefault("retry-after", str(getattr(error, "retry_after_s", 1)))
    return _response(path, request_id, refusal)


def install(web: FastAPI) -> None:
    @web.exception_handler(OnwardError)
    async def ours(request: Request, error: OnwardError) -> Response:
        return refuse(request.url.path, request_id_of(request), error)

    @web.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        path, request_id = request.url.path, request_id_of(request)
        status, code = error.status_code, CODES.get(error.status_code, "invalid_request")
        headers = {name.lower(): value for name, value in (error.headers or {}).items()}
        if status == 405:
            headers["allow"] = ", ".join(_methods(web, request))
        refusal = Refusal(
            status, code, str(error.detail), hint=ELSEWHERE.get(status), headers=headers
        )
        return _response(path, request_id, refusal)


def request_id_of(request: Request) -> str:
    return getattr(request.state, "request_id", "")


def problem_of(error: OnwardError) -> Problem:
    """As it stands beside others that went well, in one response."""
    found: Problem = rest.STYLE.body(_refusal(error), "")
    return found


def _refusal(error: OnwardError) -> Refusal:
    status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)
    faults: tuple[FieldFault, ...] = ()
    if isinstance(error, Invalid) and error.pointer:
        message = str(error).removeprefix(f"{error.pointer}: ")
        faults = (FieldFault(pointer=error.pointer, message=message),)
    return Refusal(status, error.code, str(error), hint=hint_text(error), faults=faults)


def _response(path: str, request_id: str, refusal: Refusal) -> Response:
    media, body = render(path, refusal, request_id)
    return Response(body, refusal.status, refusal.headers, media_type=media)


def _methods(web: FastAPI, request: Request) -> list[str]:
    """Of every route of this path: the framework names those of the first one alone."""
    found = {
        method
        for route in web.router.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
    return sorted(found | {"HEAD"} if "GET" in found else found)
