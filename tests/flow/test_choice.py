"""choice and its expressions: total, bounded, data only."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from onward.flow import expr
from onward.flow.scope import FlowScope
from onward.flow.step import RunCompleted
from tests.flow.simulated_run import call, edge, play

SCOPE = FlowScope(
    params={"n": 5, "s": "abc", "yes": True, "null": None, "list": [1, "two", {"k": 1}]},
    shared={"a": {"b": {"c": 9}}, "_rt": {"x": 1}, "tags": ["red", "blue"], "e": {}, "one": 1},
    input={"x": 2.0, "items": [10, 20]},
)


TRUE: list[Any] = [
    {"eq": ["$params.n", 5]},
    {"eq": ["$params.n", 5.0]},
    {"eq": ["$input.x", 2]},
    {"eq": ["$params.null", None]},
    {"eq": [[1, {"a": [2]}], [1, {"a": [2.0]}]]},
    {"eq": [["$params.n"], [5]]},
    {"ne": ["$params.n", "5"]},
    {"ne": ["$params.yes", 1]},
    {"ne": ["$shared.gone", None]},
    {"gt": ["$params.n", 4]},
    {"ge": ["$params.n", 5]},
    {"lt": ["$params.s", "abd"]},
    {"le": [-1, "$params.n"]},
    {"exists": "$shared.a.b.c"},
    {"exists": "$params.null"},
    {"exists": "$input"},
    {"exists": ["$input.items.1"]},
    {"in": ["red", "$shared.tags"]},
    {"in": ["b", "$params.s"]},
    {"in": ["b", "$shared.a"]},
    {"in": ["$params.n", [1, 5]]},
    {"in": ["$params.n", ["$shared.one", "$params.n"]]},
    {"contains": ["$shared.tags", "blue"]},
    {"contains": ["$params.list", {"k": 1}]},
    {"contains": ["$params.s", "bc"]},
    {"and": [{"gt": ["$params.n", 1]}, {"lt": ["$params.n", 9]}]},
    {"and": []},
    {"or": [{"eq": [1, 2]}, {"eq": [1, 1]}]},
    {"not": {"eq": [1, 2]}},
    {"not": [{"eq": [1, 2]}]},
    {"eq": ["$$params.n", "$$params.n"]},
    {"ne": ["$$params.n", "$params.n"]},
    {"eq": ["$5", "$5"]},
]
FALSE: list[Any] = [
    {"eq": ["$params.n", "5"]},
    {"eq": ["$params.yes", 1]},
    {"eq": [[True], [1]]},
    {"eq": [{"a": False}, {"a": 0}]},
    {"eq": ["$shared.gone", None]},
    {"eq": ["$shared.gone", "$shared.gone"]},
    {"eq": [["$shared.gone"], ["$shared.gone"]]},
    {"ne": ["$params.n", 5]},
    {"gt": ["$params.s", 1]},
    {"lt": ["$params.s", 1]},
    {"ge": ["$params.yes", 0]},
    {"le": [None, None]},
    {"gt": [[2], [1]]},
    {"gt": ["$shared.gone", 1]},
    {"exists": "$shared.a.b.c.d"},
    {"exists": "$input.items.2"},
    {"exists": "$input.items.-1"},
    {"exists": "$input.items.²"},
    {"exists": "$params.s.0"},
    {"exists": "$params.__class__"},
    {"in": [1, "$params.yes"]},
    {"in": [True, [1]]},
    {"in": [1, "123"]},
    {"in": ["x", "$shared.gone"]},
    {"contains": ["$shared.e", []]},
    {"or": []},
    {"not": {"eq": [1, 1]}},
    # No expressions at all.
    None,
    "$params.yes",
    True,
    [],
    {},
    {"eq": [1, 1], "ne": [1, 2]},
    {"eq": [1]},
    {"eq": 1},
    {"and": {"eq": [1, 1]}},
    {"not": 3},
    {"exists": 3},
    {"exists": "abc"},
    {"eval": ["1", "1"]},
]


@pytest.mark.contract("S4-8")
@pytest.mark.parametrize("expression", TRUE, ids=str)
def test_what_holds(expression: Any) -> None:
    assert expr.holds(expression, SCOPE)
    assert list(expr.flaws(expression)) == []


@pytest.mark.contract("S4-8")
@pytest.mark.parametrize("expression", FALSE, ids=str)
def test_what_does_not_hold(expression: Any) -> None:
    assert not expr.holds(expression, SCOPE)


@pytest.mark.contract("S4-8")
@pytest.mark.parametrize("root", ["$shared", "$params", "$input"])
def test_no_expression_reads_the_engines_records(root: str) -> None:
    secret = {"_rt": {"x": 1}, "_rt.x": 1}
    scope = FlowScope(params=secret, shared=secret, input=secret)
    for path in (f"{root}._rt", f"{root}._rt.x"):
        assert not expr.holds({"exists": path}, scope)
        assert list(expr.flaws({"exists": path})) == [
            f"{path!r} reaches into _rt, which belongs to the engine"
        ]
        assert list(expr.flaws({"eq": [1, [path]]}))


@pytest.mark.contract("S4-8")
@pytest.mark.parametrize(
    ("expression", "flaw"),
    [
        ([], "must be an object with one operator, not []"),
        ({"eq": [1, 1], "ne": [1, 2]}, "must be an object with one operator, not {'eq': [1, 1]"),
        ({"equals": [1, 1]}, "has the unknown operator 'equals'; there are and, contains, eq"),
        ({"eq": 1}, "'eq' takes a list of two, not 1"),
        ({"and": {"eq": [1, 1]}}, "'and' takes a list of expressions, not {'eq': [1, 1]}"),
        ({"exists": "x"}, "'exists' takes a path, not 'x'"),
        ({"not": {"or": [{"gt": [1]}]}}, "'gt' takes a list of two, not [1]"),
    ],
)
def test_a_flaw_says_what_is_wrong(expression: Any, flaw: str) -> None:
    (found,) = expr.flaws(expression)
    assert found.startswith(flaw)


def nested(levels: int) -> Any:
    expression: Any = {"eq": [1, 1]}
    for _ in range(levels):
        expression = {"and": [expression]}
    return expression


@pytest.mark.contract("S4-8")
def test_depth_and_size_are_bounded() -> None:
    deepest = expr.MAX_DEPTH - 1
    assert expr.holds(nested(deepest), SCOPE)
    assert list(expr.flaws(nested(deepest))) == []
    for levels in (expr.MAX_DEPTH, 50_000):
        assert list(expr.flaws(nested(levels))) == ["is nested deeper than 32 levels"]
    assert not expr.holds(nested(expr.MAX_DEPTH + 1), SCOPE)
    assert list(expr.flaws({"in": [1, list(range(2_000))]})) == ["has more than 1000 parts"]


@pytest.mark.contract("S4-8")
def test_data_deeper_than_the_stack_is_compared() -> None:
    def deep(last: int) -> Any:
        value: Any = [last]
        for _ in range(20_000):
            value = [value]
        return value

    scope = FlowScope(params={"a": deep(1), "b": deep(1), "c": deep(2)}, shared={})
    assert expr.holds({"eq": ["$params.a", "$params.b"]}, scope)
    assert not expr.holds({"eq": ["$params.a", "$params.c"]}, scope)


@pytest.mark.contract("S4-8")
def test_an_expression_that_would_take_for_ever_is_answered_no() -> None:
    scope = FlowScope(params={"many": [0] * 400_000}, shared={})
    search = {"in": [1, "$params.many"]}
    begun = time.process_time()
    assert not expr.holds({"not": {"or": [search] * 300}}, scope)
    assert time.process_time() - begun < 10
    assert expr.holds({"not": search}, scope)


def test_a_text_that_looks_like_a_path_is_doubted() -> None:
    (doubt,) = expr.doubts({"eq": ["$param.n", "$5"]})
    assert doubt.startswith("'$param.n' is taken as text")


LEAVES: list[Any] = [
    None, True, False, 0, 1, -1, 2.5, float("nan"), float("inf"), 10**30, "", "a", "ab", "$", "$$",
    "$params.a", "$params.a.b", "$params.a.0", "$shared.b", "$shared._rt", "$shared._rt.x",
    "$input", "$input.x", "$inputs", "$$input", "$params.", "$shared..a", "\ud800", "é", [], {},
]  # fmt: skip


def anything(pick: random.Random, depth: int) -> Any:
    roll = pick.random()
    if depth == 0 or roll < 0.35:
        return pick.choice(LEAVES)
    if roll < 0.55:
        return [anything(pick, depth - 1) for _ in range(pick.randrange(4))]
    if roll < 0.7:
        return {pick.choice("abx_"): anything(pick, depth - 1) for _ in range(pick.randrange(3))}
    return {pick.choice(NAMES): anything(pick, depth - 1)}


def expression_like(pick: random.Random, depth: int) -> Any:
    """Mostly well formed, so that the fuzz gets past the first check."""
    name = pick.choice(NAMES)
    if pick.random() < 0.1 or depth == 0:
        return anything(pick, 2)
    if name in ("and", "or"):
        return {name: [expression_like(pick, depth - 1) for _ in range(pick.randrange(4))]}
    if name == "not":
        return {name: expression_like(pick, depth - 1)}
    if name == "exists":
        return {name: pick.choice(LEAVES)}
    return {name: [anything(pick, 2), anything(pick, 2)]}


NAMES = [*sorted(expr.OPERATORS), "xor", ""]


@pytest.mark.contract("S4-8")
def test_no_expression_over_any_scope_raises() -> None:
    pick = random.Random(4)
    answers = {True: 0, False: 0}
    sound = 0
    for _ in range(100_000):
        scope = FlowScope(
            params={"a": anything(pick, 2)},
            shared={"b": anything(pick, 2), "_rt": 1},
            input=anything(pick, 2),
        )
        expression = expression_like(pick, 4)
        answer = expr.holds(expression, scope)
        assert isinstance(answer, bool)
        answers[answer] += 1
        sound += not list(expr.flaws(expression))
        list(expr.doubts(expression))
    assert min(*answers.values(), sound) > 5_000, (answers, sound)


CHOICE = {
    "kind": "choice",
    "prep": {"input_key": "$params.n"},
    "choice_cases": [
        {"action": "huge", "expr": {"gt": ["$input", 100]}},
        {"action": "big", "expr": {"gt": ["$params.n", 10]}},
    ],
}


def branching(**fields: Any) -> dict[str, Any]:
    nodes = {"c": {**CHOICE, **fields}, "huge": call(), "big": call(), "else": call()}
    edges = [edge("c", "huge", "huge"), edge("c", "big", "big"), edge("c", "default", "else")]
    return {"start": "c", "nodes": nodes, "edges": edges}


@pytest.mark.contract("S4-7", "S4-8")
@pytest.mark.parametrize(("n", "node"), [(1000, "huge"), (11, "big"), (10, "else"), ("x", "else")])
def test_the_first_case_that_holds_is_taken(n: Any, node: str) -> None:
    assert [key for (key,) in play(branching(), params={"n": n}).trail("node")] == ["c", node]


@pytest.mark.contract("S4-7")
def test_without_a_hit_the_action_key_and_then_the_default_action_decide() -> None:
    flow = branching(post={"action_key": "way"}, default_action="huge")
    assert play(flow, params={"n": 1}, shared={"way": "big"}).trail("action")[0] == ("big",)
    assert play(flow, params={"n": 1}).trail("action")[0] == ("huge",)
    assert play(flow, params={"n": 50}, shared={"way": "huge"}).trail("action")[0] == ("big",)


@pytest.mark.contract("S4-7")
def test_a_choice_passes_its_input_on_and_writes_one_note() -> None:
    run = play(branching(post={"output_key": "seen"}), params={"n": 11})
    assert run.end == RunCompleted({"seen": 11})
    first = run.notes[0]
    assert (first.type, first.data) == (
        "node.finished",
        {"seq": 1, "node": "c", "kind": "choice", "status": "ok", "action": "big", "input": 11},
    )
