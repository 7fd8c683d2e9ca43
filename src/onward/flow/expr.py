"""Choice expressions: JSON data with one operator an object. Total and bounded; nothing is run.

Whatever the expression and the scope, `holds` answers yes or no and never raises. Unlike types are
unequal and in no order; a boolean is no number. A path that leads nowhere equals nothing, not even
null; `exists` asks whether it leads somewhere, be it to null. `ne` is the opposite of `eq`. A text
that begins with `$params`, `$shared` or `$input` is a path, also inside a list; `$$` escapes.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from onward.flow.scope import ABSENT, FlowScope, is_path, path_flaw

MAX_DEPTH = 32
MAX_SIZE = 1_000
BUDGET = 1_000_000  # single comparisons in one expression; what needs more is answered no

LOGIC = frozenset({"and", "or", "not"})
ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "lt": operator.lt,
    "ge": operator.ge,
    "le": operator.le,
}
PAIRS = frozenset({"eq", "ne", "in", "contains", *ORDERS})
OPERATORS = LOGIC | PAIRS | {"exists"}

_LOOKS_LIKE_A_PATH = re.compile(r"\$[A-Za-z_]+(\.|$)")


def holds(expr: Any, scope: FlowScope) -> bool:
    reading = _Reading(scope)
    return reading.holds(expr, 0) and reading.within_budget


class _Reading:
    def __init__(self, scope: FlowScope) -> None:
        self._scope = scope
        self._budget = BUDGET

    @property
    def within_budget(self) -> bool:
        return self._budget >= 0

    def holds(self, expr: Any, depth: int) -> bool:
        if depth > MAX_DEPTH or not isinstance(expr, Mapping) or len(expr) != 1:
            return False
        ((name, operand),) = expr.items()
        if name in LOGIC:
            return self._logic(name, operand, depth)
        if name == "exists":
            path = _single(operand)
            return isinstance(path, str) and is_path(path) and self._value(path) is not ABSENT
        if name in PAIRS and isinstance(operand, list) and len(operand) == 2:
            return self._pair(name, self._operand(operand[0]), self._operand(operand[1]))
        return False

    def _logic(self, name: str, operand: Any, depth: int) -> bool:
        if name == "not":
            inner = _single(operand)
            return isinstance(inner, Mapping) and not self.holds(inner, depth + 1)
        if not isinstance(operand, list):
            return False
        meant = all if name == "and" else any
        return meant(self.holds(each, depth + 1) for each in operand)

    def _pair(self, name: str, left: Any, right: Any) -> bool:
        if name == "ne":
            return not self._same(left, right)
        if left is ABSENT or right is ABSENT:
            return False
        if name == "eq":
            return self._same(left, right)
        if name == "in":
            return self._within(left, right)
        if name == "contains":
            return self._within(right, left)
        return _ordered(left, right) and ORDERS[name](left, right)

    def _operand(self, operand: Any) -> Any:
        if isinstance(operand, list):
            return [self._value(each) for each in operand]
        return self._value(operand)

    def _value(self, operand: Any) -> Any:
        if not isinstance(operand, str) or not operand.startswith("$"):
            return operand
        if operand.startswith("$$"):
            return operand[1:]
        return self._scope.find(operand) if is_path(operand) else operand

    def _within(self, item: Any, container: Any) -> bool:
        if isinstance(container, list):
            few = container[: self._budget + 1] if self.within_budget else []
            return any(self._same(item, each) for each in few)
        return isinstance(container, str | Mapping) and isinstance(item, str) and item in container

    def _same(self, left: Any, right: Any) -> bool:
        # A list of its own instead of recursion: data may be nested deeper than Python's stack.
        waiting = [(left, right)]
        while waiting:
            one, other = waiting.pop()
            self._budget -= 1
            if self._budget < 0 or one is ABSENT or other is ABSENT:
                return False
            if isinstance(one, list) and isinstance(other, list):
                if len(one) != len(other):
                    return False
                waiting.extend(zip(one, other, strict=True))
            elif isinstance(one, Mapping) and isinstance(other, Mapping):
                if one.keys() != other.keys():
                    return False
                waiting.extend((value, other[key]) for key, value in one.items())
            elif not _alike(one, other) or one != other:
                return False
        return True


def _single(operand: Any) -> Any:
    """`{"not": [e]}` means `{"not": e}`."""
    return operand[0] if isinstance(operand, list) and len(operand) == 1 else operand


def _alike(one: Any, other: Any) -> bool:
    return type(one) is type(other) or (_number(one) and _number(other))


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _ordered(left: Any, right: Any) -> bool:
    return (_number(left) and _number(right)) or (isinstance(left, str) and isinstance(right, str))


def flaws(expr: Any) -> Iterator[str]:
    """What is wrong with an expression, if anything."""
    size, depth = _measure(expr)
    if depth > MAX_DEPTH:
        yield f"is nested deeper than {MAX_DEPTH} levels"
    elif size > MAX_SIZE:
        yield f"has more than {MAX_SIZE} parts"
    else:
        yield from _flaws(expr)


def doubts(expr: Any) -> Iterator[str]:
    """Texts that are taken literally though they look like paths."""
    for text in _texts(expr):
        if _LOOKS_LIKE_A_PATH.match(text) and not is_path(text):
            yield f"{text!r} is taken as text: it begins with no root; write $${text[1:]} if meant"


def _flaws(expr: Any) -> Iterator[str]:
    if not isinstance(expr, Mapping) or len(expr) != 1:
        yield f"must be an object with one operator, not {_shown(expr)}"
        return
    ((name, operand),) = expr.items()
    if name not in OPERATORS:
        yield f"has the unknown operator {name!r}; there are {', '.join(sorted(OPERATORS))}"
    elif name in LOGIC:
        yield from _logic_flaws(name, operand)
    elif name == "exists":
        path = _single(operand)
        if not isinstance(path, str) or not is_path(path):
            yield f"'exists' takes a path, not {_shown(operand)}"
        else:
            yield from _path_flaws(path)
    elif not isinstance(operand, list) or len(operand) != 2:
        yield f"{name!r} takes a list of two, not {_shown(operand)}"
    else:
        for text in _texts(operand):
            yield from _path_flaws(text)


def _logic_flaws(name: str, operand: Any) -> Iterator[str]:
    if name == "not":
        yield from _flaws(_single(operand))
    elif not isinstance(operand, list):
        yield f"{name!r} takes a list of expressions, not {_shown(operand)}"
    else:
        for each in operand:
            yield from _flaws(each)


def _path_flaws(text: str) -> Iterator[str]:
    flaw = path_flaw(text) if is_path(text) else None
    if flaw is not None:
        yield f"{text!r} {flaw}"


def _measure(expr: Any) -> tuple[int, int]:
    """Parts and levels, counted no further than needed to know that there are too many."""
    size = deepest = 0
    waiting = [(expr, 0)]
    while waiting and size <= MAX_SIZE and deepest <= MAX_DEPTH:
        value, depth = waiting.pop()
        size, deepest = size + 1, max(deepest, depth)
        if isinstance(value, Mapping):
            for inner in value.values():
                # `{"and": [e]}` is one level, as it is when read.
                listed = inner if isinstance(inner, list) else [inner]
                waiting.extend((each, depth + 1) for each in listed)
        elif isinstance(value, list):
            waiting.extend((each, depth + 1) for each in value)
    return size, deepest


def _texts(value: Any) -> Iterator[str]:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, list):
            waiting.extend(reversed(each))
        elif isinstance(each, Mapping):
            waiting.extend(each.values())


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
