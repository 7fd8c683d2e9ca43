"""What a worker sends to the server by HTTP where its transport carries tasks and answers only."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from onward.client.api import ServerApi
from onward.client.errors import ProblemError, Unreachable
from onward.client.service import Service
from onward.errors import OnwardError
from onward.wire.frames import ChunkFrame, LogFrame, ProgressFrame, SocketFrame

log = logging.getLogger("onward.worker")


async def declare_services(
    api: ServerApi, services: Mapping[str | None, Service], **more: str
) -> None:
    """The schemas of the services, so that the server checks payloads and finds the worker."""
    for name, service in services.items():
        if name is None:
            continue
        body = {**service.declaration(), **more}
        try:
            await api.tell("POST", "services", body=body, by="worker")
        except OnwardError as error:
            log.warning("%s is not declared: %s", name, error)
            return


async def post_note(api: ServerApi, frame: SocketFrame, fence: int | None) -> None:
    """Progress, a chunk or log lines. If they cannot be sent, the task goes on without them."""
    body: dict[str, Any]
    match frame:
        case ProgressFrame(task_id=task):
            path, body = "progress", {"progress": frame.progress, "message": frame.message}
        case ChunkFrame(task_id=task):
            path, body = "chunks", {"data": frame.data}
        case LogFrame(task_id=task):
            path, body = "logs", {"records": frame.records}
        case _:
            return
    if fence is not None:
        body["fence"] = fence
    try:
        await api.tell("POST", "tasks", task, path, body=body)
    except (Unreachable, ProblemError) as error:
        log.debug("%s of %s not sent: %s", path, task, error)
