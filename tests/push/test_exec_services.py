"""What `transform`, `sum` and `route` make of what they are sent (S4-5)."""

from __future__ import annotations

from typing import Any

import pytest

from onward.workers.http.exec_services import InvalidInput, route, sum_, transform


def flow(input: Any, **params: Any) -> dict[str, Any]:
    return {"input": input, "params": params}


@pytest.mark.contract("S4-5")
@pytest.mark.parametrize(
    ("payload", "result"),
    [
        (flow("Ada", op="upper"), "ADA"),
        (flow("Ada", upper=True), "ADA"),
        (flow("Ada", op="lower"), "ada"),
        (flow("Ada", lower=True), "ada"),
        (flow("Ada", upper=False), "Ada"),
        (flow(3, mul=2.0), 6),
        (flow(3, mul=0.5), 1.5),
        (flow(3, op="mul", mul=2), 6),
        (flow([1, 2.5], mul=2), [2, 5]),
        (flow(["a", 2], upper=True, mul=2), ["A", 4]),
        (flow("x", other=1), "x"),
        (flow({"a": 1}), {"a": 1}),
        ("plain", "plain"),
        ({"input": 1}, 1),
        ({"input": 1, "more": 2}, {"input": 1, "more": 2}),
    ],
)
def test_transform(payload: Any, result: Any) -> None:
    answer = transform(payload)
    assert answer == result
    assert type(answer) is type(result)


@pytest.mark.contract("S4-5")
@pytest.mark.parametrize(
    "payload",
    [
        flow("x", mul=2),
        flow(1, upper=True),
        flow(True, mul=2),
        flow(None, upper=True),
        flow({"a": 1}, upper=True),
        flow(1, mul="2"),
        flow(1, mul=True),
        flow(1, op="mul"),
        flow("x", op="shout"),
        flow(1e308, mul=1e308),
    ],
)
def test_transform_refuses_what_it_cannot_do(payload: Any) -> None:
    with pytest.raises(InvalidInput):
        transform(payload)


@pytest.mark.contract("S4-5")
@pytest.mark.parametrize(
    ("payload", "result"),
    [
        (flow([1, 2, 3]), 6),
        (flow([]), 0),
        (flow([0.1] * 10), 1),
        ([1, 2.5], 3.5),
        ({"input": [1, 2]}, 3),
        ({"input": [1, 2], "params": None}, 3),
    ],
)
def test_sum(payload: Any, result: Any) -> None:
    assert sum_(payload) == result


@pytest.mark.contract("S4-5")
@pytest.mark.parametrize("value", [None, 1, "12", [1, "2"], [True], [[1]], {"a": 1}])
def test_sum_wants_numbers(value: Any) -> None:
    with pytest.raises(InvalidInput):
        sum_(flow(value))


@pytest.mark.contract("S4-5")
def test_route() -> None:
    assert route(flow(None, action="goB")) == {"action": "goB"}
    for params in ({}, {"action": ""}, {"action": 1}):
        with pytest.raises(InvalidInput):
            route(flow(None, **params))
