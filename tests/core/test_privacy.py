"""Paths into a payload, and what they leave to be seen."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.core.errors import Invalid
from onward.core.task import Event
from onward.faults import Fault
from onward.services.privacy import (
    MASK,
    mask,
    mask_event,
    mask_task,
    mask_text,
    masks_in,
    parse,
)
from onward.wire.paths import ANY, Path
from tests.support import NOW, a_task

KEYS = st.sampled_from(["a", "b", "c", "0", "a/b", "x~y"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "said", MASK]),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(KEYS, parts, max_size=3),
    max_leaves=12,
)
PATHS = st.lists(st.lists(KEYS | st.just(ANY), max_size=3).map(tuple), max_size=3)


@pytest.mark.contract("S2-9")
@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("name", ("name",)),
        ("card.number", ("card", "number")),
        ("people.*.email", ("people", "*", "email")),
        ("/card/number", ("card", "number")),
        ("/people/*/e~1mail~0", ("people", "*", "e/mail~")),
        ("/a.b", ("a.b",)),
        ("$", ()),
    ],
)
def test_a_path_is_dotted_or_a_pointer(path: str, parts: Path) -> None:
    assert parse(path) == parts


@pytest.mark.parametrize(
    "path", ["", ".", "a..b", ".a", "a.", "/", "/a//b", "$.a", "a[0]", "people[*].email", "x" * 501]
)
def test_what_is_no_path_is_refused_with_an_example(path: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(path, pointer="/sensitive/0")
    assert refused.value.pointer == "/sensitive/0"
    assert "card.number" in (refused.value.hint or "")


@pytest.mark.contract("S2-9")
@pytest.mark.parametrize(
    ("path", "value", "seen"),
    [
        ("a", {"a": 1, "b": 2}, {"a": MASK, "b": 2}),
        ("a", {"b": 2}, {"b": 2}),
        ("a", {"a": {"deep": [1]}}, {"a": MASK}),
        ("a.b", {"a": {"b": None, "c": 3}}, {"a": {"b": MASK, "c": 3}}),
        ("a.b", {"a": "flat"}, {"a": "flat"}),
        ("*", {"a": 1, "b": 2}, {"a": MASK, "b": MASK}),
        ("a.*.b", {"a": [{"b": 1}, {"b": 2}]}, {"a": [{"b": MASK}, {"b": MASK}]}),
        ("a.b", {"a": [{"b": 1}, {"c": 2}]}, {"a": [{"b": MASK}, {"c": 2}]}),
        ("a.0", {"a": [1, 2]}, {"a": [MASK, 2]}),
        ("a", [{"a": 1}], [{"a": MASK}]),
        ("$", {"a": 1}, MASK),
        ("a", "a", "a"),
    ],
)
def test_what_a_path_leads_to_is_masked_and_nothing_else(path: str, value: Any, seen: Any) -> None:
    assert mask(value, [parse(path)]) == seen
    assert json.loads(mask_text(json.dumps(value), [parse(path)])) == seen


def test_anywhere_means_from_any_part_on() -> None:
    value = {"input": {"card": {"number": 1}}, "list": [[{"card": {"number": 2, "kind": "x"}}]]}
    seen = {
        "input": {"card": {"number": MASK}},
        "list": [[{"card": {"number": MASK, "kind": "x"}}]],
    }
    assert mask(value, [("card", "number")], anywhere=True) == seen
    assert mask(value, [("card", "number")]) == value


def reached(value: Any, path: Path) -> list[Any]:
    """What a path leads to, told without masking."""
    if not path:
        return [value]
    if isinstance(value, dict):
        parts = [part for key, part in value.items() if path[0] in (ANY, key)]
        return [end for part in parts for end in reached(part, path[1:])]
    if isinstance(value, list):
        return [
            end
            for at, part in enumerate(value)
            for end in reached(part, path[1:] if path[0] in (ANY, str(at)) else path)
        ]
    return []


@given(VALUES, PATHS)
def test_nothing_that_a_path_leads_to_is_left(value: Any, paths: list[Path]) -> None:
    seen = mask(value, paths)
    for path in paths:
        for end in reached(seen, path):
            assert end == MASK
    assert mask(seen, paths) == seen
    if not any(reached(value, path) for path in paths):
        assert seen == value


@given(VALUES, PATHS)
def test_anywhere_masks_at_least_as_much(value: Any, paths: list[Path]) -> None:
    seen = mask(value, paths)
    assert mask(seen, paths, anywhere=True) == mask(value, paths, anywhere=True)


@given(VALUES, PATHS)
def test_a_mask_that_comes_back_is_noticed(value: Any, paths: list[Path]) -> None:
    handed_in = MASK in [end for path in paths for end in reached(value, path)]
    assert (masks_in(value, paths) is not None) == handed_in
    at = masks_in(mask(value, paths), paths)
    assert (at is None) == (not any(reached(value, path) for path in paths))


def test_a_mask_is_found_where_it_stands() -> None:
    assert masks_in({"people": [{"email": "x"}, {"email": MASK}]}, [parse("people.*.email")]) == (
        "/people/1/email"
    )
    assert masks_in({"note": MASK}, [parse("people.*.email")]) is None
    inside = {"input": [{"card": {"number": MASK}}]}
    assert masks_in(inside, [parse("card.number")]) is None
    assert masks_in(inside, [parse("card.number")], anywhere=True) == "/input/0/card/number"


def test_of_a_task_payload_result_and_an_errors_details_are_masked() -> None:
    fault = Fault(kind="Odd", message="free text stays", details={"name": "Ada", "code": 7})
    task = a_task(payload='{"name":"Ada","n":1}', result='{"name":"Ada"}', error=fault.encode())
    seen = mask_task(task, [("name",)])
    assert json.loads(seen.payload) == {"name": MASK, "n": 1}
    assert json.loads(seen.result or "") == {"name": MASK}
    assert json.loads(seen.error or "") == {
        "kind": "Odd",
        "message": "free text stays",
        "details": {"name": MASK, "code": 7},
    }
    bare = a_task(payload="1", error=Fault(kind="Odd", message="no details").encode())
    assert mask_task(bare, [()]).error == bare.error


@pytest.mark.parametrize(
    ("type_", "data", "seen"),
    [
        ("task.chunk", {"name": "Ada", "n": 1}, {"name": MASK, "n": 1}),
        ("task.chunk", "Dear Ada", MASK),
        (
            "task.progress",
            {"progress": 0.5, "message": "half"},
            {"progress": 0.5, "message": "half"},
        ),
        (
            "node.started",
            {"node": "name", "input": {"name": 1}},
            {"node": "name", "input": {"name": MASK}},
        ),
        (
            "task.failed",
            {"attempt": 1, "error": {"kind": "X", "message": "m", "details": {"name": 1}}},
            {"attempt": 1, "error": {"kind": "X", "message": "m", "details": {"name": MASK}}},
        ),
        ("task.created", None, None),
    ],
)
def test_of_an_event_what_it_repeats_is_masked(type_: str, data: Any, seen: Any) -> None:
    event = Event("t", 1, 1, type_, NOW, None if data is None else json.dumps(data))
    shown = mask_event(event, [("name",)]).data
    assert (None if shown is None else json.loads(shown)) == seen
