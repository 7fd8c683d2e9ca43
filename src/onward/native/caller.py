"""Who asks, and what they may. Every use case names its scope with `@needs`.

Without keys every caller is the operator, who may do everything.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from enum import StrEnum
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from onward.core.errors import Forbidden

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self")

_SCOPE = "__onward_scope__"


class Scope(StrEnum):
    SUBMIT = "submit"  # hand in work; read, wait for, follow, cancel and signal one's own
    READ = "read"  # everything, sensitive parts masked
    REVEAL = "reveal"  # the same unmasked
    WORK = "work"  # be a worker
    OPERATE = "operate"  # act on anybody's work
    APPROVE = "approve"  # decide approvals
    ADMIN = "admin"  # all of these


class Caller(msgspec.Struct, frozen=True):
    name: str | None
    scopes: frozenset[Scope]

    def require(self, *scopes: Scope) -> None:
        """One of these."""
        if self.scopes.isdisjoint({*scopes, Scope.ADMIN}):
            raise Forbidden(f"this needs the scope {' or '.join(scopes)}")


OPERATOR = Caller(None, frozenset(Scope))


def needs(
    *scopes: Scope,
) -> Callable[
    [Callable[Concatenate[Self, Caller, P], Awaitable[R]]],
    Callable[Concatenate[Self, Caller, P], Awaitable[R]],
]:
    """A use case that needs one of these scopes, whichever door it is reached through. Without any
    it is open: also to a caller who has no key.
    """

    def mark(
        use_case: Callable[Concatenate[Self, Caller, P], Awaitable[R]],
    ) -> Callable[Concatenate[Self, Caller, P], Awaitable[R]]:
        @wraps(use_case)
        async def checked(self: Self, caller: Caller, /, *args: P.args, **named: P.kwargs) -> R:
            if scopes:
                caller.require(*scopes)
            return await use_case(self, caller, *args, **named)

        setattr(checked, _SCOPE, scopes)
        return checked

    return mark


def scopes_of(use_case: Callable[..., Any]) -> tuple[Scope, ...]:
    """TypeError for a function that is not marked, or whose resource has another public one that is
    not: no route may lead to it.
    """
    resource = getattr(use_case, "__self__", None)
    for name, method in inspect.getmembers(resource, inspect.iscoroutinefunction):
        if not name.startswith("_") and not hasattr(method, _SCOPE):
            raise TypeError(f"{method.__qualname__} names no scope: mark it with @needs")
    scopes: tuple[Scope, ...] | None = getattr(use_case, _SCOPE, None)
    if scopes is None:
        raise TypeError(f"{use_case.__qualname__} names no scope: mark it with @needs")
    return scopes
