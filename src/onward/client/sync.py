"""`SyncClient`: the client for programs that do not await, whether or not a loop runs around them.

Its calls run on an event loop in a thread of their own; the connections are kept there.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
import weakref
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
)
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from datetime import timedelta
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload

from onward.client.address import server_url
from onward.client.batch import Batch, Batches
from onward.client.context import Context, awaited
from onward.client.http import Client
from onward.client.resources import Flows, Limits, Operations, Queues, Runs, Schedules
from onward.client.submitting import BatchOptions, Options, Submitter
from onward.errors import OnwardError
from onward.wire.tasks import TaskEvent, TaskView

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
A = TypeVar("A")
S = TypeVar("S", bound=Submitter)

CLOSED = "the client was closed while a call waited"


class LoopThread:
    """An event loop in a thread of its own, and a client on it."""

    def __init__(self, make: Callable[[], Client]) -> None:
        self.client: Client = make()
        self.streams: set[AsyncGenerator[object, None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="onward-client", daemon=True)
        self._pid = os.getpid()
        # Reentrant: a garbage collection may call let_go in a thread that is handing over.
        self._handing_over = threading.RLock()
        self._ending = False
        self._thread.start()

    @property
    def alive(self) -> bool:
        """After a fork the thread is the parent's; after `let_go` it takes no more calls."""
        return self._pid == os.getpid() and not self._ending

    def wait(self, work: Awaitable[T]) -> T:
        waited = self._hand_over(work)
        try:
            return waited.result()
        except CancelledError:
            raise OnwardError(CLOSED) from None
        except BaseException:  # Ctrl-C while it waits: the call is not left behind
            waited.cancel()
            raise

    def drop(self, events: AsyncGenerator[object, None]) -> None:
        """Waits until it is over, unless a garbage collection calls this from the thread itself."""
        if not self.alive:
            return
        with suppress(OnwardError):  # ended since: `_end` closes it
            dropped = self._hand_over(self._close(events))
            if threading.current_thread() is not self._thread:
                wait([dropped])

    def let_go(self) -> None:
        """Ends it without waiting: a garbage collection may call this from the thread itself."""
        if not self.alive:
            return
        with self._handing_over:
            if not self._ending:
                self._ending = True
                asyncio.run_coroutine_threadsafe(self._end(), self._loop)

    def close(self) -> None:
        self.let_go()
        if self._pid == os.getpid():
            self._thread.join()

    def _hand_over(self, work: Awaitable[T]) -> Future[T]:
        # What is handed over behind `_end` would wait for a loop that has stopped, or is closed.
        with self._handing_over:
            if not self._ending:
                return asyncio.run_coroutine_threadsafe(awaited(work), self._loop)
        if asyncio.iscoroutine(work):
            work.close()
        raise OnwardError(CLOSED)

    async def _close(self, events: AsyncGenerator[object, None]) -> None:
        await events.aclose()
        self.streams.discard(events)

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    async def _end(self) -> None:
        # The calls of other threads end with it: a loop that stops would leave them waiting. All
        # that were handed over are tasks by now: the loop takes them in their order.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        try:
            await asyncio.gather(*others, return_exceptions=True)
            for events in tuple(self.streams):  # that no call waits for: between two events
                await events.aclose()
            await self.client.close()
        finally:
            self._loop.stop()


class Blocking(Generic[A]):
    """A part of a client, whose calls return when they are done."""

    def __init__(self, thread: Callable[[], LoopThread], part: Callable[[Client], A]) -> None:
        self._thread = thread
        self._part = part

    def _call(self, work: Callable[[A], Awaitable[T]]) -> T:
        thread = self._thread()
        return thread.wait(work(self._part(thread.client)))


def _blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking[A], P], T]:
    @wraps(method)
    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._call(lambda part: method(part, *args, **kwargs))

    return call


# Written out once more: type checkers other than mypy do not carry overloads over a function's own
# parameters through `_blocking`.
class SyncSubmitter(Blocking[S], Generic[S]):
    def options(self, **options: Unpack[Options]) -> SyncSubmitter[Submitter]:
        """The same client, with these options for what it submits."""
        return SyncSubmitter(self._thread, lambda client: self._part(client).options(**options))

    @overload
    def submit(
        self,
        what: Callable[Concatenate[Context[Any], P], Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> TaskView: ...

    @overload
    def submit(self, what: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> TaskView: ...

    @overload
    def submit(self, what: str, /, payload: Any = None, **options: Unpack[Options]) -> TaskView: ...

    def submit(self, what: str | Callable[..., Any], /, *args: Any, **named: Any) -> TaskView:
        """Hand a task in; it is in the ledger when this returns.

        Takes a function that a worker serves, with its arguments (not its `ctx`), or the name of a
        service with a payload and options. Options of a function: `client.options(…).submit(f, …)`.
        """
        return self._call(lambda part: part.submit(what, *args, **named))

    @overload
    def run(
        self,
        what: Callable[Concatenate[Context[Any], P], Awaitable[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R: ...

    @overload
    def run(self, what: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    def run(
        self,
        what: Callable[Concatenate[Context[Any], P], R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R: ...

    @overload
    def run(self, what: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    def run(
        self, what: str, /, payload: Any = None, *, result_type: type[R], **options: Unpack[Options]
    ) -> R: ...

    @overload
    def run(self, what: str, /, payload: Any = None, **options: Unpack[Options]) -> Any: ...

    def run(self, what: str | Callable[..., Any], /, *args: Any, **named: Any) -> Any:
        """Submit, wait, and return the result; TaskFailed if there is none.

        The result of a function is of the type that it returns; that of a name is JSON, or of
        `result_type`: a pydantic model, a dataclass, or any other type that pydantic reads.
        """
        return self._call(lambda part: part.run(what, *args, **named))

    @overload
    def submit_many(
        self,
        what: Callable[..., Awaitable[R]],
        payloads: Iterable[Any],
        /,
        **options: Unpack[BatchOptions],
    ) -> SyncBatch[R]: ...

    @overload
    def submit_many(
        self, what: Callable[..., R], payloads: Iterable[Any], /, **options: Unpack[BatchOptions]
    ) -> SyncBatch[R]: ...

    @overload
    def submit_many(
        self,
        what: str,
        payloads: Iterable[Any],
        /,
        *,
        result_type: type[R],
        **options: Unpack[BatchOptions],
    ) -> SyncBatch[R]: ...

    @overload
    def submit_many(
        self, what: str, payloads: Iterable[Any], /, **options: Unpack[BatchOptions]
    ) -> SyncBatch[Any]: ...

    def submit_many(
        self, what: str | Callable[..., Any], payloads: Iterable[Any], /, **options: Any
    ) -> SyncBatch[Any]:
        """Hand in a task for each payload, as one batch; see `Client.submit_many`."""
        batch = self._call(lambda part: part.submit_many(what, payloads, **options))
        return SyncBatch(self._thread, batch)


class SyncBatch(Blocking[Batch[R]], Generic[R]):
    """Tasks submitted together; see `Batch`."""

    def __init__(self, thread: Callable[[], LoopThread], batch: Batch[R]) -> None:
        super().__init__(thread, lambda _: batch)
        self.id, self.ids, self.refused = batch.id, batch.ids, batch.refused
        self._batch = batch

    get = _blocking(Batch.get)
    wait = _blocking(Batch.wait)

    def results(self, timeout: timedelta | None = None) -> list[R]:
        """The results in the order of submission; see `Batch.results`."""
        return self._call(lambda batch: batch.results(timeout))

    def __iter__(self) -> Generator[TaskView, None, None]:
        """Each task once it is over, in the order of submission; those refused are left out."""
        yield from _blocking_stream(self._thread(), self._batch.__aiter__())


class SyncBatches(Blocking[Batches]):
    get = _blocking(Batches.get)
    wait = _blocking(Batches.wait)


class SyncOperations(Blocking[Operations]):
    cancel = _blocking(Operations.cancel)
    retry = _blocking(Operations.retry)
    delete = _blocking(Operations.delete)
    list = _blocking(Operations.list)
    get = _blocking(Operations.get)
    wait = _blocking(Operations.wait)
    stop = _blocking(Operations.stop)


class SyncQueues(Blocking[Queues]):
    list = _blocking(Queues.list)
    pause = _blocking(Queues.pause)
    resume = _blocking(Queues.resume)


class SyncLimits(Blocking[Limits]):
    list = _blocking(Limits.list)
    get = _blocking(Limits.get)
    put = _blocking(Limits.put)
    remove = _blocking(Limits.remove)


class SyncSchedules(Blocking[Schedules]):
    list = _blocking(Schedules.list)
    get = _blocking(Schedules.get)
    create = _blocking(Schedules.create)
    put = _blocking(Schedules.put)
    pause = _blocking(Schedules.pause)
    resume = _blocking(Schedules.resume)
    trigger = _blocking(Schedules.trigger)
    remove = _blocking(Schedules.remove)


class SyncFlows(Blocking[Flows]):
    list = _blocking(Flows.list)
    get = _blocking(Flows.get)
    publish = _blocking(Flows.publish)
    start = _blocking(Flows.start)
    run = _blocking(Flows.run)


class SyncRuns(Blocking[Runs]):
    list = _blocking(Runs.list)
    get = _blocking(Runs.get)
    wait = _blocking(Runs.wait)
    signal = _blocking(Runs.signal)
    cancel = _blocking(Runs.cancel)
    fork = _blocking(Runs.fork)


class SyncClient(SyncSubmitter[Client]):
    """A server, for a program that does not await: Django, Flask, a script, a plain function.

    It may be shared by threads, and used where an event loop runs (which waits meanwhile).
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
        verify: bool | str | ssl.SSLContext | None = None,
    ) -> None:
        """As `Client`."""
        self.url = server_url(url)
        self._make = partial(Client, url, key=key, headers=headers, timeout=timeout, verify=verify)
        self._running: LoopThread | None = None
        self._starting = threading.Lock()
        super().__init__(self._alive_thread, lambda client: client)
        self.flows = SyncFlows(self._thread, lambda client: client.flows)
        self.runs = SyncRuns(self._thread, lambda client: client.runs)
        self.schedules = SyncSchedules(self._thread, lambda client: client.schedules)
        self.batches = SyncBatches(self._thread, lambda client: client.batches)
        self.operations = SyncOperations(self._thread, lambda client: client.operations)
        self.queues = SyncQueues(self._thread, lambda client: client.queues)
        self.limits = SyncLimits(self._thread, lambda client: client.limits)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections, and end its thread."""
        if self._running is not None:
            self._running.close()

    def call(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """What there is no method for here: `client.call(lambda each: each.log.readers())`."""
        return self._call(work)

    def _alive_thread(self) -> LoopThread:
        with self._starting:
            if self._running is None or not self._running.alive:
                self._running = LoopThread(self._make)
                weakref.finalize(self, self._running.let_go)
            return self._running

    get = _blocking(Client.get)
    wait = _blocking(Client.wait)
    result = _blocking(Client.result)
    events = _blocking(Client.events)
    task_logs = _blocking(Client.task_logs)
    list = _blocking(Client.list)
    explain = _blocking(Client.explain)
    workers = _blocking(Client.workers)
    callback_secret = _blocking(Client.callback_secret)
    services = _blocking(Client.services)
    health = _blocking(Client.health)
    cancel = _blocking(Client.cancel)
    retry = _blocking(Client.retry)
    attention = _blocking(Client.attention)
    approvals = _blocking(Client.approvals)
    approval = _blocking(Client.approval)
    approve = _blocking(Client.approve)
    reject = _blocking(Client.reject)
    dead_letters = _blocking(Client.dead_letters)
    dead_tasks = _blocking(Client.dead_tasks)
    replay = _blocking(Client.replay)
    abandon = _blocking(Client.abandon)

    def stream(self, id: str, after: int = 0) -> Generator[TaskEvent, None, None]:
        """Its events after number `after`, as they happen, until it is over."""
        thread = self._thread()
        yield from _blocking_stream(thread, thread.client.stream(id, after))


def _blocking_stream(
    thread: LoopThread, items: AsyncGenerator[T, None]
) -> Generator[T, None, None]:
    thread.streams.add(items)
    try:
        while (item := thread.wait(anext(items, None))) is not None:
            yield item
    finally:
        thread.drop(items)
