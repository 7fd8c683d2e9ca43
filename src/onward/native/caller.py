"""Who asks, and what they may. Every use case names its scopes with `@needs`; which tasks it then
finds, and which of them it may change, follows from the caller.

`sees` and `acts_on` decide about one task, `within` about a list. Without keys every caller is the
operator, who may do everything.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import StrEnum
from functools import cache, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import msgspec

from onward.core.approval import awaited
from onward.core.contract import Query
from onward.core.errors import Forbidden, OwnApproval
from onward.core.task import Task

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self")

_SCOPE = "__onward_scope__"


class Scope(StrEnum):
    SUBMIT = "submit"  # hand in work; read, wait for, follow, cancel and signal one's own
    READ = "read"  # everything, sensitive parts masked
    REVEAL = "reveal"  # the same unmasked
    WORK = "work"  # be a worker, of any service or of those named behind a colon
    OPERATE = "operate"  # act on anybody's work
    APPROVE = "approve"  # decide approvals
    APPROVE_OWN = "approve:own"  # also those that the key itself handed in
    ADMIN = "admin"  # all of these but the one before; keys and audit


# Who may look at what has no owner, and at the tasks of all owners.
SEES_ALL = (Scope.READ, Scope.REVEAL, Scope.OPERATE)
# Who may look at a task that they see, at a list of those, and change what is theirs.
READS = (Scope.SUBMIT, Scope.APPROVE, *SEES_ALL)
LISTS = (Scope.SUBMIT, *SEES_ALL)
ACTS = (Scope.SUBMIT, Scope.OPERATE)
ANY_KEY = tuple(Scope)


def spelled_out(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """With all that `admin` includes: a caller's scopes are asked several times a call."""
    given = frozenset(scopes)
    return frozenset(Scope) - {Scope.APPROVE_OWN} | given if Scope.ADMIN in given else given


class Action(StrEnum):
    """What is written down with the name of the key that did it (K-8)."""

    KEY_CREATE = "key.create"
    KEY_REVOKE = "key.revoke"
    LOGIN = "login"
    APPROVAL_DECIDE = "approval.decide"
    TASK_CANCEL = "task.cancel"
    TASK_REPLAY = "task.replay"
    TASK_ABANDON = "task.abandon"
    QUEUE_PAUSE = "queue.pause"
    QUEUE_RESUME = "queue.resume"
    WORKER_DRAIN = "worker.drain"
    SERVICE_DECLARE = "service.declare"
    FLOW_PUBLISH = "flow.publish"
    LIMIT_CHANGE = "limit.change"
    SCHEDULE_CHANGE = "schedule.change"
    OPERATION_START = "operation.start"


class AuditWriter(Protocol):
    """Where it is written down: audit.py."""

    async def write(
        self, by: str | None, action: Action, target: str, detail: Mapping[str, Any]
    ) -> None: ...

    def refuse(self, reason: str, key: str | None) -> None: ...


class Caller(msgspec.Struct, frozen=True):
    key: str | None  # the id of its key; None: there are no keys, or none is needed
    name: str | None
    scopes: frozenset[Scope]  # spelled out
    serves: frozenset[str] | None = None  # services and groups it may work for; None: any
    trail: AuditWriter | None = None

    def has(self, *scopes: Scope) -> bool:
        """One of these."""
        return not self.scopes.isdisjoint(scopes)

    def require(self, *scopes: Scope) -> None:
        if not self.has(*scopes):
            raise self.refusal(f"this needs the scope {' or '.join(scopes)}")

    def refusal(self, message: str) -> Forbidden:
        if self.trail is not None:
            self.trail.refuse("scope", self.key)
        return Forbidden(message)

    def owns(self, task: Task) -> bool:
        return self.key is not None and task.owner == self.key

    def sees(self, task: Task) -> bool:
        """False: to this caller it does not exist."""
        asked = task.approval is not None or awaited(task)
        return self.owns(task) or self.has(*SEES_ALL) or (asked and self.has(Scope.APPROVE))

    def narrowed(self) -> Caller:
        """As one who finds only what is its own, whatever else its key allows."""
        if self.key is None:
            return self
        return msgspec.structs.replace(self, scopes=frozenset({Scope.SUBMIT}))

    def acts_on(self, task: Task) -> None:
        """Forbidden: another key's, which this caller may see but not change."""
        if not self.owns(task):
            self.require(Scope.OPERATE)

    def decides(self, task: Task) -> None:
        """OwnApproval: what a key handed in, another one decides."""
        self.require(Scope.APPROVE)
        if self.owns(task) and not self.has(Scope.APPROVE_OWN):
            if self.trail is not None:
                self.trail.refuse("own_approval", self.key)
            raise OwnApproval(
                "this key handed the task in, so it cannot decide",
                hint="another key with the scope approve can; approve:own would allow it",
            )

    def within(self, query: Query) -> Query:
        """The same query among the tasks that this caller sees."""
        if query.owner not in (None, self.key):  # not its own instead: it asked for others'
            self.require(*SEES_ALL)
        if self.has(*SEES_ALL):
            return query
        return msgspec.structs.replace(query, owner=self.key or "")

    def masks(self, task: Task, asked: bool = False) -> bool:
        """Whether its sensitive parts are hidden: as asked, or because it may not see them."""
        return asked or not (self.owns(task) or self.has(Scope.REVEAL))

    def hides(self, asked: bool = False) -> bool:
        """The same of what has no owner."""
        return asked or not self.has(Scope.REVEAL)

    def may_serve(self, name: str) -> bool:
        """Whether it may be a worker of this service or group."""
        return self.has(Scope.WORK) and (self.serves is None or name in self.serves)

    async def audit(self, action: Action, target: str, **detail: Any) -> None:
        if self.trail is not None:
            await self.trail.write(self.name, action, target, detail)


OPERATOR = Caller(None, None, frozenset(Scope))
ANONYMOUS = Caller(None, None, frozenset())  # without a token, where none is needed


def needs(
    *scopes: Scope,
) -> Callable[
    [Callable[Concatenate[Self, Caller, P], Awaitable[R]]],
    Callable[Concatenate[Self, Caller, P], Awaitable[R]],
]:
    """A use case that needs one of these scopes, whichever door it is reached through. Without any
    it is open, also to a caller who has no key: its route must then be listed in doors/access.py.
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
    resource: Any = type(getattr(use_case, "__self__", None))
    _check_resource(resource)
    scopes: tuple[Scope, ...] | None = getattr(use_case, _SCOPE, None)
    if scopes is None:
        raise TypeError(f"{use_case.__qualname__} names no scope: mark it with @needs")
    return scopes


@cache
def _check_resource(resource: type) -> None:
    for name, method in inspect.getmembers(resource, inspect.iscoroutinefunction):
        if not name.startswith("_") and not hasattr(method, _SCOPE):
            raise TypeError(f"{method.__qualname__} names no scope: mark it with @needs")
