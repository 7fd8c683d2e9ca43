"""`/ws/notifications/{session_id}`: a session's notifications over a WebSocket (S2-6)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import Any, Literal

import msgspec

from onward.core.errors import Forbidden, Invalid, LedgerUnavailable, NotFound, TooBusy
from onward.core.task import encode
from onward.doors.callers import caller_of
from onward.errors import OnwardError
from onward.native.caller import Caller, scopes_of
from onward.native.places import Feed
from onward.native.sessions import Sessions
from onward.wire.sessions import is_session

LONGEST_FRAME = 4_096  # bytes of what a client sends
TRY_LATER, GOING_AWAY, TOO_LONG, REFUSED = 1013, 1001, 1009, 1008


class ClientFrame(msgspec.Struct, frozen=True):
    """What a client may send."""

    type: Literal["ack", "ping"]
    notification_id: str = ""


_decode = msgspec.json.Decoder(ClientFrame).decode


class NotificationSocket:
    """An ASGI endpoint."""

    def __init__(self, sessions: Sessions) -> None:
        self.scopes = scopes_of(sessions.follow)
        self._sessions = sessions

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        session, caller = scope["path_params"]["session_id"], caller_of(scope)
        await receive()
        try:
            if not is_session(session):
                raise Invalid("this is no session id")
            feed = await self._sessions.follow(caller, session, how="websocket")
        except (Forbidden, Invalid, NotFound) as error:
            await send({"type": "websocket.close", "code": REFUSED, "reason": str(error)})
            return
        await send({"type": "websocket.accept"})
        try:
            with feed.place:
                await AgentConnection(self._sessions, caller, session, receive, send).run(feed)
        except TooBusy as error:
            await send({"type": "websocket.close", "code": TRY_LATER, "reason": str(error)})


class AgentConnection:
    def __init__(
        self, sessions: Sessions, caller: Caller, session: str, receive: Any, send: Any
    ) -> None:
        self._sessions = sessions
        self._caller = caller
        self._session = session
        self._receive = receive
        self._asgi_send = send

    async def run(self, feed: Feed) -> None:
        loop = asyncio.get_running_loop()
        ways = [loop.create_task(self._read()), loop.create_task(self._write(feed))]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        for way in done:
            way.result()

    async def _write(self, feed: Feed) -> None:
        try:
            async with aclosing(feed.events) as events:
                async for event in events:
                    if event is not None:
                        await self._send(event.data)
            await self._close(GOING_AWAY, "going away")
        except LedgerUnavailable as error:
            await self._close(TRY_LATER, str(error))

    async def _read(self) -> None:
        while (message := await self._receive())["type"] != "websocket.disconnect":
            text = message.get("text") or message.get("bytes") or b""
            if len(text) > LONGEST_FRAME:
                await self._close(TOO_LONG, "too long")
                return
            try:
                await self._handle(_decode(text))
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                await self._send({"type": "error", "message": str(error)})

    async def _handle(self, frame: ClientFrame) -> None:
        if frame.type == "ping":
            await self._send({"type": "pong"})
            return
        id = frame.notification_id
        try:
            await self._sessions.acknowledge(self._caller, self._session, id)
        except NotFound as error:
            await self._send({"type": "error", "message": str(error), "notification_id": id})
        except OnwardError as error:
            await self._send({"type": "error", "message": str(error)})
        else:
            await self._send({"type": "acked", "notification_id": id})

    async def _send(self, frame: Any) -> None:
        await self._asgi_send({"type": "websocket.send", "text": encode(frame)})

    async def _close(self, code: int, reason: str) -> None:
        # The client may have closed the connection meanwhile.
        with suppress(RuntimeError, OSError):
            await self._asgi_send({"type": "websocket.close", "code": code, "reason": reason})
