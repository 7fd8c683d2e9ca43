"""Notices as they come: a WebSocket or server-sent events, for sessions that are connected.

Each connection gets what is unread and then what is new, nothing twice. A notice is written by one
server and its reader may be on another: the writer leaves the session's name in a short-lived list
in the ledger, which every server with connections looks at twice a second. The log itself would
cost each of them a look at every event of everybody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any, Literal

import msgspec
import structlog

from onward.core.clock import Clock
from onward.core.contract import Backend
from onward.core.errors import LedgerUnavailable, NotFound, OnwardError, TooBusy
from onward.core.task import encode
from onward.native.notifications.notices import Kept, Notices
from onward.native.notifications.preferences import Wishes
from onward.native.places import Places

log = structlog.get_logger("onward.push")

MOST = 1_000  # connections of this server
MOST_EACH = 16  # connections of one session
BEHIND = 256  # notices that a connection may leave unread here; then it reads them from the ledger
REMEMBERED = 4_096  # ids that a connection was told, more than can be unread
ALIVE_S = 10.0
LOOK_S = 0.5
NEWS_MS = 10_000  # how long one list of sessions with news is written to
FRAME = 4_096  # bytes of what a client says
TRY_LATER, GOING_AWAY, TOO_LONG = 1013, 1001, 1009


class Line:
    """One connection: what it has been told, and what it has yet to be told."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.news: deque[Kept] = deque()
        self.look = True  # in the ledger, for what is unread there
        self.woken = asyncio.Event()

    def add(self, all_: Sequence[Kept]) -> None:
        self.news.extend(all_)
        if len(self.news) > BEHIND:
            self.news.clear()
            self.look = True
        self.woken.set()

    def reread(self) -> None:
        self.look = True
        self.woken.set()


class Hub:
    """All connections of this server."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        notices: Notices,
        wishes: Wishes,
        *,
        server: str,
        shared: bool,
    ) -> None:
        self._documents = backend.documents
        self._clock = clock
        self.notices = notices
        self._wishes = wishes
        self._server = server
        self._shared = shared  # with other servers
        self._lines: dict[str, set[Line]] = {}
        self.all_places = Places(MOST, f"{MOST} listeners are connected already")
        self._places: dict[str, Places] = {}  # of each session that listens
        self._watching: asyncio.Task[None] | None = None
        self._seen: dict[str, str] = {}
        self.closing = asyncio.Event()

    async def tell(self, session: str, all_: Sequence[Kept]) -> None:
        for line in self._lines.get(session, ()):
            line.add(all_)
        if self._shared:
            now = self._clock.now()
            await self._documents.put(
                _list(now // NEWS_MS),
                session,
                encode((self._server, all_[-1].id)),
                now=now,
                expires_at=now + 3 * NEWS_MS,
            )

    @contextmanager
    def place(self, session: str) -> Iterator[None]:
        """For one connection, as long as it lasts; too many at once are refused."""
        full = f"{MOST_EACH} listeners of this session are connected already"
        own = self._places.setdefault(session, Places(MOST_EACH, full))
        try:
            with self.all_places.take(), own.take():
                yield
        finally:
            if not own.taken:
                self._places.pop(session, None)

    def connected(self, session: str) -> int:
        """How many listen here; those at other servers are not known."""
        return len(self._lines.get(session, ()))

    async def follow(
        self, session: str, how: str, *, after: str | None = None
    ) -> AsyncGenerator[Kept | None, None]:
        """Unread notices, then new ones. None comes now and then: is anybody still there?"""
        # Listening before looking: what comes in between is found twice, and told once.
        async with self._listening(session) as line:
            live = False
            while not self.closing.is_set():
                line.woken.clear()
                wished = await self._wishes.of(session)
                gone_out: list[Kept] = []
                for kept in await self._next(session, line, after):
                    if kept.id not in line.sent and wished.pushes(kept.notice.type):
                        line.sent.add(kept.id)
                        yield kept
                        gone_out.append(kept)
                        if live:
                            self.notices.deliveries.pushed(how, kept, self._clock.now())
                        else:
                            self.notices.deliveries.told(how)
                await self.notices.record(session, gone_out, how)
                after, live = None, True
                if len(line.sent) > REMEMBERED:
                    line.look = True  # and forget those that were read meanwhile
                if not line.woken.is_set():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(ALIVE_S):
                            await line.woken.wait()
                            continue
                    yield None

    async def close(self) -> None:
        self.closing.set()
        for lines in self._lines.values():
            for line in lines:
                line.woken.set()

    async def _next(self, session: str, line: Line, after: str | None) -> Sequence[Kept]:
        if not line.look:
            found = list(line.news)
            line.news.clear()
            return found
        line.look = False
        line.news.clear()
        kept = await self.notices.of(session)
        unread = [one for one in kept if one.read_at is None]
        line.sent.intersection_update([one.id for one in unread])
        last = next((one for one in kept if one.id == after), None)
        if last is None:
            return unread
        # By when they were written: of two servers' events the earlier may be told later.
        return [one for one in unread if one.written_at >= last.written_at and one.id != after]

    @asynccontextmanager
    async def _listening(self, session: str) -> AsyncIterator[Line]:
        line = Line()
        self._lines.setdefault(session, set()).add(line)
        if self._shared and self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())
        try:
            yield line
        finally:
            self._lines[session].discard(line)
            if not self._lines[session]:
                del self._lines[session]
            if not self._lines and self._watching is not None:
                self._watching.cancel()
                self._watching = None

    async def _watch(self) -> None:
        while True:
            try:
                await self.look()
            except Exception as error:  # the next look finds it
                log.warning("cannot look for news", error=repr(error))
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Which sessions have other servers written notices for?"""
        now = self._clock.now()
        number = now // NEWS_MS
        seen: dict[str, str] = {}
        for name in (_list(number - 1), _list(number)):
            for document in await self._documents.list(name, now=now):
                seen[document.key] = document.body
        for session, body in seen.items():
            if self._seen.get(session) != body and not body.startswith(f'["{self._server}"'):
                for line in self._lines.get(session, ()):
                    line.reread()
        self._seen = seen


def _list(number: int) -> str:
    """One after the other: none of them grows, and each goes by itself."""
    return f"noticed:{number}"


class Said(msgspec.Struct, frozen=True):
    """What a client may say."""

    type: Literal["ack", "ping"]
    notification_id: str = ""


_hear = msgspec.json.Decoder(Said).decode


class Sockets:
    """`/ws/notifications/{session_id}`: an ASGI endpoint."""

    def __init__(self, hub: Hub, is_session: Callable[[str], bool]) -> None:
        self._hub = hub
        self._is_session = is_session

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        session = scope["path_params"]["session_id"]
        await receive()
        if not self._is_session(session):
            await send({"type": "websocket.close", "code": 1008})
            return
        await send({"type": "websocket.accept"})
        try:
            with self._hub.place(session):
                await Connection(self._hub, session, receive, send).run()
        except TooBusy as error:
            await send({"type": "websocket.close", "code": TRY_LATER, "reason": str(error)})


class Connection:
    def __init__(self, hub: Hub, session: str, receive: Any, send: Any) -> None:
        self._hub = hub
        self._session = session
        self._receive = receive
        self._send = send

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        ways = [loop.create_task(self._listen()), loop.create_task(self._follow())]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        for way in done:
            way.result()

    async def _tell(self) -> None:
        async with aclosing(self._hub.follow(self._session, "websocket")) as notices:
            async for kept in notices:
                if kept is not None:
                    await self._say(kept.notice)
        await self._end(GOING_AWAY, "going away")

    async def _follow(self) -> None:
        try:
            await self._tell()
        except LedgerUnavailable as error:
            await self._end(TRY_LATER, str(error))

    async def _listen(self) -> None:
        while (message := await self._receive())["type"] != "websocket.disconnect":
            text = message.get("text") or message.get("bytes") or b""
            if len(text) > FRAME:
                await self._end(TOO_LONG, "too long")
                return
            try:
                await self._answer(_hear(text))
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                await self._say({"type": "error", "message": str(error)})

    async def _answer(self, said: Said) -> None:
        if said.type == "ping":
            await self._say({"type": "pong"})
            return
        try:
            await self._hub.notices.ack(self._session, said.notification_id)
        except NotFound as error:
            id_ = said.notification_id
            await self._say({"type": "error", "message": str(error), "notification_id": id_})
        except OnwardError as error:
            await self._say({"type": "error", "message": str(error)})
        else:
            await self._say({"type": "acked", "notification_id": said.notification_id})

    async def _say(self, frame: Any) -> None:
        await self._send({"type": "websocket.send", "text": encode(frame)})

    async def _end(self, code: int, reason: str) -> None:
        # It may have hung up itself meanwhile.
        with suppress(RuntimeError, OSError):
            await self._send({"type": "websocket.close", "code": code, "reason": reason})
