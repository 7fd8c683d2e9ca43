"""The services that come with the server, so that a first task has a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from onward.client.service import Service
from onward.workers.local.shipped.basics import answer, countdown, echo
from onward.workers.local.shipped.summarize import Endpoint, Summarizer, summarize_offline

if TYPE_CHECKING:
    from onward.settings import Settings

SERVICES: Mapping[str, Service] = {
    "echo": Service(echo),
    "countdown": Service(countdown),
    "summarize": Service(summarize_offline, name="summarize"),
}
GROUPS: Mapping[str, Service] = {"default": Service(answer)}


def services(settings: Settings) -> Mapping[str, Service]:
    """SERVICES; with an API key, a model writes the summaries."""
    key = settings.openrouter_api_key.strip()
    if not key:
        return SERVICES
    endpoint = Endpoint(
        key,
        settings.openrouter_base_url,
        settings.openrouter_model,
        settings.openrouter_timeout_s,
    )
    return {**SERVICES, "summarize": Summarizer(endpoint)}
