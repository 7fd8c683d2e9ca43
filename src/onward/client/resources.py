"""The parts of a client: `client.queues`, `.limits`, `.operations`, `.schedules`, `.flows`,
`.runs`, `.keys`, `.log`, `.encryption`. Each speaks its paths of /api/v2, and decides nothing.

A run is a task, and so is a run of a schedule: whatever waits for tasks or follows them
(`client.wait`, `client.stream`) takes its id as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from onward.client.retrying import new_key
from onward.client.submitting import LONG_POLL_MS, WaitFor, result_of, until_over
from onward.wire.base import Page, PriorityWord
from onward.wire.encryption import KeyNames, Rotate, RotationStep
from onward.wire.flows import CreateFlow, FlowView
from onward.wire.keys import AuditEntry, CreateKey, KeyCreated, KeyRate, KeyView, Me
from onward.wire.limits import Concurrency, LimitBody, LimitView, RateLimit
from onward.wire.log import ReaderView
from onward.wire.operations import OperationView
from onward.wire.queues import Pause, QueueView
from onward.wire.runs import ForkRun, RunDetail, RunView, SignalRun, StartRun
from onward.wire.schedules import ScheduleBody, ScheduleDetail, ScheduleView
from onward.wire.tasks import TaskView

if TYPE_CHECKING:
    from onward.client.api import ServerApi
    from onward.flow.builder import Flow


class RunOptions(TypedDict, total=False):
    """The options of a run, besides its flow and params."""

    shared: Mapping[str, Any]
    version: int
    request_id: str
    session_id: str
    priority: PriorityWord
    delay_ms: int


class RunFilter(TypedDict, total=False):
    flow: str | None
    state: str | None
    cursor: str | None
    limit: int | None


class OperationOptions(TypedDict, total=False):
    """Which tasks: all that is given must hold, or `all`, or those with these `ids`. And how."""

    ids: Sequence[str]
    state: str | Sequence[str]
    type: str
    queue: str
    partition: str
    tag: str | Sequence[str]
    batch: str
    session: str
    owner: str
    q: str
    created_after: int
    created_before: int
    finished_after: int
    finished_before: int
    not_type: str | Sequence[str]
    not_queue: str | Sequence[str]
    not_session: str | Sequence[str]
    not_tag: str | Sequence[str]
    not_batch: str | Sequence[str]
    not_partition: str | Sequence[str]
    all: bool
    dry_run: bool
    rate: float


class ClientPart:
    """A part of a client."""

    def __init__(self, api: ServerApi, wait_for: WaitFor) -> None:
        self._api = api
        self._wait_for = wait_for


class Queues(ClientPart):
    """`client.queues`: what waits where. A paused queue takes tasks and hands none out."""

    async def list(self) -> Page[QueueView]:
        """By name: those with tasks, with workers, or paused."""
        return await self._api.call(Page[QueueView], "GET", "queues")

    async def pause(
        self, name: str, *, by: str | None = None, reason: str | None = None
    ) -> QueueView:
        """Work is still accepted and what runs goes on; nothing more is handed out."""
        body = Pause(by=by, reason=reason)
        return await self._api.call(QueueView, "POST", "queues", name, "pause", body=body)

    async def resume(self, name: str) -> QueueView:
        """Hand its tasks out again."""
        return await self._api.call(QueueView, "POST", "queues", name, "resume")


class Operations(ClientPart):
    """One verb for all tasks that a filter matches; the server goes on with it by itself."""

    async def cancel(self, **which: Unpack[OperationOptions]) -> OperationView:
        """Over at once, or asked to stop if they run."""
        return await self._begin("cancel", which)

    async def retry(self, **which: Unpack[OperationOptions]) -> OperationView:
        """From the beginning again, however they ended."""
        return await self._begin("retry", which)

    async def delete(self, **which: Unpack[OperationOptions]) -> OperationView:
        """Finished tasks are forgotten."""
        return await self._begin("delete", which)

    async def _begin(self, verb: str, which: OperationOptions) -> OperationView:
        given: dict[str, Any] = {**which}
        names = ("ids", "dry_run", "rate")
        body: dict[str, Any] = {name: given.pop(name) for name in names if name in given}
        if given or "ids" not in body:
            body["filter"] = given
        # Not sent twice: what a cut call has begun is in the list.
        return await self._api.call(OperationView, "POST", "tasks", verb, body=body)

    async def list(
        self, *, cursor: str | None = None, limit: int | None = None
    ) -> Page[OperationView]:
        """Newest first."""
        page = {"cursor": cursor, "limit": limit}
        return await self._api.call(Page[OperationView], "GET", "operations", **page)

    async def get(self, id: str) -> OperationView:
        """How far it is."""
        return await self._api.call(OperationView, "GET", "operations", id)

    async def wait(self, id: str) -> OperationView:
        """Until it is over."""
        while True:
            found = await self._api.call(
                OperationView, "GET", "operations", id, wait_ms=LONG_POLL_MS
            )
            if found.over:
                return found

    async def stop(self, id: str) -> OperationView:
        """It goes no further; what is done stays done."""
        return await self._api.call(OperationView, "POST", "operations", id, "cancel")


class Limits(ClientPart):
    """Limits that services share."""

    async def list(self) -> Page[LimitView]:
        """Those that services share, by name, with how far they are used up."""
        return await self._api.call(Page[LimitView], "GET", "limits")

    async def get(self, name: str) -> LimitView:
        """How far it is used up."""
        return await self._api.call(LimitView, "GET", "limits", name)

    async def put(
        self,
        name: str,
        *,
        concurrency: Concurrency | None = None,
        rate: Sequence[RateLimit] = (),
    ) -> LimitView:
        """Made, or replaced by this one; it holds within a second on every server."""
        body = LimitBody(concurrency=concurrency, rate=tuple(rate))
        return await self._api.call(LimitView, "PUT", "limits", name, body=body)

    async def remove(self, name: str) -> None:
        """Services that name it are not limited by it any more."""
        await self._api.tell("DELETE", "limits", name)


class Schedules(ClientPart):
    """`client.schedules`: work at its times, once, at intervals or by cron."""

    async def list(
        self, *, cursor: str | None = None, limit: int | None = None
    ) -> Page[ScheduleView]:
        """By name."""
        page = {"cursor": cursor, "limit": limit}
        return await self._api.call(Page[ScheduleView], "GET", "schedules", **page)

    async def get(self, name: str) -> ScheduleDetail:
        """With its next instants, and what became of the last ones."""
        return await self._api.call(ScheduleDetail, "GET", "schedules", name)

    async def create(self, /, name: str, **fields: Any) -> ScheduleDetail:
        """With the fields of a `ScheduleBody`. 409: there is another schedule of this name."""
        body = ScheduleBody(name=name, **fields)
        # The same once more is the same schedule, so it may be sent again after a cut.
        return await self._api.call(ScheduleDetail, "POST", "schedules", body=body, key=new_key())

    async def put(self, /, name: str, **fields: Any) -> ScheduleDetail:
        """Created, or replaced by one with these fields of a `ScheduleBody`."""
        body = ScheduleBody(**fields)
        return await self._api.call(ScheduleDetail, "PUT", "schedules", name, body=body)

    async def pause(self, name: str) -> ScheduleDetail:
        """No more runs until `resume`; those that fall into the pause are not made up for."""
        return await self._api.call(ScheduleDetail, "POST", "schedules", name, "pause")

    async def resume(self, name: str) -> ScheduleDetail:
        """Run it at its times again."""
        return await self._api.call(ScheduleDetail, "POST", "schedules", name, "resume")

    async def trigger(self, name: str) -> TaskView:
        """Run it now, beside its times; returns the task."""
        return await self._api.call(TaskView, "POST", "schedules", name, "trigger", key=new_key())

    async def remove(self, name: str) -> None:
        """Its tasks stay."""
        await self._api.tell("DELETE", "schedules", name)


class Flows(ClientPart):
    """`client.flows`: definitions by name and version, and what starts runs of them."""

    async def list(self) -> Page[FlowView]:
        """By name, each with its newest version."""
        return await self._api.call(Page[FlowView], "GET", "flows")

    async def get(self, flow: str, version: int | None = None) -> FlowView:
        """With its newest version, or with the one that is asked for."""
        which = () if version is None else ("versions", str(version))
        return await self._api.call(FlowView, "GET", "flows", flow, *which)

    async def publish(self, flow: str | Flow, definition: Any = None) -> FlowView:
        """The next version of the flow of this name, which is made if there is none.

        Takes a name and a definition, or a flow of the builder that has a name.
        """
        name: Any = flow
        if not isinstance(flow, str):
            definition = flow.definition()
            name = definition.get("name")
        body = CreateFlow(name=name, definition=definition)
        return await self._api.call(FlowView, "POST", "flows", body=body)

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
        key = options.get("request_id") or new_key()
        given: dict[str, Any] = {**options, "request_id": key}
        body = StartRun(flow=flow, params=dict(params or {}), **given)
        return await self._api.call(RunView, "POST", "runs", body=body, key=key, wait_ms=wait_ms)

    async def run(
        self,
        flow: str,
        params: Mapping[str, Any] | None = None,
        *,
        wait_ms: int | None = None,
        **options: Unpack[RunOptions],
    ) -> dict[str, Any]:
        """Start, wait, and return the final shared state; TaskFailed if there is none."""

        async def begin(first_ms: int) -> TaskView:
            return await self.start(flow, params, wait_ms=first_ms, **options)

        return dict(result_of(await until_over(begin, self._wait_for, wait_ms)))


class Runs(ClientPart):
    """`client.runs`: runs of flows. A run is a task, too: `client.get` and the like take its id."""

    async def list(self, **filter: Unpack[RunFilter]) -> Page[RunView]:
        """The newest first; `next` of a page is the `cursor` of the one after it."""
        return await self._api.call(Page[RunView], "GET", "runs", **filter)

    async def get(self, id: str) -> RunDetail:
        """With its graph and every attempt of its nodes."""
        return await self._api.call(RunDetail, "GET", "runs", id)

    async def wait(self, id: str, timeout_ms: int | None = None) -> RunDetail:
        """Until it is over, however it ends; StillRunning when the time is over first."""
        await self._wait_for(id, timeout_ms)
        return await self.get(id)

    async def signal(self, id: str, name: str, value: Any = True) -> RunView:
        """`name` is the node that waits, or the shared key that it waits for."""
        body = SignalRun(name=name, value=value)
        return await self._api.call(RunView, "POST", "runs", id, "signal", body=body)

    async def cancel(self, id: str) -> RunView:
        """Its calls are asked to stop, what went well is undone, and then it is canceled."""
        return await self._api.call(RunView, "POST", "runs", id, "cancel")

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
        return await self._api.call(RunView, "POST", "runs", id, "fork", body=body)


class Keys(ClientPart):
    """`client.keys`: the keys of callers, and what was done with them."""

    async def create(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        expires_at: int | None = None,
        rate: KeyRate | None = None,
    ) -> KeyCreated:
        """With its token, which is shown this once."""
        body = CreateKey(name=name, scopes=tuple(scopes), expires_at=expires_at, rate=rate)
        return await self._api.call(KeyCreated, "POST", "keys", body=body)

    async def list(self) -> Page[KeyView]:
        """Without their tokens, which cannot be read again."""
        return await self._api.call(Page[KeyView], "GET", "keys")

    async def revoke(self, id: str) -> None:
        """Within two seconds every server refuses it, and its connections are closed."""
        await self._api.tell("DELETE", "keys", id)

    async def me(self) -> Me:
        """Whose key this client has."""
        return await self._api.call(Me, "GET", "me")

    async def audit(
        self,
        *,
        by: str | None = None,
        action: str | None = None,
        since: int | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> Page[AuditEntry]:
        """Newest first."""
        params = {"by": by, "action": action, "since": since, "cursor": cursor, "limit": limit}
        return await self._api.call(Page[AuditEntry], "GET", "audit", **params)


class Log(ClientPart):
    """`client.log`: who reads the event log, and how far each has come."""

    async def readers(self) -> Page[ReaderView]:
        """The programs that finished tasks wait for, and how far each is behind."""
        return await self._api.call(Page[ReaderView], "GET", "log", "readers")

    async def forget(self, name: str) -> None:
        """Finished tasks no longer wait for it."""
        await self._api.tell("DELETE", "log", "readers", name)


class Encryption(ClientPart):
    """`client.encryption`: under which keys texts rest, and sealing them anew."""

    async def keys(self) -> KeyNames:
        """Their names, not the keys."""
        return await self._api.call(KeyNames, "GET", "encryption")

    async def step(self, after: str = "", *, dry_run: bool = False) -> RotationStep:
        """Seal some texts anew, or only count them; `next` says where the next step begins."""
        body = Rotate(after=after, dry_run=dry_run)
        return await self._api.call(RotationStep, "POST", "encryption", "rotate", body=body)
