"""A run of a flow without servers: services are functions, people decide at once, time is given.

`Run` plays the executor: letters become news, calls become children, answers are fetched when they
are needed. With `forgetful` its state goes through its encoded form between any two steps. What the
log tells of the steps is replayed after each of them, and must lead to the same shared state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from onward.core.task import Instant, encode
from onward.faults import Fault
from onward.flow import state as states
from onward.flow.definition import parse
from onward.flow.engine import advance
from onward.flow.replay import EVERYTHING, Ends, RunReplay
from onward.flow.step import (
    Cancel,
    ChildCall,
    ChildEnded,
    ChildResult,
    End,
    News,
    NodeNote,
    Signal,
    StepResult,
)
from tests.support import NOW

REPLAYED = 300  # notes of one run that are gone over after each of its steps

Service = Callable[[Any, Mapping[str, Any]], Any]


class Refused(Exception):
    """A service's failure, with the fault's kind."""

    def __init__(self, kind: str = "Boom", message: str = "it broke") -> None:
        super().__init__(message)
        self.fault = Fault(kind=kind, message=message)


def boom(_: Any, __: Mapping[str, Any]) -> Any:
    raise Refused


def slow(_: Any, __: Mapping[str, Any]) -> Any:
    raise Refused("TIMEOUT", "too slow")


SERVICES: Mapping[str, Service] = {
    "echo": lambda value, _: value,
    "params": lambda _, params: dict(params),
    "double": lambda value, _: value * 2,
    "sum": lambda value, _: sum(value),
    "transform": lambda value, params: value * params.get("mul", 1),
    "route": lambda _, params: {"action": params["action"]},
    "boom": boom,
    "slow": slow,
    "odd_fails": lambda value, params: boom(value, params) if value % 2 else value * 10,
}


class Run:
    def __init__(
        self,
        definition: Mapping[str, Any],
        *,
        params: Mapping[str, Any] | None = None,
        shared: Mapping[str, Any] | None = None,
        services: Mapping[str, Service] | None = None,
        forgetful: bool = True,
        now: Instant = NOW,
    ) -> None:
        self.definition = parse(definition)
        self.params = params or {}
        self.begun_with = shared or {}
        self.state = states.begin(self.definition, shared)
        self.services = {**SERVICES, **(services or {})}
        self.forgetful = forgetful
        self.now = now
        self.answers: dict[str, ChildResult] = {}
        self.first_answers: dict[str, ChildResult] = {}
        self.open: dict[str, ChildCall] = {}
        self.made: list[ChildCall] = []
        self.stopped: list[str] = []
        self.notes: list[NodeNote] = []
        self.steps: list[StepResult] = []
        self.needed: list[tuple[str, ...]] = []
        self.end: End | None = None
        self.most_open = 0

    def go(self, *news: News) -> StepResult:
        """One advance, with every answer that it asks for."""
        known: dict[str, ChildResult] = {}
        before = states.encode(self.state)
        while True:
            step = self._advance(news, known)
            assert states.encode(self.state) == before, "an advance changed what it was given"
            if not step.need:
                return self._taken(step)
            assert step == StepResult(state=self.state, need=step.need), (
                "it asked, and acted as well"
            )
            assert not known.keys() & set(step.need)
            self.needed.append(step.need)
            known |= {child: self.answers[child] for child in step.need}

    def _advance(self, news: tuple[News, ...], known: Mapping[str, ChildResult]) -> StepResult:
        def made(held: int | None = None) -> StepResult:
            return advance(
                self.definition,
                self.state,
                run_id="run",
                params=self.params,
                news=news,
                results=known,
                now=self.now,
                held=held,
            )

        step = made()
        assert made() == step, "the same arguments gave another step"
        held = len(states.encode(self.state).encode())
        assert made(held) == step, "a bound of its size, given, led to another step than a measure"
        return step

    def _taken(self, step: StepResult) -> StepResult:
        assert self.end is None, "a run that is over was advanced"
        assert (step.end is None) is (step.waiting_for is not None)
        fresh = [call.id for call in step.calls]
        assert len({*fresh, *(call.id for call in self.made)}) == len(fresh) + len(self.made)
        self.steps.append(step)
        self.notes.extend(step.notes)
        self.made.extend(step.calls)
        self.stopped.extend(step.stop)
        self.open |= {call.id: call for call in step.calls}
        self.most_open = max(self.most_open, len(self.open))
        for child in step.stop:
            assert self.open.pop(child, None) is not None
            self.answers[child] = ChildResult(fault=Fault(kind="canceled", message="stopped"))
        self.end = step.end
        self.state = states.decode(states.encode(step.state)) if self.forgetful else step.state
        if len(self.notes) <= REPLAYED:
            self._check_replay()
        return step

    def replay(self, *, without: str | None = None) -> RunReplay:
        """Without one of the calls, if its record is to be gone."""
        self.first_answers = {**self.answers, **self.first_answers}  # a task ends once
        known = {call: each for call, each in self.first_answers.items() if call != without}
        many: dict[int, dict[int, ChildResult]] = {}
        for made in self.made:
            if made.id in known:
                many.setdefault(made.seq, {})[made.index] = known[made.id]
        replay = RunReplay(self.definition, self.begun_with, self.params)
        replay.through(self.notes, Ends(known, many))
        return replay

    def _check_replay(self) -> None:
        replayed = self.replay()._frames
        assert len(replayed) == len(self.state.frames)
        for told, real in zip(replayed, self.state.frames, strict=True):
            known = {key: value for key, value in real.shared.items() if key not in told.unknown}
            assert told.shared == known or EVERYTHING in told.unknown

    def work(self, child: str) -> ChildEnded:
        """One child's service does its work."""
        call = self.open.pop(child)
        try:
            self.answers[child] = ChildResult(self._done(call))
        except Refused as refused:
            self.answers[child] = ChildResult(fault=refused.fault)
        return ended(child, self.answers[child])

    def _done(self, call: ChildCall) -> Any:
        assert call.kind == "service"
        assert call.service is not None
        return self.services[call.service](call.input, call.params)

    def answer(self, child: str, answer: ChildResult) -> StepResult:
        self.open.pop(child, None)
        self.answers[child] = answer
        return self.go(ended(child, answer))

    def approve(self, by: str = "ann") -> StepResult:
        return self.answer(self._question(), ChildResult({"by": by}))

    def reject(self) -> StepResult:
        return self.answer(
            self._question(), ChildResult(fault=Fault(kind="Rejected", message="not like this"))
        )

    def _question(self) -> str:
        (child,) = (call.id for call in self.open.values() if call.kind == "approval")
        return child

    def signal(self, name: str, value: Any = None) -> StepResult:
        return self.go(Signal(name, value))

    def cancel(self) -> StepResult:
        return self.go(Cancel())

    def later(self, ms: int) -> StepResult:
        self.now += ms
        return self.go()

    def play(self, *news: News) -> Run:
        """On and on while services have work and clocks are set; one letter at a time."""
        letters: deque[News] = deque(news)
        step = self.go(*letters)
        while self.end is None:
            work = [call.id for call in self.open.values() if call.kind == "service"]
            if work:
                step = self.go(self.work(work[0]))
            elif step.until is not None:
                self.now = max(self.now, step.until)
                step = self.go()
            else:
                return self
        return self

    @property
    def shared(self) -> dict[str, Any]:
        return self.state.frames[0].shared

    @property
    def visible(self) -> dict[str, Any]:
        return states.visible(self.state)

    @property
    def rt(self) -> dict[str, Any]:
        records: dict[str, Any] = self.visible.get("_rt", {})
        return records

    def trail(self, *fields: str) -> list[tuple[Any, ...]]:
        """How nodes ended, in order."""
        wanted = fields or ("node", "status", "action")
        return [
            tuple(note.data.get(field) for field in wanted)
            for note in self.notes
            if note.type == "node.finished"
        ]


def ended(child: str, answer: ChildResult) -> ChildEnded:
    return ChildEnded(child, answer.fault is None, len(encode(answer.fault or answer.value)))


def play(definition: Mapping[str, Any], **how: Any) -> Run:
    return Run(definition, **how).play()


def chain(*nodes: tuple[str, Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    """Nodes one after the other."""
    keys = [key for key, _ in nodes]
    edges = [{"from": a, "to": b} for a, b in pairwise(keys)]
    return {"start": keys[0], "nodes": dict(nodes), "edges": edges, **more}


def call(service: str = "echo", **more: Any) -> dict[str, Any]:
    return {"kind": "executor", "service": service, **more}


def edge(source: str, action: str, target: str) -> dict[str, str]:
    return {"from": source, "action": action, "to": target}
