"""Runs coming in, by whichever of our doors: started, forked, signalled, found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onward.core.contract import Key
from onward.core.dispatch import Dispatcher
from onward.core.errors import Conflict, Invalid, NotFound
from onward.core.task import Task, TaskId, encode, new_id
from onward.doors.flows.past import replayed
from onward.flow.catalog import Flows
from onward.flow.fork import state_before, unapproved_before, undone_before, visited
from onward.flow.levels import located, paths
from onward.flow.runs import PROFILE, QUEUE, SIGNAL, Start, memory_of, new_run, shared_of, start_of
from onward.flow.scope import RESERVED, own, reserved
from onward.native.reads import get_task

SCOPE = "flows"


class Intake:
    profiles = frozenset({PROFILE})

    def __init__(self, dispatcher: Dispatcher, flows: Flows) -> None:
        self.dispatcher = dispatcher
        self._flows = flows

    async def start(
        self, flow: str, start: Start, *, request_id: str | None = None, version: int | None = None
    ) -> TaskId:
        """A run of the newest version, or of the one that is asked for."""
        published = await self._flows.pick(flow, version)
        _check_shared(start.shared)
        run = new_run(new_id(), published, self.dispatcher.clock.now(), start, key=request_id)
        # Whatever else the second request says, it is the same run: that is what its id is for.
        key = None if request_id is None else Key(SCOPE, request_id, "")
        return (await self.dispatcher.submit(run, key=key)).task

    async def fork(
        self, run: Task, node: str, shared: dict[str, Any] | None, *, anyway: bool = False
    ) -> TaskId:
        """A new run of the same version that begins at `node`, with this state or its own."""
        start = start_of(run.payload)
        published = await self._flows.read(start.version)
        if located(published.definition, node, {}) is None:
            known = ", ".join(paths(published.definition))
            raise Invalid(
                f"no node {node!r}; there are {known}",
                pointer="/from_node",
                hint=f"onward run show {run.id}",
            )
        _check_shared(shared or {})
        store = self.dispatcher.backend.tasks
        replay, notes = await replayed(store, run, published.definition)
        moment = visited(replay, node)
        undone = undone_before(notes, moment, memory_of(run))
        if undone and not anyway:
            raise _would_go_on_undone(node, undone)
        if moment is None and not anyway:
            began = start.at or published.definition.start
            if asked := unapproved_before(published.definition, notes, began, node):
                raise _would_pass_approvals(node, asked)
        begun = state_before(replay, node, shared, own(shared_of(run)))
        forked = Start(
            params=start.params,
            shared=begun.shared,
            at=node,
            inside=begun.inside,
            forked_from=run.id,
        )
        task = new_run(new_id(), published, self.dispatcher.clock.now(), forked)
        return (await self.dispatcher.submit(task)).task

    async def signal(self, run: Task, name: str, value: Any) -> Task:
        key = name.removeprefix("$shared.")
        if reserved(key):
            raise Invalid(f"{RESERVED} is the engine's own", pointer="/name")
        try:
            await self.dispatcher.signal(run.id, SIGNAL, encode({"name": key, "value": value}))
        except NotFound:  # it was found: so it is no longer live
            raise Conflict("the run is over") from None
        except Conflict:
            raise Conflict(
                "the run has too many signals that it has not read yet",
                hint=f"send it again later; if its queue is paused: onward queue resume {QUEUE}",
            ) from None
        return await self.find(run.id)

    async def find(self, id: TaskId) -> Task:
        return await get_task(
            self.dispatcher.backend.tasks,
            id,
            lambda found: found.profile == PROFILE and found.session is None,
            missing=NotFound(f"no run {id!r}", hint="GET /api/v2/runs lists what there is"),
        )


def _would_go_on_undone(node: str, undone: Sequence[str]) -> Conflict:
    was = "was" if len(undone) == 1 else "were"
    return Conflict(
        f"{', '.join(undone)} {was} undone since, and a fork from {node!r} would not do"
        f" {'it' if len(undone) == 1 else 'them'} again",
        hint=_elsewhere(undone[0]),
    )


def _would_pass_approvals(node: str, asked: Sequence[str]) -> Conflict:
    was = "was" if len(asked) == 1 else "were"
    return Conflict(
        f"{', '.join(asked)} {was} not approved, and a fork from {node!r} would not ask",
        hint=_elsewhere(asked[0]),
    )


def _elsewhere(node: str) -> str:
    return f'fork from {node!r} (--from {node}), or all the same: "anyway": true (--anyway)'


def _check_shared(shared: Mapping[str, Any]) -> None:
    if any(map(reserved, shared)):
        raise Invalid(f"shared cannot hold {RESERVED!r}: it is the engine's own", pointer="/shared")
