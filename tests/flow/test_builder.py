"""The builder compiles to the definition that one would write by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from onward.flow.builder import Fan, Flow, exists, given, params, shared, within
from onward.flow.definition import DefinitionFaults, parse
from onward.flow.parts import Node, Post
from tests.flow.simulated_run import edge, play


def review() -> Flow:
    flow = Flow("review", description="from draft to print")
    fetch = flow.executor("fetch", service="fetch", input=params.url, output="doc")
    route = flow.choice("route", {"long": shared.doc.size > 10_000}, default_action="short")
    summary = flow.executor("summarize", service="summarize", output="text", max_retries=2)
    sign_off = flow.approval("sign_off", shared.approval, reason="goes to print")
    publish = flow.executor("publish", service="publish", compensate="unpublish")
    fetch >> route
    route - "long" >> summary >> sign_off
    route - "short" >> sign_off
    sign_off - "approved" >> publish
    return flow


BY_HAND: dict[str, Any] = {
    "name": "review",
    "description": "from draft to print",
    "start": "fetch",
    "nodes": {
        "fetch": {
            "kind": "executor",
            "service": "fetch",
            "prep": {"input_key": "$params.url"},
            "post": {"output_key": "doc"},
        },
        "route": {
            "kind": "choice",
            "choice_cases": [{"action": "long", "expr": {"gt": ["$shared.doc.size", 10_000]}}],
            "default_action": "short",
        },
        "summarize": {
            "kind": "executor",
            "service": "summarize",
            "post": {"output_key": "text"},
            "max_retries": 2,
        },
        "sign_off": {
            "kind": "approval",
            "params": {"approval_key": "$shared.approval", "reason": "goes to print"},
        },
        "publish": {
            "kind": "executor",
            "service": "publish",
            "compensate": {"service": "unpublish"},
        },
    },
    "edges": [
        edge("fetch", "default", "route"),
        edge("route", "long", "summarize"),
        edge("summarize", "default", "sign_off"),
        edge("route", "short", "sign_off"),
        edge("sign_off", "approved", "publish"),
    ],
}


def test_what_is_built_is_what_would_be_written_by_hand() -> None:
    assert review().definition() == BY_HAND
    assert msgspec.json.decode(review().to_json()) == BY_HAND
    assert review().check() == parse(BY_HAND)


def test_what_is_built_runs() -> None:
    services = dict.fromkeys(("fetch", "summarize", "publish"), lambda _, __: {"size": 20_000})
    run = play(review().definition(), services=services)
    run.approve()
    run.play()
    assert [node for (node,) in run.trail("node")] == [
        "fetch",
        "route",
        "summarize",
        "sign_off",
        "publish",
    ]


@pytest.mark.contract("S4-6", "S4-7")
def test_every_kind_and_every_field_can_be_built() -> None:
    inner = Flow()
    inner.local("i", "echo", input=given)
    flow = Flow(max_steps=50)
    first = flow.timer("t", 100)
    last = flow.executor(
        "e",
        "s",
        input={"a": params.x, "b": "key"},
        output={"to": "field"},
        params={"p": 1},
        action_static="go",
        action_key=shared.way,
        default_action="else",
        error_key="why",
        description="words",
        max_retries=1,
        wait_ms=2,
        max_attempts=3,
        attempt_delay_ms=4,
        weighted_by_load=True,
        timeout_ms=5,
        compensate={"service": "u", "prep": {"input_key": given.id}},
    )
    flow.parallel(
        "p",
        ["x", "y"],
        parallel_mode="concurrent",
        max_parallel=2,
        failure_strategy="ignore_errors",
    )
    flow.foreach("f", "s", input=shared["items"], parallel_mode="sequential")
    flow.subflow("s", inner, output="got")
    flow.flow_ref("r", "billing", version=2, params={"x": 1})
    flow.wait_event("w", shared.flag, timeout_ms=params.patience)
    flow.approval("a", shared.ok, timeout_ms=9, from_data=True)
    flow.start(first)
    first - "now" >> last
    built = flow.definition()
    assert built["nodes"]["e"] == {
        "kind": "executor",
        "service": "s",
        "prep": {"input_map": {"a": "$params.x", "b": "key"}},
        "post": {
            "output_map": {"to": "field"},
            "action_static": "go",
            "action_key": "$shared.way",
            "error_key": "why",
        },
        "params": {"p": 1},
        "default_action": "else",
        "description": "words",
        "max_retries": 1,
        "wait_ms": 2,
        "max_attempts": 3,
        "attempt_delay_ms": 4,
        "weighted_by_load": True,
        "timeout_ms": 5,
        "compensate": {"service": "u", "prep": {"input_key": "$input.id"}},
    }
    assert built["nodes"]["p"]["parallel_mode"] == "concurrent"
    assert built["nodes"]["p"]["failure_strategy"] == "ignore_errors"
    assert built["nodes"]["f"]["prep"] == {"input_key": "$shared.items"}
    assert built["nodes"]["f"]["parallel_mode"] == "sequential"
    assert built["nodes"]["r"]["params"] == {"x": 1, "flow": "billing", "version": 2}
    assert built["nodes"]["w"]["params"] == {
        "signal_key": "$shared.flag",
        "timeout_ms": "$params.patience",
    }
    assert built["nodes"]["a"]["params"]["from_data"] is True
    assert (built["start"], built["max_steps"]) == ("t", 50)
    assert {node["kind"] for node in built["nodes"].values()} == {
        "timer",
        "executor",
        "parallel",
        "foreach",
        "subflow",
        "flow_ref",
        "wait_event",
        "approval",
    }
    flow.check()


def test_conditions_read_like_python() -> None:
    flow = Flow()
    flow.choice(
        "c",
        {
            "a": (params.n >= 1) & (params.n <= 9) | ~exists(shared.x),
            "b": (given.kind == "$price") & (shared.a["b"] != params.c),
            "c": within(params.n, [1, params.m]) | (params["a key"] < 3),
            "d": {"exists": "$shared.raw"},
        },
    )
    cases = flow.definition()["nodes"]["c"]["choice_cases"]
    assert [case["expr"] for case in cases] == [
        {
            "or": [
                {"and": [{"ge": ["$params.n", 1]}, {"le": ["$params.n", 9]}]},
                {"not": {"exists": "$shared.x"}},
            ]
        },
        {"and": [{"eq": ["$input.kind", "$$price"]}, {"ne": ["$shared.a.b", "$params.c"]}]},
        {"or": [{"in": ["$params.n", [1, "$params.m"]]}, {"lt": ["$params.a key", 3]}]},
        {"exists": "$shared.raw"},
    ]
    flow.check()


def test_slips_are_told_where_they_are_made() -> None:
    flow, other = Flow(), Flow()
    a, b = flow.executor("a", "s"), other.executor("b", "s")
    with pytest.raises(ValueError, match="'a' and 'b' are nodes of two flows"):
        a >> b
    with pytest.raises(ValueError, match="there is a node 'a' already"):
        flow.timer("a", 1)
    with pytest.raises(TypeError, match="join conditions by"):
        bool(1 < params.n < 3)
    flow.timer("t", "soon")
    with pytest.raises(DefinitionFaults, match=r"node 't': params.delay_ms must be a number"):
        flow.check()


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("inptu", "input"),
        ("retries", "max_retries"),
        ("max_retrys", "max_retries"),
        ("undo", "compensate"),
        ("workers", "max_attempts"),
        ("error", "error_key"),
        ("default", "default_action"),
    ],
)
def test_a_keyword_that_is_unknown_is_refused_with_the_nearest(wrong: str, meant: str) -> None:
    flow = Flow()
    with pytest.raises(TypeError, match=f"executor.. takes no {wrong!r}; did you mean {meant!r}"):
        flow.executor("charge", "charge", **{wrong: 1})  # type: ignore[arg-type]
    assert flow.definition()["nodes"] == {}


def test_a_refusal_names_every_keyword_that_there_is() -> None:
    flow = Flow()
    with pytest.raises(TypeError) as refused:
        flow.approval("g", reasn="x")  # type: ignore[call-arg]
    assert str(refused.value) == (
        "approval() takes no 'reasn'; did you mean 'reason'? it takes approval_key, reason,"
        " timeout_ms, from_data, input, output, params, action_static, action_key, default_action,"
        " error_key, description, compensate"
    )
    with pytest.raises(TypeError, match=r"timer\(\) takes no 'zzz'; it takes delay_ms, input, "):
        flow.timer("t", 1, zzz=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"did you mean 'version'\?"):
        flow.flow_ref("r", "other", verison=2)  # type: ignore[call-arg]


def test_a_keyword_of_another_kind_is_refused_too() -> None:
    flow = Flow()
    with pytest.raises(TypeError, match=r"timer\(\) takes no 'max_retries'"):
        flow.timer("t", 1, max_retries=2)  # type: ignore[call-arg]
    with pytest.raises(
        TypeError, match=r"executor\(\) takes no 'parallel_mode'; it takes service, "
    ):
        flow.executor("e", "s", parallel_mode="concurrent")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"foreach\(\) takes no 'concurrent'.*'parallel_mode'"):
        flow.foreach("f", "s", concurrent=True)  # type: ignore[call-arg]


def test_every_keyword_is_a_field_of_the_definition() -> None:
    short = {"input", "output"}  # of prep and post, whichever fits
    fields = {*Node.__struct_fields__, *Post.__struct_fields__}
    assert {*Fan.__annotations__} - short <= fields
