"""What goes over the worker socket, both ways: JSON text, told apart by `type`."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from onward.core.task import Fault

# Above this the server takes no frame: a body of 1 MiB, and the frame's own words around it.
LARGEST = (1 << 20) + (64 << 10)


class Frame(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", rename="camel", omit_defaults=True
):
    pass


# From the server.


class Registered(Frame, frozen=True, kw_only=True, tag="registered"):
    worker_id: str


class Task(Frame, frozen=True, kw_only=True, tag="task"):
    task_id: str
    payload: Raw = Raw(b"null")
    attempt: int = 1
    service: str | None = None  # None: it came for our group
    queue: str | None = None
    fence: int = 0
    key: str | None = None
    traceparent: str | None = None


class Cancel(Frame, frozen=True, kw_only=True, tag="cancel"):
    task_id: str


class Complaint(Frame, frozen=True, kw_only=True, tag="error"):
    message: str = ""


# Both ways.


class Ping(Frame, frozen=True, kw_only=True, tag="ping"):
    pass


class Pong(Frame, frozen=True, kw_only=True, tag="pong"):
    pass


class Drain(Frame, frozen=True, kw_only=True, tag="drain"):
    """Nothing more for us, please; or, from the server: finish, and go."""


# From the worker.


class Register(Frame, frozen=True, kw_only=True, tag="register"):
    worker_id: str
    group: str | None  # no default: left out it would mean the group "default"
    services: list[str]
    concurrency: int
    declare: list[dict[str, Any]]


class Result(Frame, frozen=True, kw_only=True, tag="taskResult"):
    task_id: str
    result: Raw | UnsetType = UNSET
    error: str | UnsetType = UNSET
    error_type: str | None = None
    status: int | None = None
    retryable: bool | None = None
    retry_after_ms: int | None = None
    fence: int | None = None  # tells this attempt's answer from a late one of the same task
    released: bool = False  # with an error: we cannot do it and have not begun it


class Progress(Frame, frozen=True, kw_only=True, tag="progress"):
    task_id: str
    progress: float
    message: str | None = None


class Chunk(Frame, frozen=True, kw_only=True, tag="chunk"):
    task_id: str
    data: Raw


Incoming = Registered | Task | Cancel | Complaint | Ping | Pong | Drain

decode = msgspec.json.Decoder(Incoming).decode
encode = msgspec.json.Encoder().encode


def failed(task_id: str, fault: Fault) -> Result:
    return Result(
        task_id=task_id,
        error=fault.message,
        error_type=fault.kind,
        status=fault.status,
        retryable=fault.retryable,
        retry_after_ms=fault.retry_after_ms,
    )
