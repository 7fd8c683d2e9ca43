"""Every path of /api/v2, and the use case it leads to. The only place where these are written."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fastapi.routing import APIRoute

from onward.doors.rest.route import Reply, route
from onward.native.queues import Queues
from onward.native.sessions import Sessions
from onward.native.tools.toolbox import Toolbox, ToolReply
from onward.wire.tools import ToolResult


def queue_routes(queues: Queues) -> Sequence[APIRoute]:
    return [
        route("GET", "/queues", queues.list),
        route("GET", "/queues/{name}", queues.read),
        route("POST", "/queues/{name}/pause", queues.pause),
        route("POST", "/queues/{name}/resume", queues.resume),
    ]


def session_routes(sessions: Sessions) -> Sequence[APIRoute]:
    one = "/sessions/{session_id}"
    return [
        route("GET", "/sessions", sessions.list),
        route("GET", one, sessions.read),
        route("GET", f"{one}/tasks", sessions.tasks),
        route("GET", f"{one}/tasks/{{task_id}}", sessions.task),
        route("GET", f"{one}/notifications", sessions.notifications, stream=sessions.follow),
        route(
            "POST",
            f"{one}/notifications/{{notification_id}}/ack",
            sessions.acknowledge,
            errors=(409,),
        ),
        route("GET", f"{one}/preferences", sessions.preferences),
        route("PUT", f"{one}/preferences", sessions.prefer),
    ]


def tool_routes(toolbox: Toolbox) -> Sequence[APIRoute]:
    def reply(found: ToolReply) -> Reply:
        # Acknowledged once it is written out and not before: else a connection that is cut
        # meanwhile would lose the notifications.
        sent = partial(toolbox.acknowledge, reply=found) if found.notifications else None
        return Reply(found.body, sent=sent)

    return [
        route("GET", "/tools", toolbox.list),
        route("POST", "/tools/{name}", toolbox.call, errors=(409,), reply=reply, result=ToolResult),
    ]
