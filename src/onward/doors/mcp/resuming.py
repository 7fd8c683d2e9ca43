"""A call whose connection was lost is taken up again, at any server (MCP's SEP-1699).

The response of a call begins with an event that has an id and no data; under that id the ledger
keeps which task it waits for. A client that comes back with it (GET, `Last-Event-ID`) gets the
answer of that call. Knows nothing of MCP's messages: server.py writes them.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from onward.core.dispatch import Dispatcher
from onward.core.task import TaskId, encode

KIND = "mcp_call"
KEPT_MS = 3_600_000
RETRY_MS = 2_000  # a client tries twice: a server that is restarted has until then
SINCE, UNTIL = "2025-11-25", "2026"  # versions whose clients come back
PRIMED = "primed-"  # so begin the session ids that clients of such a version were given
PEEKED = 65_536  # of the body of an initialize call


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    task: TaskId
    request: str | int
    session: str | None  # of the connection
    of: str | None  # the session of the task, if the call named one


_decode = msgspec.json.Decoder(Kept).decode


class Resumptions:
    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    async def keep(self, id: str, kept: Kept) -> None:
        now = self._dispatcher.clock.now()
        documents = self._dispatcher.backend.documents
        await documents.put(KIND, id, encode(kept), now=now, expires_at=now + KEPT_MS)

    async def find(self, id: str, session: str | None) -> Kept | None:
        """None also for a call of another session."""
        now = self._dispatcher.clock.now()
        found = await self._dispatcher.backend.documents.get(KIND, id, now=now)
        kept = None if found is None else _decode(found.body)
        return kept if kept is not None and kept.session == session else None


def new_id() -> str:
    return uuid.uuid4().hex


def new_session(initialize: bytes) -> str:
    """For a client that connects with this call: its name says whether the client takes events
    without data, since no server remembers what was agreed on.
    """
    try:
        version = msgspec.json.decode(initialize)["params"]["protocolVersion"]
    except (msgspec.DecodeError, KeyError, TypeError):
        version = ""
    primed = PRIMED if isinstance(version, str) and version >= SINCE else ""
    return f"{primed}{uuid.uuid4().hex}"


def may_resume(version: str, session: str | None) -> bool:
    """A later client calls anew, and an earlier one cannot read an event without data."""
    return version < UNTIL and (version >= SINCE or (session or "").startswith(PRIMED))


def first_event(id: str) -> bytes:
    return f"id: {id}\nretry: {RETRY_MS}\ndata: \n\n".encode()


class Peek:
    """A `receive` that remembers the beginning of the body."""

    def __init__(self, receive: Callable[[], Awaitable[Any]]) -> None:
        self._receive = receive
        self.body = b""

    async def __call__(self) -> Any:
        message = await self._receive()
        if message["type"] == "http.request" and len(self.body) < PEEKED:
            self.body += message.get("body", b"")
        return message
