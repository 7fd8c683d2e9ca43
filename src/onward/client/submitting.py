"""Handing work in: by a function that a worker serves, or by the name of a service.

`Client` is one of these without options of its own; `client.options(…)` is another with some.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache, partial
from time import monotonic
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

import msgspec

from onward.client.durations import either, in_ms
from onward.client.errors import TaskFailed
from onward.client.retrying import new_key
from onward.wire.tasks import ApprovalTerms, Debounce, TaskView, Unique

if TYPE_CHECKING:
    from onward.client.api import ServerApi
    from onward.client.batch import Batch
    from onward.client.context import Context
    from onward.client.service import Service

P = ParamSpec("P")
R = TypeVar("R")

LONG_POLL_MS = 20_000
WaitFor: TypeAlias = Callable[[str, int | None], Awaitable[TaskView]]  # a task's id, and ms
SERVED = "__onward_service__"  # on a decorated function: its Service


class Options(TypedDict, total=False):
    """The options of a submission, besides its type and payload.

    `wait` is how long to wait for the end: `submit` returns then with the task as it is, `run`
    raises StillRunning. Each duration may be given in milliseconds instead, as `…_ms`.
    """

    queue: str
    priority: Literal["high", "normal", "low"]
    delay: timedelta
    delay_ms: int
    run_at: datetime | int  # as a number: epoch milliseconds
    idempotency_key: str
    session_id: str
    max_retries: int
    timeout: timedelta
    timeout_ms: int
    backoff: Sequence[timedelta]
    backoff_ms: Sequence[int]
    requires_approval: bool
    approval: ApprovalTerms | Mapping[str, Any]
    callback_url: str  # where the task is posted to, signed, when it is over
    tags: Sequence[str]  # words to find it by
    unique: Unique | Mapping[str, Any]  # no second one while there is one with this key
    debounce: Debounce | Mapping[str, Any]  # of many soon after each other, the newest alone
    partition: str  # of its queue: partitions take turns
    wait: timedelta | None
    wait_ms: int | None


class BatchOptions(Options, total=False):
    """The options of a batch: those of its tasks, and its own."""

    name: str | None
    on_complete: Mapping[str, Any] | None
    webhook: str | None
    on_submitted: Callable[[int], None]


class PreparedTask(NamedTuple):
    """A submission that is checked, and not yet sent."""

    body: dict[str, Any]
    key: str
    wait_ms: int | None
    read: Callable[[Any], Any]


class Submitter:
    """What submits with the same options each time."""

    def __init__(self, api: ServerApi, wait_for: WaitFor, options: Options | None = None) -> None:
        self._api = api
        self._wait_for = wait_for
        self._options: Options = options or {}

    def options(self, **options: Unpack[Options]) -> Submitter:
        """The same client, with these options for what it submits."""
        return Submitter(self._api, self._wait_for, {**self._options, **options})

    @overload
    async def submit(
        self,
        what: Callable[Concatenate[Context[Any], P], Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> TaskView: ...

    @overload
    async def submit(
        self, what: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> TaskView: ...

    @overload
    async def submit(
        self, what: str, /, payload: Any = None, **options: Unpack[Options]
    ) -> TaskView: ...

    async def submit(self, what: str | Callable[..., Any], /, *args: Any, **named: Any) -> TaskView:
        """Hand a task in; it is in the ledger when this returns.

        Takes a function that a worker serves, with its arguments (not its `ctx`), or the name of a
        service with a payload and options. Options of a function: `client.options(…).submit(f, …)`.
        """
        call = call_of(what, args, named, self._options)
        if not call.wait_ms:
            return await self._api.coalesced.submit(call.body, call.key)
        return await self._send(call, call.wait_ms)

    @overload
    async def submit_many(
        self,
        what: Callable[..., Awaitable[R]],
        payloads: Iterable[Any],
        /,
        **options: Unpack[BatchOptions],
    ) -> Batch[R]: ...

    @overload
    async def submit_many(
        self,
        what: Callable[..., R],
        payloads: Iterable[Any],
        /,
        **options: Unpack[BatchOptions],
    ) -> Batch[R]: ...

    @overload
    async def submit_many(
        self,
        what: str,
        payloads: Iterable[Any],
        /,
        *,
        result_type: type[R],
        **options: Unpack[BatchOptions],
    ) -> Batch[R]: ...

    @overload
    async def submit_many(
        self, what: str, payloads: Iterable[Any], /, **options: Unpack[BatchOptions]
    ) -> Batch: ...

    async def submit_many(
        self,
        what: str | Callable[..., Any],
        payloads: Iterable[Any],
        /,
        *,
        name: str | None = None,
        on_complete: Mapping[str, Any] | None = None,
        webhook: str | None = None,
        on_submitted: Callable[[int], None] = lambda _: None,
        **options: Any,
    ) -> Batch:
        """Hand in a task for each payload, as one batch; `name`, `on_complete` and `webhook` are
        the batch's, all else is as with `submit`.

        Of a function a payload is its one argument, a tuple of arguments, or a dict of them by
        name. `on_submitted` is called with how many more are handed in.
        """
        from onward.client.batch import submitted

        calls = (self._call_of(what, payload, options) for payload in payloads)
        given = {"name": name, "on_complete": on_complete, "webhook": webhook}
        terms = {name: value for name, value in given.items() if value is not None}
        read = reader(options.get("result_type"))
        if not isinstance(what, str):
            read = served(what).read
        bodies = (call.body for call in calls)
        return await submitted(self._api, self._wait_for, bodies, terms, read, on_submitted)

    def _call_of(
        self, what: str | Callable[..., Any], payload: Any, options: Mapping[str, Any]
    ) -> PreparedTask:
        if isinstance(what, str):
            return call_of(what, (payload,), dict(options), self._options)
        by_name = payload if isinstance(payload, dict) else {}
        args = () if by_name else payload if isinstance(payload, tuple) else (payload,)
        return call_of(what, args, by_name, {**self._options, **options})

    @overload
    async def run(
        self,
        what: Callable[Concatenate[Context[Any], P], Awaitable[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R: ...

    @overload
    async def run(
        self, what: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...

    @overload
    async def run(
        self,
        what: Callable[Concatenate[Context[Any], P], R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R: ...

    @overload
    async def run(self, what: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    async def run(
        self,
        what: str,
        /,
        payload: Any = None,
        *,
        result_type: type[R],
        **options: Unpack[Options],
    ) -> R: ...

    @overload
    async def run(self, what: str, /, payload: Any = None, **options: Unpack[Options]) -> Any: ...

    async def run(self, what: str | Callable[..., Any], /, *args: Any, **named: Any) -> Any:
        """Submit, wait, and return the result; TaskFailed if there is none.

        The result of a function is of the type that it returns; that of a name is JSON, or of
        `result_type`: a pydantic model, a dataclass, or any other type that pydantic reads.
        """
        call = call_of(what, args, named, self._options)
        task = await until_over(partial(self._send, call), self._wait_for, call.wait_ms)
        return call.read(result_of(task))

    async def _send(self, call: PreparedTask, wait_ms: int) -> TaskView:
        return await self._api.call(
            TaskView, "POST", "tasks", body=call.body, key=call.key, wait_ms=wait_ms
        )


async def until_over(
    begin: Callable[[int], Awaitable[TaskView]], wait_for: WaitFor, wait_ms: int | None
) -> TaskView:
    """Begin a task with the first long poll in the same call, and wait for its end."""
    began = monotonic()
    task = await begin(LONG_POLL_MS if wait_ms is None else min(wait_ms, LONG_POLL_MS))
    if task.over:
        return task
    spent = int((monotonic() - began) * 1000)
    return await wait_for(task.id, None if wait_ms is None else max(0, wait_ms - spent))


def result_of(task: TaskView) -> Any:
    if task.state != "succeeded":
        raise TaskFailed(task)
    return task.result


def call_of(
    what: str | Callable[..., Any],
    args: tuple[Any, ...],
    named: dict[str, Any],
    options: Mapping[str, Any],
) -> PreparedTask:
    """TypeError names what is wrong with the arguments, before anything is sent."""
    if isinstance(what, str):
        payload, given, result_type = _by_name(what, *args, **named)
        read = reader(result_type)
        return _call(what, payload, {**options, **given}, read)
    service = served(what)
    return _call(service.name, service.payload(args, named), options, service.read)


def served(what: Callable[..., Any]) -> Service:
    service: Service | None = getattr(what, SERVED, None)
    if service is None:
        name = getattr(what, "__qualname__", repr(what))
        raise TypeError(f"{name} is not served: decorate it with @worker.service, or use a name")
    return service


def _by_name(
    what: str, /, payload: Any = None, *, result_type: Any = None, **options: Any
) -> tuple[Any, dict[str, Any], Any]:
    return payload, options, result_type


def _call(
    type_: str, payload: Any, options: Mapping[str, Any], read: Callable[[Any], Any]
) -> PreparedTask:
    given = in_ms(options, "delay", "timeout", "backoff")
    wait_ms = either(given.pop("wait", None), given.pop("wait_ms", None))
    if unknown := given.keys() - _NAMES:
        raise TypeError(f"{type_} is submitted with no option {min(unknown)!r}")
    if isinstance(given.get("run_at"), datetime):
        given["run_at"] = round(given["run_at"].timestamp() * 1000)
    body = {"type": type_, "payload": payload, **given}
    return PreparedTask(body, given.get("idempotency_key") or new_key(), wait_ms, read)


_NAMES = frozenset(Options.__annotations__)


def reader(result_type: Any) -> Callable[[Any], Any]:
    """Reads a JSON value as this type; None: as it is."""
    return _as_it_is if result_type is None else _adapted(result_type)


def _as_it_is(value: Any) -> Any:
    return value


@lru_cache(maxsize=256)
def _adapted(result_type: Any) -> Callable[[Any], Any]:
    from pydantic import TypeAdapter

    read = TypeAdapter(result_type).validate_json
    return lambda value: read(msgspec.json.encode(value))
