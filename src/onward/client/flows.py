"""Flows and their runs, as a client sees them: `client.flows` and `client.runs`.

A run is a task, so whatever waits for tasks or follows them (`client.wait`, `client.stream`) takes
a run's id as well. Speaks /api/v2/flows and /api/v2/runs; decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, TypedDict, Unpack
from urllib.parse import quote

from onward.client.errors import TaskFailed
from onward.client.http import LONG_POLL_MS
from onward.core.task import new_id
from onward.wire.base import Page
from onward.wire.flows import CreateFlow, FlowView
from onward.wire.runs import ForkRun, RunDetail, RunView, SignalRun, StartRun
from onward.wire.tasks import TaskView

if TYPE_CHECKING:
    from onward.client.api import ServerApi
    from onward.client.http import Client
    from onward.flow.builder import Flow


class RunOptions(TypedDict, total=False):
    """What can be said about a run besides its flow and params."""

    shared: Mapping[str, Any]
    version: int
    request_id: str


class RunFilter(TypedDict, total=False):
    flow: str | None
    state: str | None
    cursor: str | None
    limit: int | None


class Flows:
    def __init__(self, client: Client, api: ServerApi) -> None:
        self._client = client
        self._api = api

    async def list(self) -> Page[FlowView]:
        return await self._api.call(Page[FlowView], "GET", _FLOWS)

    async def get(self, flow: str, version: int | None = None) -> FlowView:
        """With its newest version, or with the one that is asked for."""
        path = _flow(flow) if version is None else _flow(flow, "versions", str(version))
        return await self._api.call(FlowView, "GET", path)

    async def publish(self, flow: str | Flow, definition: Any = None) -> FlowView:
        """The next version of the flow of this name, which is made if there is none.

        Takes a name and a definition, or a flow of the builder that has a name.
        """
        name: Any = flow
        if not isinstance(flow, str):
            definition = flow.definition()
            name = definition.get("name")
        body = CreateFlow(name=name, definition=definition)
        return await self._api.call(FlowView, "POST", _FLOWS, body=body)

    async def start(
        self,
        flow: str,
        params: Mapping[str, Any] | None = None,
        *,
        wait_ms: int = 0,
        **options: Unpack[RunOptions],
    ) -> RunView:
        """The run is in the ledger when this returns; with `wait_ms`, it may be over already."""
        # With a request id the same run comes back, so it may be sent again after a cut.
        key = options.get("request_id") or new_id()
        given: dict[str, Any] = {**options, "request_id": key}
        body = StartRun(flow=flow, params=dict(params or {}), **given)
        return await self._api.call(RunView, "POST", _RUNS, body=body, key=key, wait_ms=wait_ms)

    async def run(
        self,
        flow: str,
        params: Mapping[str, Any] | None = None,
        *,
        wait_ms: int | None = None,
        **options: Unpack[RunOptions],
    ) -> dict[str, Any]:
        """Start, wait, and return the final shared state; TaskFailed if there is none."""
        began = monotonic()
        first = LONG_POLL_MS if wait_ms is None else min(wait_ms, LONG_POLL_MS)
        run: TaskView = await self.start(flow, params, wait_ms=first, **options)
        if not run.over:
            spent = int((monotonic() - began) * 1000)
            left = None if wait_ms is None else max(0, wait_ms - spent)
            run = await self._client.wait(run.id, left)
        if run.state != "succeeded":
            raise TaskFailed(run)
        return dict(run.result)


class Runs:
    def __init__(self, client: Client, api: ServerApi) -> None:
        self._client = client
        self._api = api

    async def list(self, **filter: Unpack[RunFilter]) -> Page[RunView]:
        return await self._api.call(Page[RunView], "GET", _RUNS, **filter)

    async def get(self, id: str) -> RunDetail:
        """With its graph and every attempt of its nodes."""
        return await self._api.call(RunDetail, "GET", _run(id))

    async def wait(self, id: str, timeout_ms: int | None = None) -> RunDetail:
        """Until it is over, however it ends; StillRunning when the time is over first."""
        await self._client.wait(id, timeout_ms)
        return await self.get(id)

    async def signal(self, id: str, name: str, value: Any = True) -> RunView:
        """`name` is the node that waits, or the shared key that it waits for."""
        body = SignalRun(name=name, value=value)
        return await self._api.call(RunView, "POST", _run(id, "signal"), body=body)

    async def cancel(self, id: str) -> RunView:
        return await self._api.call(RunView, "POST", _run(id, "cancel"))

    async def fork(
        self,
        id: str,
        from_node: str,
        shared: Mapping[str, Any] | None = None,
        *,
        anyway: bool = False,
    ) -> RunView:
        """A new run of the same version from this node on, with the state before it or this one.

        Refused if nodes before it were undone since, or if it would pass an approval that was not
        given, unless it is to go on `anyway`.
        """
        state = None if shared is None else dict(shared)
        body = ForkRun(from_node=from_node, shared=state, anyway=anyway)
        return await self._api.call(RunView, "POST", _run(id, "fork"), body=body)


_FLOWS, _RUNS = "/api/v2/flows", "/api/v2/runs"


def _flow(flow: str, *rest: str) -> str:
    return "/".join((_FLOWS, quote(flow, safe=""), *rest))


def _run(id: str, *rest: str) -> str:
    return "/".join((_RUNS, quote(id, safe=""), *rest))
