"""Every path of /api/v2, and the use case it leads to. The only place where these are written."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi.routing import APIRoute

from onward.doors.rest.route import route
from onward.native.queues import Queues


def queue_routes(queues: Queues) -> Sequence[APIRoute]:
    return [
        route("GET", "/queues", queues.list),
        route("GET", "/queues/{name}", queues.read),
        route("POST", "/queues/{name}/pause", queues.pause),
        route("POST", "/queues/{name}/resume", queues.resume),
    ]
