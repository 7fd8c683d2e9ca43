"""The doors, put on the engine: one ASGI application behind one guard."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Route, WebSocketRoute

from onward import __version__
from onward.core.clock import Clock
from onward.doors import errors
from onward.doors.chat import router as chat
from onward.doors.dispatcher import router as dispatcher
from onward.doors.dispatcher.submission import Door
from onward.doors.express import Express
from onward.doors.flows import router as flow_centre
from onward.doors.flows import workers as flow_workers
from onward.doors.guard import Guard
from onward.doors.mcp import door as agent_mcp
from onward.doors.page import files as console_page
from onward.doors.redis_views.part import RedisViews
from onward.doors.rest import approvals as console_approvals
from onward.doors.rest import dead_letters as console_dead_letters
from onward.doors.rest import flows as console_flows
from onward.doors.rest import runs as console_runs
from onward.doors.rest import schedules as console_schedules
from onward.doors.rest import services as console_services
from onward.doors.rest import sessions as agent_sessions
from onward.doors.rest import shared_state as console_shared_state
from onward.doors.rest import tasks as console_tasks
from onward.doors.rest import tools as agent_tools
from onward.doors.rest.document import document
from onward.doors.rest.routes import (
    encryption_routes,
    health_routes,
    live_routes,
    log_routes,
    queue_routes,
    service_routes,
    worker_routes,
)
from onward.doors.tasks import router as tasks_door
from onward.doors.tasks.submission import Intake
from onward.engine import Onward
from onward.ledgers.sealed import rotating
from onward.native.encryption import Encryption
from onward.native.health import Health
from onward.native.live import Live
from onward.native.log import Log
from onward.native.masking import Masking
from onward.native.metrics import Metrics, Requests
from onward.native.notifications import push as agent_push
from onward.native.queues import Queues
from onward.native.run_intake import Intake as Runs
from onward.native.tools.toolbox import Toolbox
from onward.native.workers import Workers
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
        onward = self.onward
        intake = Intake(
            onward.dispatcher, onward.roster, onward.declarations, settings.stream_types
        )
        onward.parts.append(RedisViews(onward, intake))
        door = Door(onward.dispatcher, onward.roster, onward.declarations, settings)
        dispatch = dispatcher.Dispatch(door)
        tasks = tasks_door.TasksDoor(
            onward.dispatcher,
            intake,
            retry_ratio=onward.dispatcher.pressure.retry_share.of,
            erase=onward.erase,
        )
        requests = Requests()
        self.web = _doors(onward, requests)
        self.web.router.routes.extend(
            [
                *dispatcher.routes(dispatch),
                *chat.routes(chat.Chat(door)),
                *tasks_door.routes(tasks),
            ]
        )
        busy = {
            ("POST", dispatcher.PATH): dispatch.submit,
            **{("POST", path): tasks.summarize for path in tasks_door.SUMMARIZE_PATHS},
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


def _doors(onward: Onward, requests: Requests) -> FastAPI:
    toolbox = Toolbox(
        onward.dispatcher, onward.roster, onward.catalog, onward.submissions, onward.notices
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
        docs_url=None,  # its page would come from another site's server
        redoc_url=None,
    )
    errors.install(web)
    submissions = onward.submissions
    masking = Masking(onward.catalog)
    runs = Runs(onward.dispatcher, onward.flows)
    for router in (
        console_tasks.build(onward.dispatcher, onward.roster, submissions, masking),
        console_approvals.build(onward.dispatcher, submissions, masking),
        console_dead_letters.build(onward.dispatcher, submissions, masking),
        console_services.build(onward.dispatcher),
        agent_sessions.build(
            onward.dispatcher,
            submissions,
            onward.notices,
            onward.wishes,
            onward.hub,
            onward.hosts,
            masking,
        ),
        agent_tools.build(toolbox),
        console_flows.build(onward.flows),
        console_runs.build(onward.flows, runs, masking),
        console_shared_state.build(onward.flows, runs, masking),
        console_schedules.build(onward.dispatcher, onward.scheduler, onward.scheduled, masking),
        console_page.build(),
    ):
        # Not include_router: it works every route out again at its first call, for what an
        # application may add to a router, and ours adds nothing.
        web.router.routes.extend(router.routes)
    for routes in (
        flow_workers.routes(flow_workers.Registration(onward.registry)),
        flow_centre.routes(flow_centre.FlowCentre(onward.flows, runs)),
        *_operation_routes(onward, requests),
    ):
        web.router.routes.extend(routes)
    web.router.routes.append(Route(agent_mcp.PATH, calls, methods=["POST"]))
    web.router.routes.append(WebSocketRoute("/ws/worker", onward.sockets))
    web.openapi = lambda: document(web)  # type: ignore[method-assign]
    listening = agent_push.Sockets(onward.hub, lambda name: bool(agent_sessions.is_session(name)))
    web.router.routes.append(WebSocketRoute("/ws/notifications/{session_id}", listening))
    return web


def _operation_routes(onward: Onward, requests: Requests) -> Sequence[Sequence[APIRoute]]:
    dispatcher, roster, streams = onward.dispatcher, onward.roster, onward.streams

    def ready() -> bool:
        return onward.ready

    metrics = Metrics(
        dispatcher,
        roster,
        onward.readers,
        [onward.notices.deliveries, onward.figures, requests],
        None if streams is None else streams.read_depths,
    )
    return [
        queue_routes(Queues(dispatcher, roster)),
        service_routes(onward.services),
        worker_routes(Workers(dispatcher, roster, Drains(roster, onward.registry))),
        log_routes(Log(onward.readers)),
        encryption_routes(Encryption(*rotating(onward.backend))),
        live_routes(Live(dispatcher, roster, onward.history, ready)),
        health_routes(Health(dispatcher, roster, streams, ready), metrics),
    ]


def build(
    settings: Settings, *, builtin_worker: bool = False, clock: Clock | None = None
) -> Application:
    return Application(settings, builtin_worker=builtin_worker, clock=clock)
