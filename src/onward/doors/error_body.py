"""What every door's answers have in common: the shape of an error, chosen by the path."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec

INTERNAL = "Internal error"  # all that anybody outside learns of a fault of ours

_PLAIN = (
    "/api/openai", "/api/task",
    "/flows", "/tasks", "/workers", "/register", "/heartbeat", "/list", "/allocate",
)  # fmt: skip


def error_body(
    path: str, status: int, code: str, message: str, request_id: str = "", **extra: Any
) -> tuple[str, bytes]:
    """Content type and body, as clients of that door read it; `extra` is for those who look."""
    kind = "application/json"
    body: dict[str, Any]
    if _under(path, "/api/v1"):
        hint = extra.get("hint")  # one text is all that this door's clients read
        body = {"detail": f"{message}; {hint}" if hint else message}
    elif _under(path, "/v1"):
        fault = "server_error" if status >= 500 else "invalid_request_error"
        body = {"error": {"message": message, "type": fault, "param": None, "code": code}}
    elif any(_under(path, door) for door in _PLAIN):
        body = {"error": message}
    else:
        kind = "application/problem+json"
        body = {
            "type": f"urn:onward:error:{code.replace('_', '-')}",
            "title": HTTPStatus(status).phrase,
            "status": status,
            "code": code,
            "detail": message,
            "request_id": request_id,
            **extra,
        }
    return kind, msgspec.json.encode(body)


def _under(path: str, door: str) -> bool:
    return path.startswith(door) and path[len(door) : len(door) + 1] in ("", "/")
