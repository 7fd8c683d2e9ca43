"""A run is the same however often it is forgotten, taken up again, or told the same thing twice."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from onward.faults import Fault
from onward.flow import engine
from onward.flow import state as states
from onward.flow.definition import parse
from onward.flow.parts import Post, Prep
from onward.flow.step import Cancel, ChildEnded, ChildResult, News, RunCompleted, Signal
from tests.flow.simulated_run import Run, call, chain, edge, play
from tests.support import NOW

EVERY_KIND: dict[str, Any] = {
    "start": "first",
    "nodes": {
        "first": call("double", prep={"input_key": "$params.n"}, post={"output_key": "n"}),
        "which": {
            "kind": "choice",
            "choice_cases": [{"action": "go", "expr": {"gt": ["$shared.n", 1]}}],
        },
        "each": {
            "kind": "foreach",
            "service": "odd_fails",
            "prep": {"input_key": "$params.items"},
            "post": {"output_key": "each"},
            "parallel_mode": "concurrent",
            "max_parallel": 2,
            "failure_strategy": "collect_errors",
        },
        "both": {
            "kind": "parallel",
            "parallel_services": ["echo", "boom", "echo"],
            "prep": {"input_key": "n"},
            "post": {"output_key": "both"},
            "failure_strategy": "ignore_errors",
        },
        "sub": {
            "kind": "subflow",
            "prep": {"input_map": {"m": "$shared.n"}},
            "post": {"output_key": "sub"},
            "subflow": chain(
                ("pause", {"kind": "timer", "params": {"delay_ms": 10}}),
                ("deep", call("double", prep={"input_key": "m"}, post={"output_key": "m"})),
                ("event", {"kind": "wait_event", "params": {"signal_key": "flag"}}),
            ),
        },
        "own": call("echo", kind="local", compensate={"service": "echo"}),
        "ask": {"kind": "approval", "params": {"approval_key": "word"}},
        "other": {"kind": "flow_ref", "params": {"flow": "f"}, "post": {"output_key": "other"}},
        "fails": call("boom", post={"error_key": "why"}),
        "last": call("echo", prep={"input_key": "$shared"}, post={"output_map": {"end": "n"}}),
    },
    "edges": [
        edge("first", "", "which"),
        edge("which", "go", "each"),
        edge("each", "", "both"),
        edge("both", "", "sub"),
        edge("sub", "", "own"),
        edge("own", "", "ask"),
        edge("ask", "approved", "other"),
        edge("other", "", "fails"),
        edge("fails", "error", "last"),
    ],
}
PARAMS = {"n": 3, "items": [0, 1, 2, 3, 4]}


def through(run: Run) -> Run:
    run.play()
    run.signal("flag", True)
    run.play()
    run.approve()
    (other,) = (child for child, made in run.open.items() if made.kind == "flow")
    run.answer(other, ChildResult({"done": 1}))
    return run.play()


@pytest.mark.contract("S4-11")
def test_a_run_that_forgets_between_steps_goes_the_way_of_one_that_does_not() -> None:
    forgetful = through(Run(EVERY_KIND, params=PARAMS))
    steady = through(Run(EVERY_KIND, params=PARAMS, forgetful=False))
    assert isinstance(forgetful.end, RunCompleted)
    assert forgetful.end == steady.end
    assert forgetful.steps == steady.steps
    assert forgetful.visible == steady.visible
    assert forgetful.shared["end"] == 6
    assert forgetful.shared["each"][::2] == [0, 20, 40]


@pytest.mark.contract("S4-11")
def test_letters_that_come_twice_or_together_make_no_difference() -> None:
    class Stammering(Run):
        def go(self, *news: News) -> Any:
            old = [ChildEnded(child, ok=True) for child in self.answers if child not in self.open]
            return super().go(*news, *news, *old[:-1])

    # Signals are not letters of that sort: two of them are two.
    stammering = Stammering(EVERY_KIND, params=PARAMS)
    stammering.play()
    Run.go(stammering, Signal("flag", True))
    stammering.play()
    stammering.approve()
    (other,) = (child for child, made in stammering.open.items() if made.kind == "flow")
    stammering.answer(other, ChildResult({"done": 1}))
    stammering.play()
    assert stammering.end == through(Run(EVERY_KIND, params=PARAMS)).end


def test_an_advance_without_news_changes_nothing() -> None:
    run = Run(EVERY_KIND, params=PARAMS)
    run.go()
    before = states.encode(run.state)
    step = run.go()
    assert (step.calls, step.notes, step.stop, step.end) == ((), (), (), None)
    assert states.encode(step.state) == before


def test_what_is_in_the_engines_hands_is_in_nobody_elses() -> None:
    """`_rt` given from outside is not taken, and what is written never lands there."""
    forged = {"_rt": {"tm:t": {"start": 0}}, "_rt.x": 1, "x": 1}
    node = call("echo", prep={"input_key": "$shared"}, post={"output_key": "all"})
    run = play(chain(("a", node)), shared=forged)
    assert run.shared == {"x": 1, "all": {"x": 1}}
    inner = chain(("i", call("echo", prep={"input_key": "$shared"}, post={"output_key": "all"})))
    sub = {"kind": "subflow", "subflow": inner, "prep": {"input_key": "$params"}}
    run = play(chain(("s", sub | {"post": {"output_key": "got"}})), params=forged)
    assert run.shared["got"] == {"x": 1, "all": {"x": 1}}


def test_a_definition_from_laxer_days_cannot_write_there_either() -> None:
    strict = parse(chain(("a", {"kind": "choice", "default_action": "x"})))
    lax = msgspec.structs.replace(
        strict.nodes["a"],
        prep=Prep("$params.x"),
        post=Post(output_key="_rt", output_map={"_rt.tm:a": "y", "z": "y"}),
    )
    definition = msgspec.structs.replace(strict, nodes={"a": lax})
    step = engine.advance(
        definition, states.begin(definition), run_id="r", params={"x": {"y": 1}}, now=NOW
    )
    assert step.end == RunCompleted({"z": 1})


def random_flow(pick: random.Random, depth: int = 0) -> dict[str, Any]:
    """Nodes of any kind, with edges between any two of them."""
    keys = [f"{'abc'[depth]}{n}" for n in range(pick.randint(1, 5))]
    nodes = {key: random_node(pick, depth) for key in keys}
    pairs = {
        (pick.choice(keys), pick.choice(["default", "error", "timeout", "go", "rejected"]))
        for _ in range(pick.randint(0, 8))
    }
    edges = [edge(source, action, pick.choice(keys)) for source, action in sorted(pairs)]
    return {"start": keys[0], "nodes": nodes, "edges": edges, "max_steps": 40}


def random_node(pick: random.Random, depth: int) -> dict[str, Any]:
    service = pick.choice(["echo", "boom", "slow", "params"])
    node: dict[str, Any] = pick.choice(
        [
            call(service),
            call(service, compensate={"service": pick.choice(["echo", "boom"])}),
            {"kind": "choice", "default_action": "go"},
            {"kind": "timer", "params": {"delay_ms": pick.randint(0, 50)}},
            {"kind": "wait_event", "params": {"signal_key": "flag", "timeout_ms": 50}},
            {"kind": "approval", "params": {"approval_key": "word", "timeout_ms": 80}},
            {
                "kind": pick.choice(["foreach", "parallel"]),
                "service": service,
                "parallel_services": [service, "echo"],
                "parallel_mode": pick.choice(["sequential", "concurrent"]),
                "max_parallel": pick.randint(1, 3),
                "failure_strategy": pick.choice(["fail_fast", "collect_errors", "ignore_errors"]),
                "compensate": pick.choice([None, {"service": "echo"}]),
            },
            {"kind": "subflow", "subflow": random_flow(pick, depth + 1)}
            if depth < 2
            else {"kind": "flow_ref", "params": {"flow": "f"}},
        ]
    )
    # An object for subflows, a list for foreach; both must not be read as the other.
    path = "$params.items" if node["kind"] == "foreach" else "$params"
    return {
        **node,
        "prep": {"input_key": path},
        "post": {"output_key": pick.choice(["x", "y"]), "error_key": "why"},
    }


def something(pick: random.Random, run: Run) -> tuple[News, ...]:
    """Any news: work done, a question answered, a signal, a stale letter, a cancel, or time."""
    roll = pick.random()
    if run.open and roll < 0.7:
        some = pick.sample(sorted(run.open), pick.randint(1, len(run.open)))
        return tuple(ended(pick, run, child) for child in some)
    if roll < 0.75:
        return (Signal(pick.choice(["flag", "a0", "b1"]), pick.choice([None, 1])),)
    if roll < 0.8 and run.answers:
        return (ChildEnded(pick.choice(sorted(run.answers)), ok=pick.random() < 0.5),)
    if roll < 0.82:
        return (Cancel(),)
    run.now += pick.choice([1, 20, 100, 20_000])
    return ()


def ended(pick: random.Random, run: Run, child: str) -> ChildEnded:
    made = run.open[child]
    if made.kind == "service":
        return run.work(child)
    fault = pick.choice([None, Fault(kind="Rejected", message="no"), Fault(kind="x", message="y")])
    del run.open[child]
    run.answers[child] = ChildResult({"by": "ann"}, fault)
    return ChildEnded(child, fault is None)


@pytest.mark.contract("S4-7", "S4-11")
@pytest.mark.parametrize("seed", range(20))
def test_any_flow_told_anything_ends_and_ends_the_same_when_forgotten(seed: int) -> None:
    """The driver checks at every step: same arguments same step, nothing changed, no id twice."""
    ways: set[str] = set()
    for number in range(25):
        pick = random.Random(f"{seed}/{number}")
        flow = random_flow(pick)
        ends = []
        for forgetful in (True, False):
            luck = random.Random(number)
            run = Run(flow, params={"items": [1, 2, 3]}, forgetful=forgetful)
            run.go()
            for _ in range(3_000):
                if run.end is not None:
                    break
                run.go(*something(luck, run))
            assert run.end is not None, "it hangs"
            assert not run.state.undo
            ends.append((run.end, run.trail(), run.visible, run.made))
        assert ends[0] == ends[1]
        ways.add(type(ends[0][0]).__name__)
    assert len(ways) >= 2
