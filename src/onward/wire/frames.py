"""The frames of the worker socket (S0-12), both ways: JSON text, distinguished by `type`.

Server and SDK read and write these classes. What a worker sends is checked when it is read; a field
that the reader does not know is ignored, so that either side may be the newer one.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from onward.wire.base import MAX_BODY, Name
from onward.wire.logs import LogRecord

# The server reads no larger frame: a body, and the other fields of the frame around it.
LARGEST = MAX_BODY + (64 << 10)

Whole = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]  # as much as a ledger holds


class SocketFrame(
    msgspec.Struct, frozen=True, tag_field="type", rename="camel", omit_defaults=True
):
    pass


# Both ways.


class PingFrame(SocketFrame, frozen=True, tag="ping"):
    pass


class PongFrame(SocketFrame, frozen=True, tag="pong"):
    pass


class DrainFrame(SocketFrame, frozen=True, tag="drain"):
    """Ours: no more tasks; the running ones are finished, and then the worker goes."""


# From the worker.


class RegisterFrame(SocketFrame, frozen=True, kw_only=True, tag="register", omit_defaults=False):
    worker_id: Name | None = None
    group: Name | None = "default"  # null: none
    services: list[Name] = []
    concurrency: Annotated[int, Meta(ge=1, le=1000)] = 1
    # Ours: by service, how many of them at most.
    most: dict[Name, Annotated[int, Meta(ge=1, le=1000)]] = {}
    declare: list[Raw] = []  # ours: schemas of the services, as POST /api/v2/services takes them


class ResultFrame(SocketFrame, frozen=True, kw_only=True, tag="taskResult"):
    task_id: str
    result: Raw | UnsetType = UNSET
    error: str | None = None
    error_type: str | None = None
    status: Whole | None = None
    retryable: bool | None = None
    retry_after_ms: Whole | None = None
    fence: Whole | None = None  # ours: tells this attempt's answer from a late one of the same task
    released: bool = False  # ours: with an error; the worker cannot do it and has not begun it


class ProgressFrame(SocketFrame, frozen=True, kw_only=True, tag="progress"):
    task_id: str
    progress: Annotated[float, Meta(ge=0, le=1)]
    message: str | None = None


class ChunkFrame(SocketFrame, frozen=True, kw_only=True, tag="chunk"):
    task_id: str
    data: Raw


class LogFrame(SocketFrame, frozen=True, kw_only=True, tag="log"):
    """Ours: what the handler logged; only to a server that keeps it."""

    task_id: str
    records: list[LogRecord]


# From the server.


class RegisteredFrame(SocketFrame, frozen=True, tag="registered"):
    worker_id: str
    logs: bool = False  # ours: the server keeps what handlers log


class TaskFrame(SocketFrame, frozen=True, tag="task", omit_defaults=False):
    task_id: str
    group: str | None = None
    payload: Raw = Raw(b"null")
    timeout: int | None = None
    attempt: int = 1
    service: str | None = None  # null: the task is for the worker's group
    queue: str | None = None
    fence: int = 0
    key: str | None = None
    traceparent: str | UnsetType | None = UNSET  # ours: where this attempt stands in a trace


class CancelFrame(SocketFrame, frozen=True, tag="cancel"):
    task_id: str


class ErrorFrame(SocketFrame, frozen=True, tag="error"):
    message: str = ""
    final: bool = False  # ours: of a registration that would be refused each time it came


FromWorker = (
    RegisterFrame
    | ResultFrame
    | ProgressFrame
    | ChunkFrame
    | LogFrame
    | PingFrame
    | PongFrame
    | DrainFrame
)
FromServer = (
    RegisteredFrame | TaskFrame | CancelFrame | ErrorFrame | PingFrame | PongFrame | DrainFrame
)
