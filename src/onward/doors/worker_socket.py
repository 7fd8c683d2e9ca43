"""`/ws/worker`: who may be a worker on a WebSocket, and of what (K-7)."""

from __future__ import annotations

from functools import partial
from typing import Any

from onward.core.errors import Forbidden
from onward.doors.callers import caller_of
from onward.native.caller import Scope
from onward.native.services import Services
from onward.workers.socket.sessions import WorkerRights, WorkerSockets

REFUSED = 1008


class WorkerSocket:
    """An ASGI endpoint: refused at the handshake, or a session of a worker."""

    scopes = (Scope.WORK,)

    def __init__(self, sockets: WorkerSockets, services: Services) -> None:
        self._sockets = sockets
        self._services = services

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        caller = caller_of(scope)
        await receive()
        try:
            caller.require(*self.scopes)
        except Forbidden as error:
            await send({"type": "websocket.close", "code": REFUSED, "reason": str(error)})
            return
        declare = partial(self._services.declare_all, caller)
        await self._sockets.serve(
            receive, send, WorkerRights(caller.key, caller.may_serve, declare)
        )
