"""The next step after an error, in the words of its reader: a path or a tool."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from onward.core.errors import OnwardError, Step

Words: TypeAlias = Mapping[Step, str]

HTTP: Words = MappingProxyType(
    {
        Step.CHECK_LEDGER: "onward doctor looks at the ledger",
        Step.LIST_FLOWS: "GET /api/v2/flows lists what there is",
        Step.LIST_QUEUES: "GET /api/v2/queues lists what there is",
        Step.LIST_SCHEDULES: "GET /api/v2/schedules lists what there is",
        Step.LIST_WORKERS: "GET /api/v2/workers lists them",
        Step.MAKE_KEY: ("onward keys encryption new prints one; set it as ONWARD_ENCRYPTION_KEYS"),
        Step.PUBLISH_VERSION: "POST /flows/version publishes one",
        Step.REMOVE_SERVICE: "DELETE /api/v2/services/{about}, or use another type",
        Step.REPLACE_SCHEDULE: "PUT /api/v2/schedules/{about} replaces it",
        Step.SHOW_SERVICE: "GET /api/v2/services/{about} shows the schema",
        Step.SUBMIT_NOW: "POST /api/v2/tasks runs something now",
    }
)
TOOLS: Words = MappingProxyType(
    {
        **HTTP,
        Step.SHOW_SERVICE: "the input schema of the tool shows what {about} takes",
        Step.SUBMIT_NOW: "call the tool of the service to run it now",
    }
)


def hint_text(error: OnwardError, words: Words = HTTP) -> str | None:
    return (
        error.hint if error.step is None else words[error.step.what].format(about=error.step.about)
    )


def with_hint(error: OnwardError, words: Words = HTTP) -> str:
    """For those who read one text and no more."""
    hint = hint_text(error, words)
    return f"{error}; {hint}" if hint else str(error)
