"""Schedules, as a client sees them: `client.schedules`. Speaks /api/v2/schedules; decides nothing.

A run of a schedule is a task like any other: wait for it and follow it by its id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack
from urllib.parse import quote

import msgspec

from onward.core.task import new_id
from onward.wire.tasks import TaskView

if TYPE_CHECKING:
    from onward.client.wire import Wire


class Definition(TypedDict, total=False):
    """What can be said about a schedule: one of `type` and `flow`, and one of the three times."""

    type: str
    payload: Any
    flow: str
    params: Mapping[str, Any]
    cron: str
    every_ms: int
    run_at: int
    timezone: str
    queue: str
    priority: Literal["high", "normal", "low"]
    max_retries: int
    timeout_ms: int
    requires_approval: bool
    session_id: str
    missed: Literal["skip", "once", "all"]
    overlap: Literal["allow", "skip"]
    paused: bool


class RunEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one instant."""

    at: int
    outcome: str
    task_id: str | None = None
    reason: str | None = None


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    type: str | None = None
    payload: Any = None
    flow: str | None = None
    params: Any = None
    cron: str | None = None
    every_ms: int | None = None
    run_at: int | None = None
    timezone: str = "UTC"
    queue: str | None = None
    priority: str | None = None
    max_retries: int | None = None
    timeout_ms: int | None = None
    requires_approval: bool | None = None
    session_id: str | None = None
    missed: str = "once"
    overlap: str = "allow"
    paused: bool = False
    description: str = ""
    next_run_at: int | None = None
    last_run_at: int | None = None
    last_task_id: str | None = None
    last_outcome: str | None = None
    created_at: int = 0
    links: Mapping[str, str] = msgspec.field(default_factory=dict)
    upcoming: tuple[int, ...] = ()  # these two not in a list
    history: tuple[RunEntry, ...] = ()

    @property
    def over(self) -> bool:
        """It will never run again by itself."""
        return self.next_run_at is None and not self.paused


class SchedulePage(msgspec.Struct, frozen=True):
    items: tuple[ScheduleView, ...]
    next: str | None = None


class Schedules:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def list(self, *, cursor: str | None = None, limit: int | None = None) -> SchedulePage:
        """By name."""
        request = self._wire.request("GET", _PATH, cursor=cursor, limit=limit)
        return await self._wire.ask(SchedulePage, request)

    async def get(self, name: str) -> ScheduleView:
        """With its next instants, and what became of the last ones."""
        return await self._wire.ask(ScheduleView, self._wire.request("GET", _path(name)))

    async def create(self, name: str, **definition: Unpack[Definition]) -> ScheduleView:
        """Refused (409) if there is one of this name that says something else."""
        # The same once more is the same schedule, so it may be sent again after a cut.
        request = self._wire.request("POST", _PATH, body={"name": name, **definition}, key=new_id())
        return await self._wire.ask(ScheduleView, request)

    async def put(self, name: str, **definition: Unpack[Definition]) -> ScheduleView:
        """Created, or replaced by what is said here."""
        request = self._wire.request("PUT", _path(name), body=definition)
        return await self._wire.ask(ScheduleView, request)

    async def pause(self, name: str) -> ScheduleView:
        return await self._wire.ask(ScheduleView, self._wire.request("POST", _path(name, "pause")))

    async def resume(self, name: str) -> ScheduleView:
        return await self._wire.ask(ScheduleView, self._wire.request("POST", _path(name, "resume")))

    async def trigger(self, name: str) -> TaskView:
        """Run it now, beside its times; returns the task."""
        request = self._wire.request("POST", _path(name, "trigger"), key=new_id())
        return await self._wire.ask(TaskView, request)

    async def remove(self, name: str) -> None:
        await self._wire.tell(self._wire.request("DELETE", _path(name)))


_PATH = "/api/v2/schedules"


def _path(name: str, *rest: str) -> str:
    return "/".join((_PATH, quote(name, safe=""), *rest))
