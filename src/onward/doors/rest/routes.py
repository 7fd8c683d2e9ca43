"""Every path of /api/v2, and the use case it leads to. The only place where these are written."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi.routing import APIRoute
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from onward.doors.rest.route import Reply, route
from onward.native.encryption import Encryption
from onward.native.health import Health
from onward.native.live import Live
from onward.native.log import Log
from onward.native.metrics import Metrics
from onward.native.queues import Queues
from onward.native.services import Services
from onward.native.workers import Workers
from onward.wire.health import HealthView, Readiness
from onward.wire.live import Change, Snapshot


def queue_routes(queues: Queues) -> Sequence[APIRoute]:
    return [
        route("GET", "/queues", queues.list),
        route("GET", "/queues/{name}", queues.read),
        route("POST", "/queues/{name}/pause", queues.pause),
        route("POST", "/queues/{name}/resume", queues.resume),
    ]


def service_routes(services: Services) -> Sequence[APIRoute]:
    return [
        route("GET", "/services", services.list),
        route("POST", "/services", services.declare, status=201, errors=(409,)),
        route("GET", "/services/{name}", services.read),
        route("DELETE", "/services/{name}", services.remove),
    ]


def worker_routes(workers: Workers) -> Sequence[APIRoute]:
    return [
        route("GET", "/workers", workers.list),
        route("POST", "/workers/{worker_id}/drain", workers.drain, errors=(409,)),
        route("DELETE", "/workers/{worker_id}/drain", workers.undrain, errors=(409,)),
    ]


def log_routes(log: Log) -> Sequence[APIRoute]:
    return [
        route("GET", "/log/readers", log.readers),
        route("DELETE", "/log/readers/{name}", log.forget),
    ]


def encryption_routes(encryption: Encryption) -> Sequence[APIRoute]:
    return [
        route("GET", "/encryption", encryption.read),
        route("POST", "/encryption/rotate", encryption.rotate, errors=(409,)),
    ]


def live_routes(live: Live) -> Sequence[APIRoute]:
    return [route("GET", "/live", live.listen, events={"snapshot": Snapshot, "change": Change})]


def health_routes(health: Health, metrics: Metrics) -> Sequence[APIRoute]:
    """At the root, where probes and Prometheus look."""

    def well(found: HealthView) -> Reply:
        return Reply(found, 503 if found.status == "unhealthy" else 200)

    def ready(found: Readiness) -> Reply:
        return Reply(found, 200 if found.ready else 503)

    both = (200, 503)
    return [
        route("GET", "/health", health.read, reply=well, statuses=both, prefix="", tag="health"),
        route("GET", "/ready", health.ready, reply=ready, statuses=both, prefix="", tag="health"),
        route("GET", "/metrics", metrics.read, media=CONTENT_TYPE_LATEST, prefix="", tag="health"),
    ]
