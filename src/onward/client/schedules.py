"""Schedules, as a client sees them: `client.schedules`. Speaks /api/v2/schedules; decides nothing.

A run of a schedule is a task like any other: wait for it and follow it by its id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from onward.core.task import new_id
from onward.wire.base import Page
from onward.wire.schedules import ScheduleBody, ScheduleDetail, ScheduleView
from onward.wire.tasks import TaskView

if TYPE_CHECKING:
    from onward.client.api import ServerApi


class Schedules:
    def __init__(self, api: ServerApi) -> None:
        self._api = api

    async def list(
        self, *, cursor: str | None = None, limit: int | None = None
    ) -> Page[ScheduleView]:
        """By name."""
        return await self._api.call(Page[ScheduleView], "GET", _PATH, cursor=cursor, limit=limit)

    async def get(self, name: str) -> ScheduleDetail:
        """With its next instants, and what became of the last ones."""
        return await self._api.call(ScheduleDetail, "GET", _path(name))

    async def create(self, name: str, **fields: Any) -> ScheduleDetail:
        """With the fields of a `ScheduleBody`. 409: there is another schedule of this name."""
        body = ScheduleBody(name=name, **fields)
        # The same once more is the same schedule, so it may be sent again after a cut.
        return await self._api.call(ScheduleDetail, "POST", _PATH, body=body, key=new_id())

    async def put(self, name: str, **fields: Any) -> ScheduleDetail:
        """Created, or replaced by one with these fields of a `ScheduleBody`."""
        body = ScheduleBody(**fields)
        return await self._api.call(ScheduleDetail, "PUT", _path(name), body=body)

    async def pause(self, name: str) -> ScheduleDetail:
        return await self._api.call(ScheduleDetail, "POST", _path(name, "pause"))

    async def resume(self, name: str) -> ScheduleDetail:
        return await self._api.call(ScheduleDetail, "POST", _path(name, "resume"))

    async def trigger(self, name: str) -> TaskView:
        """Run it now, beside its times; returns the task."""
        return await self._api.call(TaskView, "POST", _path(name, "trigger"), key=new_id())

    async def remove(self, name: str) -> None:
        await self._api.send(self._api.request("DELETE", _path(name)))


_PATH = "/api/v2/schedules"


def _path(name: str, *rest: str) -> str:
    return "/".join((_PATH, quote(name, safe=""), *rest))
