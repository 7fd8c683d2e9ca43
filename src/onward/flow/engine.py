"""(definition, state, news, results, now) → StepResult: how a run goes on, pure.

It goes through as many nodes as it can, until one waits or the run ends. What a node does is its
kind's word (nodes/); here is decided what follows: what is written, which edge is taken, what a
failure or a cancel leads to. The same arguments give the same step, child ids included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from onward.core.task import Instant, TaskId
from onward.faults import Fault
from onward.flow import state as states
from onward.flow.levels import Level, located
from onward.flow.nodes import KINDS
from onward.flow.nodes.kind import (
    Advance,
    EnterSubflow,
    Missing,
    NodeDone,
    NodeFailed,
    NodeVisit,
    NodeWaits,
)
from onward.flow.notes import finished, started
from onward.flow.parts import DEFAULT, Definition, Node
from onward.flow.scope import ABSENT, FlowScope, descend, outputs, prepare, reserved
from onward.flow.state import CALLS, Frame, NodeFailure, Passed, RunState, Stashed, Undo, Undoing
from onward.flow.step import (
    Cancel,
    ChildCall,
    ChildEnded,
    ChildResult,
    End,
    News,
    NodeNote,
    RunCanceled,
    RunCompleted,
    RunFailed,
    Signal,
    StepResult,
)

INLINE_STEPS = 500  # nodes entered in one advance; then others have their turn
STOP_GRACE_MS = 10_000  # how long a canceled run waits for its children to stop
MAX_SIGNALS = 256  # kept for nodes that are not there yet
MAX_SIGNAL_BYTES = 4 << 20  # of these, together
MOST_NAMED = 10  # names of dropped signals in the log
MAX_SHARED = 16 << 20  # bytes of all values that a run holds

NO_ANSWER = Fault(kind="failed", message="it ended without saying why")


def advance(  # noqa: PLR0913 all that a step depends on
    definition: Definition,
    state: RunState,
    *,
    run_id: str,
    params: Mapping[str, Any],
    now: Instant,
    news: Sequence[News] = (),
    results: Mapping[TaskId, ChildResult] | None = None,
    held: int | None = None,
) -> StepResult:
    """Go on as far as possible. `state` is left as it is; the step has the next one.

    `held`: bytes of the state's values, at most, for a caller who knows without measuring them.
    """
    ended = {each.child: each for each in reversed(news) if isinstance(each, ChildEnded)}
    begun = Advance(run_id, now, ended, results or {}, state.children)
    walk = _Walk(definition, states.copy(state), params, begun, held)
    try:
        return walk.through(news)
    except Missing as missing:
        return StepResult(state=state, need=missing.children)


class _Walk:
    def __init__(
        self,
        definition: Definition,
        state: RunState,
        params: Mapping[str, Any],
        advance: Advance,
        held: int | None,
    ) -> None:
        self.definition = definition
        self.state = state
        self.params = params
        self.advance = advance
        self.notes: list[NodeNote] = []
        self.size = held  # of all values, at most; None: not measured yet
        self.heard_signal = False
        self.levels = [Level(definition, params, ABSENT, "")]
        for frame in state.frames[:-1]:
            self.levels.append(self.levels[-1].inside(frame.node, frame.shared))
        self._stand()

    def _stand(self) -> None:
        """Turns to the innermost graph: another one, after a subflow was entered or left."""
        self.frame, self.level = self.state.frames[-1], self.levels[-1]

    def through(self, news: Iterable[News]) -> StepResult:
        self._hear(news)
        until_pause = INLINE_STEPS
        while True:
            if self.state.canceling and not self.state.winding_up:
                self._halt()
            if self.state.winding_up:
                return self._wind_up()
            if self.frame.seq == 0:
                if until_pause == 0:
                    return self._step(NodeWaits("timer", self.advance.now))
                until_pause -= 1
            step = self._look()
            if step is not None:
                return step

    def _hear(self, news: Iterable[News]) -> None:
        for each in news:
            if isinstance(each, Cancel):
                self.state.canceling = True
            elif isinstance(each, Signal):
                self.heard_signal = True
                name = each.name.removeprefix("$shared.")
                self.state.signals.append(Stashed(name, each.value))

    def _visit(self) -> NodeVisit:
        frame, level = self.frame, self.level
        node = level.graph.nodes[frame.node]
        return NodeVisit(
            node=node,
            path=level.path + node.key,
            seq=frame.seq,
            graph=level.graph,
            scope=level.scope(node, frame.shared),
            records=frame.records,
            record_key=f"{KINDS[node.kind].RECORD}:{node.key}",
            signals=self.state.signals,
            advance=self.advance,
            top=len(self.levels) == 1,
        )

    def _look(self) -> StepResult | None:
        """One look at the node where the run stands. None: it stands at another one now."""
        fresh = self.frame.seq == 0
        if fault := self._barred(fresh):
            self._fail(fault)
            return None
        if fresh:
            self.state.step_count += 1
            self.frame.seq = self.state.step_count
        visit = self._visit()
        kind = KINDS[visit.node.kind]
        match kind.enter(visit) if fresh else kind.resume(visit):
            case NodeWaits() as waits:
                if fresh:
                    self.notes.append(started(visit))
                return self._step(waits)
            case EnterSubflow(shared):
                self.notes.append(started(visit))
                self._descend(visit, shared)
            case NodeDone() as done:
                return self._done(visit, done, fresh)
            case NodeFailed() as failed:
                self._node_failed(visit, failed, fresh)
        return None

    def _barred(self, fresh: bool) -> Fault | None:
        """Why no node can be looked at here."""
        if self.frame.node not in self.level.graph.nodes:
            return Fault(kind="NoSuchNode", message="the definition has no such node")
        limit = self.definition.max_steps
        if fresh and self.state.step_count >= limit:
            return Fault(kind="StepLimit", message=f"more than {limit} steps")
        return None

    def _descend(self, visit: NodeVisit, shared: Mapping[str, Any]) -> None:
        level = self.level.inside(visit.node.key, self.frame.shared)
        frame = Frame(node=level.graph.start, shared=dict(shared))
        if self.state.inside:
            inner = self.state.inside.pop(0)
            frame = Frame(node=inner.node, shared=dict(inner.shared))
        self.levels.append(level)
        self.state.frames.append(frame)
        self._stand()
        self.size = None

    def _done(self, visit: NodeVisit, done: NodeDone, fresh: bool) -> StepResult | None:
        """The node is over, and with the last node of a subflow the subflow too."""
        while True:
            writes = {**outputs(visit.node.post, done.result), **done.writes}
            self._remember(visit, done.result, writes)
            if fault := self._too_large(writes):
                self._node_failed(visit, NodeFailed(fault), fresh)
                return None
            written = self._write(writes)
            scope = visit.scope.with_input(done.result)
            action = done.action or _action(visit.node, scope, written)
            self.notes.append(finished(visit, "ok", action, output=done.result, fresh=fresh))
            if self._leave(visit, action):
                return None
            if len(self.state.frames) == 1:
                self.state.undo.clear()  # it went well; a journal that is kept need not be long
                return self._ended(RunCompleted(self.frame.shared))
            done, fresh = NodeDone(self._ascend()), False
            visit = self._visit()

    def _node_failed(self, visit: NodeVisit, failed: NodeFailed, fresh: bool) -> None:
        """Follows the node's edge for failures; without one, the subflow around it fails too."""
        node = visit.path
        self.size = None  # what a failure writes is not refused: the next value is measured with it
        while True:
            self._write({**outputs(visit.node.post, failed.result), **failed.writes})
            if done := failed.undo or failed.result:
                self._remember(visit, done)  # of several calls some went well
            action = visit.failure_action(failed.fault)
            self.notes.append(finished(visit, "error", action, fault=failed.fault, fresh=fresh))
            if action is not None:
                self._tell(visit.node, failed.fault, node)
                self._leave(visit, action)
                return
            if len(self.state.frames) == 1:
                self._fail(failed.fault, node)
                return
            self._ascend()
            failed, fresh = NodeFailed(failed.fault), False
            visit = self._visit()

    def _tell(self, node: Node, fault: Fault, path: str) -> None:
        if node.post.error_key is not None:
            data = {"kind": fault.kind, "message": fault.message, "node": path}
            self._write({node.post.error_key: data})

    def _write(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        # The definition was read strictly; a run that began under laxer rules is held to the same.
        self.frame.shared.update({key: value for key, value in values.items() if not reserved(key)})
        return self.frame.shared

    def _too_large(self, writes: Mapping[str, Any]) -> Fault | None:
        """Each value is measured as it is written; all of them only if that may be too much."""
        if not writes:
            return None
        if self.size is None:
            self.size = self._measured({})
        self.size += len(msgspec.json.encode(writes))
        if self.size > MAX_SHARED:  # but what is written over counts no more
            self.size = self._measured(writes)
        if self.size <= MAX_SHARED:
            return None
        size, self.size = self.size, None
        message = f"shared would take {size} bytes, more than {MAX_SHARED}: keep large values"
        hint = " elsewhere, and in shared where they are"
        return Fault(kind="LimitExceeded", message=message + hint, retryable=False)

    def _measured(self, writes: Mapping[str, Any]) -> int:
        *outer, inner = [frame.shared for frame in self.state.frames]
        return len(msgspec.json.encode([outer, {**inner, **writes}, self.state.undo]))

    def _remember(
        self, visit: NodeVisit, result: Any, writes: Mapping[str, Any] | None = None
    ) -> None:
        """What must be undone should the run fail later."""
        undo = visit.node.compensate
        if undo is None:
            return
        value = result
        if undo.prep is not None:
            shared = {**self.frame.shared, **(writes or {})}
            value = prepare(undo.prep, FlowScope(visit.scope.params, shared, result))
        self.state.undo.append(Undo(visit.path, None if value is ABSENT else value))
        self.size = None

    def _leave(self, visit: NodeVisit, action: str) -> bool:
        """Along the edge. False: there is none, the graph is over."""
        self.frame.last = self.state.last_action = action
        if visit.record_key.startswith(CALLS + ":"):
            del self.frame.records[visit.record_key]
        target = self.level.graph.successor(visit.node.key, action)
        if target is None:
            return False
        self.frame.node, self.frame.seq = target, 0
        return True

    def _ascend(self) -> Mapping[str, Any]:
        """Back to the subflow's node in the graph around it."""
        inner = self.state.frames.pop()
        self.levels.pop()
        self._stand()
        node = self.level.graph.nodes[self.frame.node]
        self.frame.passed[node.key] = Passed(inner.node, inner.last, node.post.output_key or "")
        return inner.shared

    def _fail(self, fault: Fault, node: str | None = None) -> None:
        path = node or self.level.path + self.frame.node
        self.state.failure = NodeFailure(fault.kind, fault.message, path)
        self.state.winding_up = True

    def _halt(self) -> None:
        """A cancel was asked for: what is out is asked to stop, and no further node is entered."""
        state = self.state
        state.winding_up = True
        if self.frame.node not in self.level.graph.nodes:
            return
        visit = self._visit()
        if visit.seq:  # a record of an earlier visit is of no use now
            visit.hear()
            visit.stop()
            state.stop_by = self.advance.now + STOP_GRACE_MS
        visit.seq = visit.seq or state.step_count + 1
        self.notes.append(finished(visit, "canceled", None))

    def _wind_up(self) -> StepResult:
        """Wait for what was stopped, undo what was done, last things first; then it is over."""
        state = self.state
        if state.stop_by is not None:
            visit = self._visit()
            visit.hear()
            if visit.record.open and self.advance.now < state.stop_by:
                return self._step(NodeWaits("children", state.stop_by))
            state.stop_by = None
            self._remember_so_far(visit)
        if state.undoing is not None:
            ended = self.advance.ended.get(state.undoing.child)
            if ended is None:
                return self._step(NodeWaits("children"))
            self._undone(state.undoing, ended.ok)
        while state.undo:
            if self._undo(state.undo.pop()):
                return self._step(NodeWaits("children"))
        return self._ended(self._last_word())

    def _last_word(self) -> End:
        failure = self.state.failure
        if self.state.canceling or failure is None:
            return RunCanceled()
        return RunFailed(failure.kind, failure.message, failure.node)

    def _remember_so_far(self, visit: NodeVisit) -> None:
        """Calls that went well before they could be stopped have had their effect."""
        if visit.node.compensate is None or visit.node.kind == "approval":
            return
        done = visit.answers(visit.record.done())
        values = [each.value for each in done if each.fault is None]
        single = visit.record_key.startswith(CALLS + ":")
        if values:
            self._remember(visit, values[0] if single else values)

    def _undo(self, undo: Undo) -> bool:
        """False: the definition does not say how (any more)."""
        at = located(self.definition, undo.node, self.params)
        if at is None or at.node.compensate is None:
            return False
        node, how = at.node, at.node.compensate
        self.state.step_count += 1
        call = ChildCall(
            id=self.advance.child(self.advance.number()),
            kind="service",
            purpose="compensation",
            node=undo.node,
            seq=self.state.step_count,
            service=how.service,
            input=undo.input,
            params={**at.params, **how.params},
            tries=node.max_retries + 1,
            workers=node.max_attempts,
            wait_ms=node.wait_ms,
            attempt_delay_ms=node.attempt_delay_ms,
            weighted_by_load=node.weighted_by_load,
            timeout_ms=node.timeout_ms,
        )
        self.advance.calls.append(call)
        self.state.undoing = Undoing(undo.node, call.id, call.seq)
        data = {"seq": call.seq, "node": call.node, "kind": call.purpose, "child": call.id}
        self.notes.append(NodeNote("node.started", data))
        return True

    def _undone(self, undoing: Undoing, ok: bool) -> None:
        data: dict[str, Any] = {"seq": undoing.seq, "node": undoing.node, "kind": "compensation"}
        data |= {"status": "ok" if ok else "error", "child": undoing.child}
        if not ok:
            (answer,) = self.advance.answers([undoing.child])
            fault = answer.fault or NO_ANSWER
            data["error"] = {"kind": fault.kind, "message": fault.message}
        self.notes.append(NodeNote("node.finished", data))
        self.state.undoing = None

    def _step(self, waits: NodeWaits) -> StepResult:
        return self._made(waiting_for=waits.what, until=waits.until)

    def _ended(self, end: End) -> StepResult:
        return self._made(end=end)

    def _made(self, **how: Any) -> StepResult:
        self.state.children = self.advance.numbers
        self._drop_signals()
        advance = self.advance
        return StepResult(
            state=self.state,
            calls=tuple(advance.calls),
            stop=tuple(advance.stop),
            notes=tuple(self.notes),
            **how,
        )

    def _drop_signals(self) -> None:
        """Of those that no node has waited for yet the oldest stay: a flood must not wash them out.

        One note for all: a step with thousands of notes would be more than a ledger takes at once.
        """
        if not self.heard_signal:
            return
        signals, size, kept = self.state.signals, 0, 0
        for signal in signals[:MAX_SIGNALS]:
            size += len(msgspec.json.encode(signal))
            if size > MAX_SIGNAL_BYTES:
                break
            kept += 1
        dropped = signals[kept:]
        del signals[kept:]
        if dropped:
            names = list(dict.fromkeys(signal.name for signal in dropped))[:MOST_NAMED]
            data = {"count": len(dropped), "names": names}
            self.notes.append(NodeNote("signal.dropped", data))


def _action(node: Node, result: FlowScope, shared: Mapping[str, Any]) -> str:
    """Which action a node that went well takes, if its kind does not say."""
    post = node.post
    if post.action_static is not None:
        return post.action_static
    if post.action_key is not None:
        found = descend(result.input, post.action_key)
        if found is ABSENT:
            found = msgspec.structs.replace(result, shared=shared).find(post.action_key)
        if (word := _word(found)) is not None:
            return word
    return node.default_action or DEFAULT


def _word(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return value if isinstance(value, str) and value else None
