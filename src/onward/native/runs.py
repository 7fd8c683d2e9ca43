"""Runs of flows: start, list, read, signal, cancel, fork, and the shared state at any step (N-5,
S4-10, S4-14).

A run is a task of one profile; how its steps are made is the flow executor's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec

from onward.core.contract import Key, Query
from onward.core.contract import Page as LedgerPage
from onward.core.dispatch import Dispatcher
from onward.core.errors import Conflict, Invalid, NextStep, NotFound, Step
from onward.core.task import FINAL, Json, State, Task, TaskId, encode, new_id
from onward.flow import graph
from onward.flow.catalog import FlowCatalog
from onward.flow.fork import state_before, unapproved_before, undone_before, visited
from onward.flow.levels import located, paths
from onward.flow.replay import Moment, RunReplay
from onward.flow.runs import (
    PROFILE,
    QUEUE,
    SIGNAL,
    Start,
    memory_of,
    new_run,
    node_of,
    shared_of,
    start_of,
)
from onward.flow.scope import RESERVED, own, reserved
from onward.native.callbacks import check_callback
from onward.native.caller import ACTS, LISTS, READS, Action, Caller, Scope, needs
from onward.native.masking import Masking
from onward.native.notifications.preferences import PreferenceStore
from onward.native.reads import Fits, fitting, get_task
from onward.native.run_log import RUNNING, node_runs, replayed, retry_states
from onward.native.session_keys import marked, scope_of
from onward.native.session_owners import SessionOwners
from onward.native.slow_reads import SlowReads
from onward.native.views import raw, task_view
from onward.wire.base import NodeStatus, Page
from onward.wire.runs import (
    ForkRun,
    NodeRun,
    RunDetail,
    RunQuery,
    RunView,
    SharedQuery,
    SharedView,
    SignalRun,
    StartRun,
)
from onward.wire.tasks import TaskRead, Wait
from onward.workers.http.address import Hosts

KEY_SCOPE = "flows"
AT_A_TIME = 500  # runs read at a time, when most of those before did not fit
ROWS_EACH = 4  # rows of the ledger that a node run is read from: a call, and most of its events


class Runs:
    def __init__(
        self,
        dispatcher: Dispatcher,
        flows: FlowCatalog,
        masking: Masking,
        sessions: SessionOwners,
        preferences: PreferenceStore,
        hosts: Hosts,
    ) -> None:
        self._dispatcher = dispatcher
        self._preferences = preferences
        self._sessions = sessions
        self._hosts = hosts
        self._store = dispatcher.backend.tasks
        self._flows = flows
        self._masking = masking
        self._node_runs: SlowReads[Sequence[NodeRun]] = SlowReads()

    @needs(Scope.SUBMIT)
    async def begin(self, caller: Caller, body: StartRun, *, key: Key | None = None) -> TaskId:
        """A run of the newest version, or of the one that is asked for; under `key`, or under the
        request's own, the first one's run.
        """
        published = await self._flows.pick(body.flow, body.version)
        _check_shared(body.shared)
        await self._masking.refuse_in_run(body.params, "params")
        await self._masking.refuse_in_run(body.shared, "shared")
        if body.callback_url is not None:
            await check_callback(self._hosts, body.callback_url)
        now, session = self._dispatcher.clock.now(), body.session_id
        await self._sessions.use(caller, session)
        priority = await self._preferences.priority(body.priority, session)
        start = Start(params=body.params, shared=body.shared, priority=priority)
        asked = marked(body.request_id, session, caller.key)
        run = new_run(
            new_id(),
            published,
            now,
            start,
            key=asked,
            session=session,
            owner=caller.key,
            run_at=None if body.delay_ms is None else now + body.delay_ms,
            callback_url=body.callback_url,
        )
        if key is None and asked is not None:
            # No digest: a second request with this id gets the same run, whatever else is in it.
            key = Key(scope_of(KEY_SCOPE, session, caller.key), asked, "")
        return (await self._dispatcher.submit(run, key=key)).task

    @needs(Scope.SUBMIT)
    async def start(self, caller: Caller, body: StartRun, query: Wait) -> RunView:
        """In the ledger when this returns; over, if it ended within `wait_ms`."""
        id = await self.begin(caller, body)
        if query.wait_ms:
            await self._dispatcher.wait(id, timeout_ms=query.wait_ms)
        return await self._view(caller, await self._find(caller, id))

    @needs(*LISTS)
    async def list(self, caller: Caller, query: RunQuery) -> Page[RunView]:
        """Newest first."""
        page = await self._page(caller, query)
        asked = query.masked and not query.brief
        views = [await self._view(caller, run, asked, brief=query.brief) for run in page.items]
        return Page(items=tuple(views), next=page.next)

    async def _page(self, caller: Caller, query: RunQuery) -> LedgerPage[Task]:
        if query.id:
            found = await self._store.look(list(dict.fromkeys(query.id)))
            runs = [run for run in found if run and run.profile == PROFILE and caller.sees(run)]
            return LedgerPage(runs, None)
        name = None if query.flow is None else (await self._flows.find(query.flow)).name
        wanted = Query(
            states=frozenset(State(state) for state in query.state),
            profiles=frozenset({PROFILE}),
            type=None if name is None else f"flow:{name}",
            after=query.cursor,
            limit=query.limit,
        )
        return await self._store.find(caller.within(wanted))

    @needs(*READS)
    async def read(self, caller: Caller, run_id: str, query: TaskRead) -> RunDetail:
        """With its graph and every attempt of its nodes."""
        run = await self._find(caller, run_id)
        if query.wait_ms and run.state not in FINAL:
            await self._dispatcher.wait(run_id, timeout_ms=query.wait_ms)
            run = await self._find(caller, run_id)
        rows = await self._rows(run)
        states = _node_states(run, rows)
        try:
            _, definition = await self._flows.read(start_of(run.payload).version)
            nodes, mermaid = graph.outline(definition, states), graph.mermaid(definition, states)
        except NotFound:  # a run of no version: it has failed, and its error says so
            nodes, mermaid = [], ""
        masked = caller.masks(run, query.masked)
        return RunDetail(
            **_fields(await self._view(caller, run, query.masked)),
            nodes=tuple(nodes),
            mermaid=mermaid,
            node_runs=tuple([await self._masked(row, masked) for row in rows]),
        )

    async def _view(
        self, caller: Caller, run: Task, asked: bool = False, *, brief: bool = False
    ) -> RunView:
        return await self._masking.run(run_view(run, brief=brief), caller.masks(run, asked))

    async def _rows(self, run: Task) -> Sequence[NodeRun]:
        async def counted() -> tuple[Sequence[NodeRun], int]:
            rows = await node_runs(self._store, run)
            return rows, len(rows) * ROWS_EACH

        return await self._node_runs.get((run.id, run.generation, run.state in FINAL), counted)

    async def _masked(self, row: NodeRun, masked: bool) -> NodeRun:
        texts = (row.prep_json, row.exec_input_json, row.exec_output_json)
        prep, given, output = await self._masking.texts(masked, *texts)
        return msgspec.structs.replace(
            row, prep_json=prep, exec_input_json=given, exec_output_json=output
        )

    @needs(*READS)
    async def shared(self, caller: Caller, run_id: str, query: SharedQuery) -> SharedView:
        """The shared state before and after a step."""
        run = await self._find(caller, run_id)
        start = start_of(run.payload)
        _, definition = await self._flows.read(start.version)
        replay, _ = await replayed(self._store, run, definition)
        steps = max(replay.moments, default=0)
        moment = replay.moments.get(steps if query.at is None else query.at)
        if moment is None and query.at:
            raise NotFound(f"there is no step {query.at}", hint=f"the run has made {steps}")
        exact = _exact(run, replay)
        if moment is None:
            view = _at_start(start.shared, steps, exact)
        else:
            view = _at_step(moment, steps, exact)
        masked = caller.masks(run, query.masked)
        texts = await self._masking.texts(masked, encode(view.before), encode(view.after))
        before, after = map(raw, texts)
        return msgspec.structs.replace(view, before=before, after=after)

    @needs(*ACTS)
    async def signal(self, caller: Caller, run_id: str, body: SignalRun) -> RunView:
        """To the node that waits for it, or for the shared key that it names."""
        run = await self._find(caller, run_id)
        caller.acts_on(run)
        key = (body.name or body.key or "").removeprefix("$shared.")
        if reserved(key):
            raise Invalid(f"{RESERVED} is the engine's own", pointer="/name")
        letter = encode({"name": key, "value": body.value})
        try:
            await self._dispatcher.signal(run.id, SIGNAL, letter)
        except NotFound:  # it was found: so it is no longer live
            raise Conflict("the run is over") from None
        except Conflict:
            raise Conflict(
                "the run has too many signals that it has not read yet",
                step=NextStep(Step.SIGNAL_LATER, QUEUE),
            ) from None
        return await self._view(caller, await self._find(caller, run.id))

    @needs(*ACTS)
    async def cancel(self, caller: Caller, run_id: str) -> RunView:
        """Over at once, or as soon as what it calls has stopped."""
        run = await self._find(caller, run_id)
        caller.acts_on(run)
        canceled = await self._dispatcher.cancel(run.id)
        await caller.audit(Action.TASK_CANCEL, run.id)
        return await self._view(caller, canceled)

    @needs(Scope.OPERATE)
    async def fork(self, caller: Caller, run_id: str, body: ForkRun) -> RunView:
        """A new run of the same version from this node on; the old one stays as it is."""
        run = await self._find(caller, run_id)
        await self._masking.refuse_in_run(body.shared, "shared")
        forked = await self._fork(caller, run, body)
        await caller.audit(Action.TASK_REPLAY, run.id, forked=forked, from_node=body.from_node)
        return await self._view(caller, await self._find(caller, forked))

    async def _fork(self, caller: Caller, run: Task, body: ForkRun) -> TaskId:
        start, node = start_of(run.payload), body.from_node
        published = await self._flows.read(start.version)
        if located(published.definition, node, {}) is None:
            known = ", ".join(paths(published.definition))
            raise Invalid(
                f"no node {node!r}; there are {known}",
                pointer="/from_node",
                step=NextStep(Step.SHOW_RUN, run.id),
            )
        _check_shared(body.shared or {})
        replay, notes = await replayed(self._store, run, published.definition)
        moment = visited(replay, node)
        undone = undone_before(notes, moment, memory_of(run))
        if undone and not body.anyway:
            raise _would_go_on_undone(node, undone)
        if moment is None or body.shared:
            began = start.at or published.definition.start
            # What a person agreed to was another state: changed since, it is not approved.
            yeses = () if body.shared else notes
            if asked := unapproved_before(published.definition, yeses, began, node):
                if not body.anyway:
                    raise _would_pass_approvals(node, asked, changed=bool(body.shared))
                caller.decides(run)
        begun = state_before(replay, node, body.shared, own(shared_of(run)))
        forked = Start(
            params=start.params,
            shared=begun.shared,
            at=node,
            inside=begun.inside,
            forked_from=run.id,
            priority=start.priority,
        )
        now = self._dispatcher.clock.now()
        task = new_run(new_id(), published, now, forked, session=run.session, owner=run.owner)
        return (await self._dispatcher.submit(task)).task

    # For a door that shows a run's record in columns of its own, and knows no sessions.

    @needs(*READS)
    async def record(self, caller: Caller, run_id: str) -> Task:
        run = await self._find(caller, run_id)
        if run.session is not None:
            raise _no_run(run_id)
        return run

    @needs(*LISTS)
    async def newest(
        self, caller: Caller, states: frozenset[State], fits: Fits, limit: int
    ) -> AsyncIterator[Sequence[Task]]:
        """The newest so many in these states that fit, a part of them at a time."""
        query = Query(states=states, profiles=frozenset({PROFILE}), limit=limit)

        def fit(run: Task) -> bool:
            return run.session is None and fits(run)

        pages = fitting(self._store, caller, query, fit, at_a_time=AT_A_TIME)
        return (page.items async for page in pages)

    @needs(*READS)
    async def retry_states(self, caller: Caller, runs: Sequence[Task]) -> Sequence[Json]:
        return await retry_states(self._store, runs)

    @needs(*READS)
    async def node_runs(self, caller: Caller, run_id: str) -> Sequence[NodeRun]:
        run = await self.record(caller, run_id)
        masked = caller.masks(run)
        return [await self._masked(row, masked) for row in await node_runs(self._store, run)]

    async def _find(self, caller: Caller, id: TaskId) -> Task:
        return await get_task(self._store, caller, id, _is_run, missing=_no_run(id))


def _is_run(task: Task) -> bool:
    return task.profile == PROFILE


def _no_run(id: TaskId) -> NotFound:
    return NotFound(f"no run {id!r}", step=NextStep(Step.LIST_RUNS))


def run_view(run: Task, *, brief: bool = False) -> RunView:
    """`brief`: without what may be megabytes that a list does not show."""
    start, memory = start_of(run.payload), memory_of(run)
    path, task = f"/api/v2/runs/{run.id}", task_view(run, brief=brief)
    links = {
        "self": path,
        **{verb: f"{path}/{verb}" for verb in ("signal", "cancel", "fork")},
        **{verb: task.links[verb] for verb in ("events", "explain")},
    }
    return RunView(
        **_fields(msgspec.structs.replace(task, links=links)),
        flow=start.flow,
        flow_version_id=start.version,
        params=None if brief else start.params,
        shared=None if brief else shared_of(run),
        current_node=node_of(run),
        last_action=None if memory is None else memory.last_action,
        step_count=0 if memory is None else memory.step_count,
        forked_from=start.forked_from,
        waiting_for=run.waiting_for,
    )


def _fields(view: msgspec.Struct) -> dict[str, Any]:
    return msgspec.structs.asdict(view)


def _node_states(run: Task, rows: Sequence[NodeRun]) -> Mapping[str, NodeStatus]:
    """The status of each node's last attempt; that of the current node is running."""
    states = {row.node_key: row.status for row in rows}
    if run.state not in FINAL and memory_of(run) is not None:
        states[node_of(run)] = RUNNING
    return states


def _at_start(shared: Mapping[str, Any], steps: int, exact: bool | None) -> SharedView:
    return SharedView(
        at=0,
        steps=steps,
        node=None,
        kind=None,
        inside=None,
        before=None,
        after=own(shared),
        changed=(),
        unknown={},
        exact=exact,
    )


def _at_step(moment: Moment, steps: int, exact: bool | None) -> SharedView:
    before, after = moment.before, moment.after
    changed = [] if after is None else [key for key in after if after[key] != before.get(key, ...)]
    fresh = [key for key in moment.unknown if key not in moment.unknown_before]
    return SharedView(
        at=moment.seq,
        steps=steps,
        node=moment.node,
        kind=moment.kind,
        inside=moment.node.rpartition("/")[0] or None,
        before=before,
        after=after,
        changed=(*changed, *fresh),
        unknown=moment.unknown,
        exact=exact,
    )


def _exact(run: Task, replay: RunReplay) -> bool | None:
    """Whether the rebuilt states end as the run did; None: it goes on, or a key is unknown."""
    if run.state not in FINAL or replay.unknown or memory_of(run) is None:
        return None
    return own(shared_of(run)) == replay.shared


def _would_go_on_undone(node: str, undone: Sequence[str]) -> Conflict:
    was = "was" if len(undone) == 1 else "were"
    return Conflict(
        f"{', '.join(undone)} {was} undone since, and a fork from {node!r} would not do"
        f" {'it' if len(undone) == 1 else 'them'} again",
        step=NextStep(Step.FORK_ELSEWHERE, undone[0]),
    )


def _would_pass_approvals(node: str, asked: Sequence[str], *, changed: bool) -> Conflict:
    was = "was" if len(asked) == 1 else "were"
    what = " with this state" if changed else ""
    return Conflict(
        f"{', '.join(asked)} {was} not approved{what}, and a fork from {node!r} would not ask",
        step=NextStep(Step.FORK_ELSEWHERE, asked[0]),
    )


def _check_shared(shared: Mapping[str, Any]) -> None:
    if any(map(reserved, shared)):
        raise Invalid(f"shared cannot hold {RESERVED!r}: it is the engine's own", pointer="/shared")
