"""Carries out runs: letters in, one advance of the engine, a move out. The flow package's only I/O.

A run is a task of its own profile. It is claimed when it has news, goes as far as it can, and parks
with its children born in the same move, so that a server killed at any line leaves either the step
before or the step after. Approving is a person's: the child that asks is a waiting task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET

from onward.core import outcome as outcomes
from onward.core.approval import WAITS, Status, approval_of, ask
from onward.core.coalesce import Coalescer
from onward.core.dispatch import Dispatcher
from onward.core.errors import Conflict, LedgerUnavailable, NotFound
from onward.core.machine import CANCEL
from onward.core.moves import CHILDREN
from onward.core.outcome import Outcome, Parked, Succeeded
from onward.core.policy import Overrides
from onward.core.task import (
    Claimed,
    Instant,
    Json,
    Letter,
    Note,
    Priority,
    Task,
    TaskId,
    encode,
    weight,
)
from onward.faults import Fault
from onward.flow import engine, runs, state
from onward.flow.catalog import FlowCatalog
from onward.flow.parts import Definition
from onward.flow.state import LargeValues, RunState
from onward.flow.step import (
    Cancel,
    ChildCall,
    ChildEnded,
    ChildResult,
    End,
    News,
    RunCanceled,
    RunCompleted,
    RunFailed,
    Signal,
    StepResult,
)
from onward.services.catalog import Catalog, Declared
from onward.services.declarations import as_declared

MAX_NESTED = 16  # runs started by runs
MOST_KNOWN = 8_192  # runs that are remembered
MOST_TEXT = 32 << 20  # characters of theirs, together
MOST_DELAYS = 1_000
CHUNK = 256

_child_ended = msgspec.json.Decoder(ChildEnded).decode


class _Known(msgspec.Struct):
    """A run as it was parked here: its texts, and what is in them."""

    run: Claimed
    start: runs.Start
    state: RunState
    bulk: LargeValues | None
    size: int  # of its texts, in characters
    fresh: bool = True  # not woken since, as far as this process knows


class FlowExecutor:
    def __init__(self, dispatcher: Dispatcher, flows: FlowCatalog, catalog: Catalog) -> None:
        self._dispatcher = dispatcher
        self._flows = flows
        self._catalog = catalog
        self._reads = Coalescer(dispatcher.backend.tasks.get)
        # Runs as they were parked here, oldest first. A hint: one that has changed since, in the
        # ledger, refuses what was decided on it.
        self._known: dict[TaskId, _Known] = {}
        self._size = 0  # of all of them
        self._renewing = False

    def cancel(self, task: Claimed) -> None:
        """A step is over in no time; a run learns of a cancel by letter."""

    async def execute(self, task: Claimed) -> Outcome:
        if task.type == runs.QUESTION and task.profile == runs.NODE:
            return await self._decided(task)
        if task.profile != runs.PROFILE:
            fault = Fault(kind="InvalidInput", message=f"{runs.QUEUE!r} takes only runs of flows")
            return outcomes.Failed(fault)
        start, bulk = self._read(task)
        try:
            definition = await self._definition(start)
        except NotFound as error:
            return outcomes.Failed(Fault(kind="NotFound", message=str(error)))
        before = (
            state.begin(definition, start.shared, at=start.at or None, inside=start.inside)
            if task.journal is None
            else state.decode(task.journal, bulk)
        )
        news = [_news(letter) for letter in task.letters]
        now = self._dispatcher.clock.now()
        ended = [each.child for each in news if isinstance(each, ChildEnded)]
        # A lone answer is nearly always wanted: read at once, it saves an advance that would ask.
        results = dict(await self._answers(ended)) if len(ended) == 1 else {}
        while True:
            step = engine.advance(
                definition,
                before,
                run_id=runs.scope_of(task),
                params=start.params,
                now=now,
                news=news,
                results=results,
                held=_held(task),
            )
            if not step.need:
                break
            results.update(await self._answers(step.need))
        if step.stop:
            await self._stop(step.stop)
        children = [await self._child(call, task, start, now) for call in step.calls]
        outcome, bulk = _outcome(step, len(task.letters), children, bulk)
        if isinstance(outcome, Parked):
            self._remember(task, start, outcome, step.state, bulk)
        return outcome

    def _read(self, run: Claimed) -> tuple[runs.Start, LargeValues | None]:
        """Large texts that were read or written here before are not parsed again."""
        known = self._forget(run.id)
        if known is None or known.run.payload != run.payload:
            return runs.start_of(run.payload), state.read_bulk(run.bulk)
        if known.bulk is not None and known.bulk.text == run.bulk:
            return known.start, known.bulk
        return known.start, state.read_bulk(run.bulk)

    def hear(
        self, letter: Letter, result: Json, now: Instant
    ) -> tuple[Claimed, Parked | Succeeded] | None:
        """What a run that was parked here does about its child's success, if that is plain.

        None: it is woken, claimed and carried out as ever.
        """
        known = self._known.get(letter.to)
        if known is None or not known.fresh:
            return None
        known.fresh = False
        run, start = known.run, known.start
        if not self._dispatcher.slots.idle(runs.QUEUE):
            return None
        published = self._flows.known(start.version)
        if published is None:
            return None
        ended = _news(letter)
        assert isinstance(ended, ChildEnded)  # noqa: S101 narrows for the type checker
        step = engine.advance(
            published.definition,
            known.state,
            run_id=runs.scope_of(run),
            params=start.params,
            now=now,
            news=[ended],
            results={ended.child: ChildResult(value=msgspec.json.decode(result))},
            held=_held(run),
        )
        children = self._plain_children(step, run, now, start.priority)
        if children is None:
            return None
        outcome, bulk = _outcome(step, 0, children, known.bulk)
        if isinstance(outcome, Parked):
            self._remember(run, start, outcome, step.state, bulk)
        elif isinstance(outcome, Succeeded):
            self._forget(run.id)
        else:
            return None
        return run, outcome

    def _plain_children(
        self, step: StepResult, run: Claimed, now: Instant, priority: Priority
    ) -> list[Task] | None:
        """None: something must be read, or stopped, before the step can be made."""
        if step.need or step.stop:
            return None
        if not self._renewing and self._catalog.is_aging(now):
            self._renewing = True
            self._dispatcher.spawn(self._renew())
        children: list[Task] = []
        for call in step.calls:
            declared = self._catalog.known(call.service or "")
            if call.kind != "service" or not self._catalog.is_fresh(declared, now):
                return None
            children.append(_call(call, run, declared, now, priority))
        return children

    async def _renew(self) -> None:
        """Beside the steps: with a catalog that is too old, every run would have to be woken."""
        try:
            with suppress(LedgerUnavailable):  # a step that needs it will say so
                await self._catalog.renew()
        finally:
            self._renewing = False

    def _remember(
        self,
        run: Claimed,
        start: runs.Start,
        parked: Parked,
        after: RunState,
        bulk: LargeValues | None,
    ) -> None:
        self._forget(run.id)
        if parked.waiting_for != CHILDREN:
            return
        text = None if bulk is None else bulk.text
        as_parked = msgspec.structs.replace(
            run, rev=run.rev + 1, journal=parked.journal, bulk=text, letters=()
        )
        size = len(run.payload) + len(parked.journal) + len(text or "")
        self._known[run.id] = _Known(as_parked, start, after, bulk, size)
        self._size += size
        while len(self._known) > MOST_KNOWN or self._size > MOST_TEXT:
            self._forget(next(iter(self._known)))

    def _forget(self, run: TaskId) -> _Known | None:
        known = self._known.pop(run, None)
        if known is not None:
            self._size -= known.size
        return known

    async def _definition(self, start: runs.Start) -> Definition:
        if not start.version:
            raise NotFound(f"no flow {start.flow!r} with a version")
        if start.depth > MAX_NESTED:
            raise NotFound(f"flows start each other more than {MAX_NESTED} deep")
        return (await self._flows.read(start.version)).definition

    async def _decided(self, question: Claimed) -> Outcome:
        """A question is claimed only once a person has approved it; who that was is its result."""
        (found,) = await self._dispatcher.backend.tasks.get([question.id])
        asked = None if found is None else approval_of(found)
        if asked is None or asked.status is not Status.APPROVED:
            return outcomes.Failed(Fault(kind="Rejected", message="nobody approved it"))
        known = {"by": asked.by, "comment": asked.comment}
        return Succeeded(encode({name: text for name, text in known.items() if text is not None}))

    async def _answers(self, ids: Sequence[TaskId]) -> Mapping[TaskId, ChildResult]:
        found: dict[TaskId, ChildResult] = {}
        for at in range(0, len(ids), CHUNK):
            part = ids[at : at + CHUNK]
            # Runs that are advanced side by side read together.
            found.update(zip(part, map(runs.answer_of, await self._reads.many(part)), strict=True))
        return found

    async def _stop(self, children: Sequence[TaskId]) -> None:
        """Asked before the step is written: should we die in between, they are asked again."""

        async def stop(child: TaskId) -> None:
            with suppress(Conflict, NotFound):  # over already
                await self._dispatcher.cancel(child)

        await asyncio.gather(*map(stop, children))

    async def _child(self, call: ChildCall, run: Claimed, start: runs.Start, now: Instant) -> Task:
        if call.kind == "flow":
            return await self._subrun(call, run, start, now)
        if call.kind == "approval":
            payload = encode(
                runs.Asked(run=run.id, node=call.node, input=call.input, params=call.params)
            )
            return Task(
                id=call.id,
                type=runs.QUESTION,
                queue=runs.QUEUE,
                profile=runs.NODE,
                payload=payload,
                created_at=now,
                parent=run.id,
                waiting_for=WAITS,
                approval=ask(payload, now, expires_ms=call.timeout_ms, reason=call.reason).encode(),
            )
        declared = await self._catalog.of(call.service or "")
        return _call(call, run, declared, now, start.priority)

    async def _subrun(self, call: ChildCall, run: Claimed, start: runs.Start, now: Instant) -> Task:
        given = runs.Start(
            flow=call.flow or "",
            params=dict(call.params),
            shared=call.input if isinstance(call.input, dict) else {},
            depth=start.depth + 1,
            priority=start.priority,
        )
        try:
            published = await self._flows.pick(given.flow, call.version)
        except NotFound:  # reported by the child itself, so that the node fails as any other does
            return runs.unpublished_run(call.id, given, now, parent=run.id)
        return runs.new_run(call.id, published, now, given, parent=run.id)


def _call(
    call: ChildCall, run: Claimed, declared: Declared | None, now: Instant, priority: Priority
) -> Task:
    service = call.service or ""
    place = runs.CallPlace(
        node=call.node,
        seq=call.seq,
        index=call.index,
        purpose=call.purpose,
        generation=run.generation,
    )
    task = Task(
        id=call.id,
        type=service,
        queue=service,
        profile=runs.NODE,
        payload=encode(shaped(call, declared)),
        created_at=now,
        priority=priority,
        parent=run.id,
        attempt_ms=call.timeout_ms,
        overrides=_budget(
            call.tries,
            call.workers,
            call.wait_ms,
            call.attempt_delay_ms,
            in_turn=not call.weighted_by_load,
        ),
        journal=encode(place),
    )
    return as_declared(task, declared, refusing=False)  # its run is under way


def shaped(call: ChildCall, declared: Declared | None) -> Any:
    """A call as its service wants it: flow workers take input and params, ours their arguments."""
    schema = None if declared is None else declared.schema.get(call.service or "")
    if not isinstance(schema, Mapping):
        return runs.Called(input=call.input, params=call.params)
    names = schema.get("properties")
    if not isinstance(names, Mapping) or not names:
        return call.input
    if "input" in names:
        return runs.Called(input=call.input, params=call.params)
    known = {name: value for name, value in call.params.items() if name in names}
    if isinstance(call.input, Mapping):
        return {**known, **call.input}
    first = next(iter(schema.get("required") or names))
    return known if call.input is None else {**known, first: call.input}


def _held(run: Claimed) -> int | None:
    """How many bytes the values in a run's memory have at most; it holds them as encoded."""
    return None if run.journal is None else weight(run.journal) + weight(run.bulk)


def _news(letter: Letter) -> News:
    if letter.name == CANCEL:
        return Cancel()
    if letter.name == runs.SIGNAL:
        body = msgspec.json.decode(letter.body)
        return Signal(body["name"], body["value"])
    return _child_ended(letter.body)


@lru_cache(maxsize=1_024)
def _budget(
    tries: int, workers: int, wait_ms: int, attempt_delay_ms: int, *, in_turn: bool
) -> str | None:
    """Calls of one worker, then of the next: as many, and as far apart, as the node says."""
    total = tries * workers
    round_of = [wait_ms] * (tries - 1) + [attempt_delay_ms]
    delays = (round_of * min(workers, MOST_DELAYS // len(round_of) + 1))[: total - 1]
    return Overrides(
        max_retries=total - 1,
        backoff_ms=tuple(delays) or None,
        tries_each=tries,
        in_turn=in_turn,
    ).encode()


def _outcome(
    step: StepResult, seen: int, children: Sequence[Task], bulk: LargeValues | None
) -> tuple[Outcome, LargeValues | None]:
    """What becomes of the run, and its bulk from now on."""
    notes = tuple((note.type, encode(note.data)) for note in step.notes)
    if step.end is not None:
        return _ending(step, step.end, notes), None
    journal, divided = state.divide(step.state, bulk)
    parked = Parked(
        seen=seen,
        journal=journal,
        bulk=UNSET if divided is bulk else None if divided is None else divided.text,
        waiting_for=step.waiting_for or "children",
        until=step.until,
        spawn=children,
        notes=notes,
    )
    return parked, divided


def _ending(step: StepResult, end: End, notes: tuple[Note, ...]) -> Outcome:
    match end:
        case RunCompleted(shared):
            return Succeeded(encode(shared), state.encode(_without_shared(step.state)), notes)
        case RunFailed(kind, message, node):
            where = f"node {node!r}: " if node else ""
            fault = Fault(kind=kind, message=f"{where}{message}", retryable=False)
            return outcomes.Failed(fault, state.encode(step.state), notes)
        case RunCanceled():
            return outcomes.Canceled(state.encode(step.state), notes)


def _without_shared(last: RunState) -> RunState:
    """It is the run's result, and need not be kept twice."""
    first, *rest = last.frames
    return msgspec.structs.replace(last, frames=[msgspec.structs.replace(first, shared={}), *rest])
