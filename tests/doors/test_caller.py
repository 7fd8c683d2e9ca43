"""Who may: a use case without a scope cannot be reached, and one with a scope checks it."""

from __future__ import annotations

import pytest

from onward.core.errors import Forbidden
from onward.doors.route import route
from onward.native.caller import OPERATOR, Caller, Scope, needs, spelled_out


class Marked:
    @needs(Scope.READ)
    async def read(self, caller: Caller) -> None: ...


class HalfMarked(Marked):
    async def write(self, caller: Caller) -> None: ...


def test_a_resource_with_an_unmarked_use_case_stops_the_start() -> None:
    route("GET", "/x", Marked().read)
    with pytest.raises(TypeError, match=r"HalfMarked\.write names no scope"):
        route("GET", "/x", HalfMarked().read)


async def test_a_caller_without_the_scope_is_refused() -> None:
    await Marked().read(OPERATOR)
    await Marked().read(Caller("1", "admin", spelled_out({Scope.ADMIN})))
    with pytest.raises(Forbidden, match="this needs the scope read"):
        await Marked().read(Caller("2", "worker", frozenset({Scope.WORK})))
