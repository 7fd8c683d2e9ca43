"""The doors, put on the engine: one ASGI application behind one guard."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog
from fastapi import FastAPI
from starlette.routing import Route, WebSocketRoute

from onward import __version__
from onward.core.clock import Clock
from onward.doors import errors
from onward.doors.access import Access, check_routes
from onward.doors.agents.socket import NotificationSocket
from onward.doors.chat import router as chat
from onward.doors.dispatcher import router as dispatcher
from onward.doors.dispatcher.submission import DispatcherDoor
from onward.doors.document import document
from onward.doors.express import Express
from onward.doors.flows import router as flow_centre
from onward.doors.flows import workers as flow_workers
from onward.doors.guard import Guard
from onward.doors.mcp import door as mcp
from onward.doors.page import files as page
from onward.doors.redis_views.part import RedisViews
from onward.doors.rest import routes as rest
from onward.doors.route import UseCaseRoute
from onward.doors.tasks import router as tasks_door
from onward.doors.tasks.submission import TasksIntake
from onward.doors.vocabulary import AGENTS
from onward.doors.worker_socket import WorkerSocket
from onward.engine import Onward
from onward.ledgers.sealed import rotating
from onward.native.approvals import Approvals
from onward.native.attempts import Attempts
from onward.native.attention import Attention
from onward.native.audit import Audit
from onward.native.batches import Batches
from onward.native.callbacks import CallbackKeys
from onward.native.dead_letters import DeadLetters
from onward.native.encryption import Encryption
from onward.native.health import Health
from onward.native.keys import Keys
from onward.native.limits import Limits
from onward.native.live import Live
from onward.native.log import Log
from onward.native.metrics import Metrics, Requests
from onward.native.operations import Operations
from onward.native.queues import Queues
from onward.native.series import Series
from onward.native.sessions import Sessions
from onward.native.tasks import Tasks
from onward.native.tools.toolbox import Toolbox
from onward.native.workers import Workers
from onward.settings import Settings
from onward.wire.batches import MOST_BYTES
from onward.wire.live import Environment
from onward.workers.draining import Drains
from onward.workers.local import shipped

log = structlog.get_logger("onward")


class Application:
    """The ASGI application: every door, behind one guard."""

    def __init__(self, settings: Settings, *, builtin_worker: bool, clock: Clock | None) -> None:
        self.onward = onward = Onward(
            settings,
            clock=clock,
            services=shipped.services(settings) if builtin_worker else None,
            groups=shipped.GROUPS if builtin_worker else None,
        )
        tasks = Tasks(
            onward.dispatcher,
            onward.roster,
            onward.submissions,
            onward.masking,
            onward.explainer,
        )
        intake = TasksIntake(
            onward.dispatcher, onward.roster, onward.declarations, settings.stream_types
        )
        onward.parts.append(RedisViews(onward, intake))
        door = DispatcherDoor(
            onward.dispatcher, onward.roster, onward.declarations, onward.masking, settings
        )
        dispatch = dispatcher.Dispatch(door)
        v1 = tasks_door.TasksDoor(
            onward.dispatcher,
            intake,
            onward.alarm,
            tasks,
            onward.masking,
            retry_ratio=onward.dispatcher.pressure.retry_share.of,
            erase=onward.erase,
        )
        centre = flow_centre.FlowCentre(onward.flows, onward.runs, onward.masking)
        requests = Requests()
        self.web = _web(onward, tasks, requests)
        self.web.router.routes.extend(
            [
                *dispatcher.routes(dispatch),
                *chat.routes(chat.Chat(door, onward.roster)),
                *tasks_door.routes(v1),
                *flow_workers.routes(flow_workers.Registration(onward.registry)),
                *flow_centre.routes(centre),
                *_operator_routes(onward, requests),
                *page.routes(),
            ]
        )
        check_routes(self.web.router.routes)
        busy = {
            ("POST", dispatcher.PATH): dispatch.submit,
            **{("POST", path): v1.summarize for path in tasks_door.SUMMARIZE_PATHS},
        }
        routes = [
            one
            for one in self.web.router.routes
            if isinstance(one, UseCaseRoute)
            and any((method, one.path) in rest.BUSY for method in one.methods or ())
        ]
        guarded = Guard(
            Express(self.web, busy, routes),
            Access(onward.keys),
            larger={rest.BATCH_PATH: MOST_BYTES},
            allowed_hosts=settings.allowed_hosts,
            allowed_origins=settings.allowed_origins,
            answered=requests.answered,
        )
        tracing = onward.tracing
        self._guarded = guarded if tracing is None else tracing.inbound(guarded)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._guarded(scope, receive, send)

    async def drain(self) -> None:
        await self.onward.drain()


def _web(onward: Onward, tasks: Tasks, requests: Requests) -> FastAPI:
    """The framework with what callers of /api/v2, of the tools and of a socket reach."""
    submissions, masking = onward.submissions, onward.masking
    sessions = Sessions(
        onward.dispatcher,
        tasks,
        onward.session_owners,
        onward.notifications,
        onward.preferences,
        onward.hub,
        onward.hosts,
        masking,
        AGENTS,
        onward.foreign_looks,
    )
    toolbox = Toolbox(
        onward.dispatcher,
        onward.roster,
        onward.offers,
        submissions,
        onward.runs,
        onward.session_owners,
        onward.notifications,
        AGENTS,
        onward.explainer,
        onward.foreign_looks,
    )
    calls = mcp.McpDoor(toolbox, wait_ms=onward.settings.mcp_wait_ms, ready=lambda: onward.ready)

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
    web.openapi = lambda: document(web)  # type: ignore[method-assign]
    web.router.routes.extend(
        [
            *rest.task_routes(tasks),
            *rest.batch_routes(Batches(onward.dispatcher, submissions, onward.hosts)),
            *rest.operation_routes(Operations(onward.dispatcher)),
            *rest.attempt_routes(Attempts(onward.dispatcher, onward.task_logs)),
            *rest.approval_routes(Approvals(onward.dispatcher, submissions, masking)),
            *rest.dead_letter_routes(DeadLetters(onward.dispatcher, submissions, masking)),
            *rest.flow_routes(onward.flows),
            *rest.run_routes(onward.runs),
            *rest.schedule_routes(onward.schedules),
            *rest.session_routes(sessions),
            *rest.tool_routes(toolbox),
            Route(mcp.PATH, calls, methods=["GET", "POST"]),
            WebSocketRoute("/ws/worker", WorkerSocket(onward.sockets, onward.services)),
            WebSocketRoute("/ws/notifications/{session_id}", NotificationSocket(sessions)),
        ]
    )
    return web


def _operator_routes(onward: Onward, requests: Requests) -> Sequence[UseCaseRoute]:
    """What the people who run it look at and set."""
    dispatcher, roster, streams = onward.dispatcher, onward.roster, onward.streams

    def ready() -> bool:
        return onward.ready

    metrics = Metrics(
        dispatcher,
        roster,
        onward.readers,
        onward.ledger_calls,
        onward.limits,
        [
            onward.notifications.deliveries,
            onward.figures,
            onward.foreign_looks,
            onward.trail,
            requests,
        ],
        None if streams is None else streams.read_depths,
    )
    return [
        *rest.attention_routes(Attention(onward.attention)),
        *rest.queue_routes(Queues(dispatcher, roster, onward.limits)),
        *rest.limit_routes(Limits(onward.catalog, dispatcher, onward.limits)),
        *rest.callback_routes(CallbackKeys(onward.callback_secrets)),
        *rest.service_routes(onward.services),
        *rest.worker_routes(Workers(dispatcher, roster, Drains(roster, onward.registry))),
        *rest.log_routes(Log(onward.readers)),
        *rest.encryption_routes(Encryption(*rotating(onward.backend))),
        *rest.key_routes(Keys(onward.keys), Audit(onward.backend, onward.clock)),
        *rest.live_routes(
            Live(dispatcher, roster, onward.history, ready, _environment(onward.settings)),
            Series(onward.minutes, onward.clock),
        ),
        *rest.health_routes(Health(dispatcher, roster, streams, ready), metrics),
    ]


def build(
    settings: Settings, *, builtin_worker: bool = False, clock: Clock | None = None
) -> Application:
    return Application(settings, builtin_worker=builtin_worker, clock=clock)


def _environment(settings: Settings) -> Environment | None:
    if not settings.environment:
        return None
    return Environment(name=settings.environment, color=settings.environment_color)
