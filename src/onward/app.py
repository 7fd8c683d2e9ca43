"""The doors, put on the engine: one ASGI application behind one guard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import structlog
from fastapi import FastAPI
from starlette.routing import Route, WebSocketRoute

from onward import __version__
from onward.core.clock import Clock
from onward.doors import errors
from onward.doors.agents.socket import NotificationSocket
from onward.doors.chat import router as sync_chat
from onward.doors.dispatcher import router as sync_router
from onward.doors.dispatcher.submission import Door
from onward.doors.express import Express
from onward.doors.flows import router as flow_router
from onward.doors.flows import workers as flow_workers
from onward.doors.guard import Guard
from onward.doors.mcp import door as agent_mcp
from onward.doors.page import files as console_page
from onward.doors.rest import encryption as console_encryption
from onward.doors.rest import live as console_live
from onward.doors.rest import log as console_log
from onward.doors.rest import ops as console_ops
from onward.doors.rest import services as console_services
from onward.doors.rest.document import document
from onward.doors.rest.routes import (
    approval_routes,
    attempt_routes,
    dead_letter_routes,
    flow_routes,
    queue_routes,
    run_routes,
    schedule_routes,
    session_routes,
    task_routes,
    tool_routes,
)
from onward.doors.tasks import router as tasks_router
from onward.doors.tasks.submission import SUMMARIZE, Intake
from onward.doors.vocabulary import AGENTS
from onward.engine import Onward
from onward.native.approvals import Approvals
from onward.native.attempts import Attempts
from onward.native.dead_letters import DeadLetters
from onward.native.queues import Queues
from onward.native.sessions import Sessions
from onward.native.tasks import Tasks
from onward.native.tools.toolbox import Toolbox
from onward.settings import Settings
from onward.workers.draining import Drains
from onward.workers.local import shipped

log = structlog.get_logger("onward")


class Application:
    """The ASGI application: every door, behind one guard."""

    def __init__(self, settings: Settings, *, builtin_worker: bool, clock: Clock | None) -> None:
        self.onward = Onward(
            settings,
            clock=clock,
            services=shipped.services(settings) if builtin_worker else None,
            groups=shipped.GROUPS if builtin_worker else None,
        )
        door = Door(self.onward.dispatcher, self.onward.roster, self.onward.declarations, settings)
        intake = self.onward.intake
        requests = console_ops.Requests()
        self.web = _doors(self.onward, door, intake, requests)
        summarize = partial(tasks_router.submit, intake, SUMMARIZE)
        busy = {
            ("POST", sync_router.PATH): partial(sync_router.submit, door),
            **{("POST", path): summarize for path in tasks_router.SUMMARIZE_PATHS},
        }
        guarded = Guard(
            Express(self.web, busy),
            allowed_hosts=settings.allowed_hosts,
            allowed_origins=settings.allowed_origins,
            answered=requests.answered,
        )
        tracing = self.onward.tracing
        self._guarded = guarded if tracing is None else tracing.inbound(guarded)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._guarded(scope, receive, send)

    async def drain(self) -> None:
        await self.onward.drain()


def _doors(onward: Onward, door: Door, intake: Intake, requests: console_ops.Requests) -> FastAPI:
    toolbox = Toolbox(
        onward.dispatcher,
        onward.roster,
        onward.catalog,
        onward.submissions,
        onward.notifications,
        AGENTS,
    )
    calls = agent_mcp.Door(toolbox, wait_ms=onward.settings.mcp_wait_ms, ready=lambda: onward.ready)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with onward, calls:
            yield

    web = FastAPI(
        title="Onward",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # its page would come from somebody else's server
        redoc_url=None,
    )
    errors.install(web)
    submissions = onward.submissions
    tasks = Tasks(onward.dispatcher, onward.roster, submissions, onward.masking)
    sessions = Sessions(
        onward.dispatcher,
        tasks,
        onward.notifications,
        onward.preferences,
        onward.hub,
        onward.hosts,
        onward.masking,
        AGENTS,
    )
    for router in (
        sync_router.build(door),
        sync_chat.build(door),
        console_services.build(
            onward.dispatcher,
            onward.roster,
            onward.catalog,
            Drains(onward.roster, onward.registry),
        ),
        tasks_router.build(
            onward.dispatcher,
            intake,
            onward.alarm,
            tasks,
            retry_ratio=onward.dispatcher.pressure.retry_share.of,
            erase=onward.erase,
        ),
        console_ops.build(
            onward.dispatcher,
            onward.roster,
            lambda: onward.ready,
            onward.streams,
            [onward.notifications.deliveries, onward.figures, requests],
            readers=onward.readers,
        ),
        console_log.build(onward.readers),
        flow_workers.build(onward.registry),
        flow_router.build(onward.flows, onward.runs),
        console_live.build(
            console_live.Live(
                onward.dispatcher, onward.roster, onward.history, lambda: onward.ready
            )
        ),
        console_encryption.build(*onward.encryption),
        console_page.build(),
    ):
        # Not include_router: it works every route out again at its first call, for what an
        # application may add to a router, and ours adds nothing.
        web.router.routes.extend(router.routes)
    for routes in (
        task_routes(tasks),
        session_routes(sessions),
        tool_routes(toolbox),
        attempt_routes(Attempts(onward.dispatcher)),
        approval_routes(Approvals(onward.dispatcher, submissions, onward.masking)),
        dead_letter_routes(DeadLetters(onward.dispatcher, submissions, onward.masking)),
        queue_routes(Queues(onward.dispatcher, onward.roster)),
        flow_routes(onward.flows),
        run_routes(onward.runs),
        schedule_routes(onward.schedules),
    ):
        web.router.routes.extend(routes)
    web.router.routes.append(Route(agent_mcp.PATH, calls, methods=["POST"]))
    web.router.routes.append(WebSocketRoute("/ws/worker", onward.sockets))
    web.openapi = lambda: document(web)  # type: ignore[method-assign]
    notifying = NotificationSocket(sessions)
    web.router.routes.append(WebSocketRoute("/ws/notifications/{session_id}", notifying))
    return web


def build(
    settings: Settings, *, builtin_worker: bool = False, clock: Clock | None = None
) -> Application:
    return Application(settings, builtin_worker=builtin_worker, clock=clock)
