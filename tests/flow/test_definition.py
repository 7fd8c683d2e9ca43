"""Reading a definition: every flaw at once, each with its node, in words that help."""

from __future__ import annotations

import random
import time
from itertools import pairwise
from typing import Any

import pytest

from onward.core.errors import Invalid
from onward.flow import definition as definitions
from onward.flow.definition import DefinitionFaults, parse
from onward.flow.nodes import KINDS
from onward.flow.parts import Node
from tests.flow.simulated_run import call, chain, edge, play


def flaws(raw: object) -> list[str]:
    with pytest.raises(DefinitionFaults) as caught:
        parse(raw)
    assert isinstance(caught.value, Invalid)
    return [str(flaw) for flaw in caught.value.flaws]


def of_node(**fields: Any) -> list[str]:
    return flaws({"start": "b", "nodes": {"b": fields}})


@pytest.mark.contract("S4-1")
def test_the_text_of_the_error_names_node_and_fault_and_has_them_all() -> None:
    raw = {
        "start": "a",
        "nodes": {"a": {"kind": "executor"}, "b": {"kind": "foreach"}, "c": {"kind": "timr"}},
        "edges": [edge("a", "", "x")],
    }
    with pytest.raises(DefinitionFaults) as caught:
        parse(raw)
    assert str(caught.value) == (
        "node 'a': service is missing; "
        "node 'b': service is missing; "
        "node 'b': prep.input_key is missing: it says where the list is; "
        "node 'c': unknown kind 'timr'; did you mean 'timer'?; "
        "edges[0].to names no node: 'x'"
    )


NODES: list[tuple[dict[str, Any], str]] = [
    ({}, "kind is missing"),
    ({"kind": 3}, "kind must be text, not 3"),
    ({"kind": "executor"}, "service is missing"),
    ({"kind": "executor", "service": ""}, "service is missing"),
    ({"kind": "executor", "service": 1}, "service must be text, not 1"),
    ({"kind": "local"}, "service is missing"),
    (call(servce="x"), "unknown field 'servce'; did you mean 'service'?"),
    (call(xyzzy=1), "unknown field 'xyzzy'"),
    (call(prep={"inputkey": "x"}), "unknown field 'prep.inputkey'; did you mean 'input_key'?"),
    (call(prep=[]), "prep must be an object, not a list"),
    (call(params=[1]), "params must be an object, not a list"),
    (call(max_retries=-1), "max_retries must be a whole number from 0 to 1000, not -1"),
    (call(max_retries=1.5), "max_retries must be a whole number from 0 to 1000, not 1.5"),
    (call(max_retries=True), "max_retries must be a whole number from 0 to 1000, not True"),
    (call(wait_ms="1s"), "wait_ms must be a whole number from 0 to 315360000000, not '1s'"),
    (call(weighted_by_load="yes"), "weighted_by_load must be true or false, not 'yes'"),
    (call(prep={"input_key": "$shard.x"}),
     "prep.input_key has the unknown root '$shard'; there are $params, $shared, $input"),
    (call(prep={"input_key": "_rt.x"}),
     "prep.input_key reaches into _rt, which belongs to the engine"),
    (call(prep={"input_map": {"a": "$shared._rt"}}),
     "prep.input_map.a reaches into _rt, which belongs to the engine"),
    (call(prep={"input_map": {"a": 1}}), "prep.input_map.a must be text, not 1"),
    (call(post={"output_key": "_rt"}),
     "post.output_key writes to _rt, which belongs to the engine"),
    (call(post={"output_key": "$shared._rt.x"}),
     "post.output_key writes to _rt, which belongs to the engine"),
    (call(post={"output_key": "$params.x"}),
     "post.output_key must be a plain key, not '$params.x'"),
    (call(post={"output_map": {"_rt.pl:x": "a"}}),
     "post.output_map._rt.pl:x writes to _rt, which belongs to the engine"),
    (call(post={"error_key": "_rt"}), "post.error_key writes to _rt, which belongs to the engine"),
    (call(post={"action_key": "$shared._rt.x"}),
     "post.action_key reaches into _rt, which belongs to the engine"),
    (call(compensate={"params": {}}), "compensate.service is missing"),
    (call(compensate={"service": "s", "prep": {"input_key": "_rt"}}),
     "compensate.prep.input_key reaches into _rt, which belongs to the engine"),
    ({"kind": "choice"}, "choice_cases is missing"),
    ({"kind": "choice", "choice_cases": {}}, "choice_cases must be a list, not an object"),
    ({"kind": "choice", "choice_cases": [{"expr": {"eq": [1, 1]}}]},
     "choice_cases[0].action is missing"),
    ({"kind": "choice", "choice_cases": [{"action": "a"}]}, "choice_cases[0].expr is missing"),
    ({"kind": "choice", "choice_cases": [{"action": "a", "expr": {"eq": [1]}}]},
     "choice_cases[0].expr 'eq' takes a list of two, not [1]"),
    ({"kind": "parallel"}, "parallel_services is missing"),
    ({"kind": "parallel", "parallel_services": []}, "parallel_services is missing"),
    ({"kind": "parallel", "parallel_services": ["a", 1]},
     "parallel_services[1] must be text, not 1"),
    ({"kind": "parallel", "params": {"services": ""}}, "parallel_services is missing"),
    ({"kind": "parallel", "params": {"services": [1]}},
     "params.services must be a list of texts, not a list"),
    ({"kind": "parallel", "params": {"services": "a"}},
     "params.services must be a list, or a path to one"),
    ({"kind": "parallel", "parallel_services": ["a"], "parallel_mode": "concurent"},
     "unknown parallel_mode 'concurent'; did you mean 'concurrent'?"),
    ({"kind": "parallel", "parallel_services": ["a"], "failure_strategy": "retry"},
     "unknown failure_strategy 'retry'; there are fail_fast, collect_errors, ignore_errors"),
    ({"kind": "foreach", "service": "s", "prep": {"input_key": "x", "input_map": {"a": "b"}}},
     "prep.input_map makes an object, and foreach goes over a list"),
    ({"kind": "timer"}, "params.delay_ms is missing"),
    ({"kind": "timer", "params": {"delay_ms": -1}},
     "params.delay_ms must be a whole number from 0 to 315360000000, or a path to one"),
    ({"kind": "timer", "params": {"delay_ms": "soon"}},
     "params.delay_ms must be a number of ms, or a path to one"),
    ({"kind": "wait_event", "params": {"signal_key": "$shared._rt.we:x"}},
     "params.signal_key reaches into _rt, which belongs to the engine"),
    ({"kind": "wait_event", "params": {"signal_key": 1}}, "params.signal_key must be a path"),
    ({"kind": "approval", "params": {"from_data": True}},
     "params.approval_key is missing: from_data takes the decision from there"),
    ({"kind": "approval", "params": {"approval_key": "_rt"}},
     "params.approval_key reaches into _rt, which belongs to the engine"),
    ({"kind": "flow_ref"}, "params.flow is missing"),
    ({"kind": "flow_ref", "params": {"flow": "f", "version": 0}},
     "params.version must be a whole number from 1, not 0"),
    ({"kind": "subflow"}, "subflow is missing"),
]  # fmt: skip


@pytest.mark.contract("S4-1", "S4-6")
@pytest.mark.parametrize(("node", "flaw"), NODES, ids=[flaw for _, flaw in NODES])
def test_a_flaw_of_a_node(node: dict[str, Any], flaw: str) -> None:
    assert of_node(**node) == [f"node 'b': {flaw}"]


A = {"a": call()}
GRAPHS: list[tuple[Any, str]] = [
    (None, "the definition must be an object, not null"),
    ([], "the definition must be an object, not a list"),
    ({"nodes": A}, "start is missing"),
    ({"start": "", "nodes": A}, "start is missing"),
    ({"start": "A", "nodes": A}, "start names no node: 'A'"),
    ({"start": "a"}, "nodes is missing or empty"),
    ({"start": "a", "nodes": [call()]}, "nodes must be an object, not a list"),
    ({"start": "a", "nodes": {"a": 1}}, "node 'a': a node must be an object, not 1"),
    ({"start": "a", "nodes": A | {"": call()}}, "node '': a node's key must be text without"),
    ({"start": "a", "nodes": A | {"_rt": call()}}, "node '_rt': a node's key must be text"),
    ({"start": "a", "nodes": A | {"x/y": call()}}, "node 'x/y': a node's key must be text"),
    ({"start": "a", "nodes": A, "edges": {}}, "edges must be a list, not an object"),
    ({"start": "a", "nodes": A, "edges": [1]}, "edges[0] must be an object, not 1"),
    ({"start": "a", "nodes": A, "edges": [{"from": "a"}]}, "edges[0].to is missing"),
    ({"start": "a", "nodes": A, "edges": [edge("aa", "", "a")]},
     "edges[0].from names no node: 'aa'; did you mean 'a'?"),
    ({"start": "a", "nodes": A, "edges": [edge("a", "", "a"), edge("a", "default", "a")]},
     "node 'a': two edges for action 'default'"),
    ({"start": "a", "nodes": A, "edges": [edge("a", "", "a") | {"when": 1}]},
     "unknown field 'edges[0].when'"),
    ({"start": "a", "nodes": A, "max_steps": 0}, "max_steps must be a whole number from 1"),
    ({"start": "a", "nodes": A, "edgs": []}, "unknown field 'edgs'; did you mean 'edges'?"),
    ({"start": "a", "nodes": {"a": {"kind": "subflow", "subflow": {"nodes": A}}}},
     "node 'a': subflow.start is missing"),
    ({"start": "a", "nodes": {"a": {"kind": "subflow", "subflow": chain(("i", {"kind": "x"}))}}},
     "node 'a/i': unknown kind 'x'; there are executor, choice"),
    ({"start": "a", "nodes": {"a": {"kind": "subflow", "subflow": [1]}}},
     "node 'a': subflow must be an object, not a list"),
    ({"start": "a", "nodes": A, "name": object()}, "the definition is not JSON"),
    ({"start": "a", "nodes": A, "name": "\ud800"}, "the definition is not JSON"),
    ({"start": "a", "nodes": A, "description": "x" * definitions.MAX_BYTES},
     "the definition takes 262"),
]  # fmt: skip


@pytest.mark.contract("S4-1")
@pytest.mark.parametrize(("raw", "flaw"), GRAPHS, ids=[flaw for _, flaw in GRAPHS])
def test_a_flaw_of_the_graph(raw: Any, flaw: str) -> None:
    (found,) = flaws(raw)
    assert found.startswith(flaw)


def nested(levels: int) -> dict[str, Any]:
    if levels == 0:
        return chain(("n", call()))
    return chain(("n", {"kind": "subflow", "subflow": nested(levels - 1)}))


def test_limits() -> None:
    parse(nested(definitions.MAX_SUBFLOWS))
    (deep,) = flaws(nested(definitions.MAX_SUBFLOWS + 1))
    assert deep.endswith("n/n': subflows lie more than 8 deep in each other")
    many = {f"n{n}": {"kind": "wait_event"} for n in range(definitions.MAX_NODES + 1)}
    assert flaws({"start": "n0", "nodes": many}) == ["more than 1000 nodes"]
    del many["n1000"]
    parse({"start": "n0", "nodes": many})
    edges = [edge("n0", f"a{n}", "n0") for n in range(definitions.MAX_EDGES + 1)]
    assert flaws({"start": "n0", "nodes": A | {"n0": call()}, "edges": edges}) == [
        "more than 5000 edges"
    ]


def test_many_flaws_are_counted_in_the_text_and_listed_beside_it() -> None:
    raw = {"start": "n0", "nodes": {f"n{n}": {"kind": "executor"} for n in range(50)}}
    with pytest.raises(DefinitionFaults, match=r"and 30 more$") as caught:
        parse(raw)
    assert len(caught.value.flaws) == 50
    assert caught.value.flaws[7].node == "n7"
    assert caught.value.flaws[7].field == "service"


@pytest.mark.parametrize(
    "raw",
    [
        {"start": "a", "nodes": A, **{f"f{n}": 0 for n in range(20_000)}},
        {
            "start": "n0",
            "nodes": {f"n{n}": {"kind": "executr"} for n in range(1_000)},
            "edges": [edge(f"m{n}", "", f"k{n}") for n in range(4_000)],
        },
        {"start": "a", "nodes": {f"{n}/": [] for n in range(1_000)}},
    ],
    ids=["fields", "edges", "keys"],
)
def test_a_definition_full_of_flaws_is_refused_in_no_time(raw: Any) -> None:
    begun = time.process_time()
    assert len(flaws(raw)) >= 1_000
    assert time.process_time() - begun < 3


def test_what_is_doubtful_is_a_warning() -> None:
    raw = {
        "start": "a",
        "nodes": {
            "a": {
                "kind": "choice",
                "service": "s",
                "choice_cases": [{"action": "x", "expr": {"eq": ["$param.n", 1]}}],
            },
            "b": call(),
            "s": {
                "kind": "subflow",
                "subflow": {"start": "i", "nodes": {"i": call(), "j": call()}},
            },
        },
    }
    warnings = [str(warning) for warning in parse(raw).warnings]
    assert warnings == [
        "node 'a': service means nothing on kind 'choice'",
        "node 'a': choice_cases[0].expr: '$param.n' is taken as text: it begins with no root; "
        "write $$param.n if meant",
        "node 's/j': no edge leads here from the start",
        "node 'b': no edge leads here from the start",
        "node 's': no edge leads here from the start",
    ]


@pytest.mark.contract("S4-6")
def test_every_field_of_the_seed_is_read() -> None:
    raw: dict[str, Any] = {
        "kind": "parallel",
        "service": "s",
        "params": {"a": 1},
        "prep": {"input_key": "$params.x", "input_map": {"to": "$shared.from"}},
        "post": {
            "output_key": "out",
            "output_map": {"to": "field"},
            "action_static": "go",
            "action_key": "action",
        },
        "default_action": "else",
        "max_retries": 1,
        "wait_ms": 2,
        "max_attempts": 3,
        "attempt_delay_ms": 4,
        "weighted_by_load": True,
        "choice_cases": [{"action": "a", "expr": {"eq": [1, 1]}}],
        "parallel_services": ["p", "q"],
        "parallel_mode": "concurrent",
        "max_parallel": 5,
        "failure_strategy": "collect_errors",
        "subflow": chain(("i", call())),
    }
    node = parse({"start": "n", "nodes": {"n": raw}}).nodes["n"]
    for field, value in raw.items():
        if field not in ("prep", "post", "choice_cases", "parallel_services", "subflow"):
            assert getattr(node, field) == value
    assert (node.prep.input_key, node.prep.input_map) == ("$params.x", {"to": "$shared.from"})
    assert (node.post.output_key, node.post.output_map) == ("out", {"to": "field"})
    assert (node.post.action_static, node.post.action_key) == ("go", "action")
    assert (node.choice_cases[0].action, node.choice_cases[0].expr) == ("a", {"eq": [1, 1]})
    assert node.parallel_services == ("p", "q")
    assert node.subflow is not None
    assert list(node.subflow.nodes) == ["i"]


@pytest.mark.contract("S4-6")
def test_null_and_empty_mean_not_set_as_clients_that_send_whole_records_mean_it() -> None:
    raw = dict.fromkeys(
        ("params", "prep", "post", "choice_cases", "parallel_services", "subflow", "compensate")
    )
    words = dict.fromkeys(("default_action", "parallel_mode", "failure_strategy"), "")
    zeros = dict.fromkeys(("max_retries", "max_attempts", "max_parallel", "timeout_ms"), 0)
    node = parse({"start": "a", "nodes": {"a": call() | raw | words | zeros}, "edges": None})
    assert node.nodes["a"] == Node(key="a", kind="executor", service="echo")
    assert node.warnings == ()


@pytest.mark.parametrize("empty", ["", None])
def test_empty_params_mean_not_set_too(empty: str | None) -> None:
    raw = chain(
        ("w", {"kind": "wait_event", "params": {"signal_key": empty, "timeout_ms": empty}}),
        ("a", {"kind": "approval", "params": {"approval_key": empty, "timeout_ms": empty}}),
    )
    run = play(raw)
    assert run.steps[-1].until is None
    run.signal("w")
    assert run.steps[-1].until is None
    assert of_node(kind="timer", params={"delay_ms": empty}) == [
        "node 'b': params.delay_ms is missing"
    ]


SEED_EXAMPLES: dict[str, dict[str, Any]] = {
    "timer": {"kind": "timer", "params": {"delay_ms": 3000}, "post": {"action_static": "next"}},
    "foreach": {
        "kind": "foreach",
        "service": "transform",
        "prep": {"input_key": "$shared.items"},
        "params": {"mul": 2.0},
        "post": {"output_key": "mapped", "action_static": "next"},
        "parallel_mode": "concurrent",
        "max_parallel": 8,
    },
    "wait_event": {
        "kind": "wait_event",
        "params": {"signal_key": "$shared.flag", "timeout_ms": 60000},
        "post": {"action_static": "next"},
    },
    "approval": {
        "kind": "approval",
        "params": {"approval_key": "$shared.approval"},
        "post": {"action_key": "approval"},
    },
}


@pytest.mark.contract("S4-6", "S4-7")
def test_the_seeds_examples_are_read_without_a_warning_and_do_what_they_say() -> None:
    keys = list(SEED_EXAMPLES)
    edges = [edge(a, "next", b) for a, b in pairwise(keys)]
    raw = {"start": "timer", "nodes": SEED_EXAMPLES, "edges": edges}
    assert parse(raw).warnings == ()
    run = play(raw, shared={"items": [1, 2], "flag": 1})
    run.approve()
    assert run.shared["mapped"] == [2.0, 4.0]
    assert run.trail("node", "action") == [
        ("timer", "next"),
        ("foreach", "next"),
        ("wait_event", "next"),
        ("approval", "approved"),
    ]


def test_every_kind_is_known_by_a_record_of_its_own_or_none() -> None:
    records = {kind: module.RECORD for kind, module in KINDS.items()}
    assert records == {
        "executor": "ex",
        "local": "ex",
        "flow_ref": "ex",
        "choice": "",
        "subflow": "",
        "parallel": "pl",
        "foreach": "fe",
        "timer": "tm",
        "wait_event": "we",
        "approval": "ap",
    }


def mangled(pick: random.Random, value: Any) -> Any:
    """The same with something put where it does not belong."""
    odd: Any = pick.choice([None, 0, -1, 1.5, True, "", "x", "_rt", "$shared._rt", [], {}, [[]]])
    if isinstance(value, dict) and value and pick.random() < 0.9:
        key = pick.choice(list(value))
        if pick.random() < 0.2:
            return {**value, pick.choice(["x", "_rt", "kind", "start"]): odd}
        return {**value, key: mangled(pick, value[key])}
    if isinstance(value, list) and value and pick.random() < 0.9:
        at = pick.randrange(len(value))
        return [*value[:at], mangled(pick, value[at]), *value[at + 1 :]]
    return odd


@pytest.mark.contract("S4-1")
def test_a_definition_is_read_or_refused_and_never_anything_else() -> None:
    pick = random.Random(1)
    sound: dict[str, Any] = {
        "start": "timer",
        "nodes": {
            **SEED_EXAMPLES,
            "c": {
                "kind": "choice",
                "choice_cases": [{"action": "a", "expr": {"not": {"eq": [1, 2]}}}],
            },
            "s": {"kind": "subflow", "subflow": chain(("i", call()), ("j", call()))},
            "p": {"kind": "parallel", "params": {"services": ["a"]}},
            "u": call(compensate={"service": "s", "prep": {"input_key": "x"}}),
        },
        "edges": [edge("timer", "next", "c"), edge("c", "a", "s")],
    }
    read = refused = 0
    for _ in range(5_000):
        raw = sound
        for _ in range(pick.randint(1, 3)):
            raw = mangled(pick, raw)
        try:
            parse(raw)
            read += 1
        except DefinitionFaults as faults:
            refused += bool(str(faults))
    assert read + refused == 5_000
    assert min(read, refused) > 50
