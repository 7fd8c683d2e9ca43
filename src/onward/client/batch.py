"""`Batch`: tasks that were submitted together, to wait for and to read the results of."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic

import msgspec
from typing_extensions import TypeVar

from onward.client.durations import ms
from onward.client.errors import ProblemError, StillRunning, problem_of
from onward.client.resources import ClientPart
from onward.client.retrying import new_key
from onward.wire.base import Page, State
from onward.wire.batches import MOST_TASKS, BatchView, HandedInAll
from onward.wire.tasks import TaskView

if TYPE_CHECKING:
    from onward.client.api import ServerApi
    from onward.client.submitting import WaitFor

MOST_BYTES = 24 << 20  # of the tasks of one request
LOOK_MS = 2_000  # between two looks whether one of them has failed
LONG_POLL_MS = 20_000
READ = 50  # tasks named in one request: each may be large
PAGE = 1_000  # tasks of a batch in one answer, which ends earlier where they are large
SHARED = 4  # a batch with so many times our own tasks is not read as a whole
FAILED: Sequence[State] = ("failed", "dead", "canceled")

ResultT = TypeVar("ResultT", default=Any)


class Batches(ClientPart):
    """`client.batches`: how far tasks are that were submitted together, by the batch's id."""

    async def get(self, id: str) -> BatchView:
        """How many of its tasks are in which state."""
        return await self._look(id, 0)

    async def wait(self, id: str, timeout: timedelta | None = None) -> BatchView:
        """Until all are over, however they end; StillRunning when the time is over first."""
        return await self.until(id, lambda view: False, timeout, LONG_POLL_MS)

    async def until(
        self, id: str, enough: Callable[[BatchView], bool], timeout: timedelta | None, poll_ms: int
    ) -> BatchView:
        """Until all are over or `enough` holds; it is looked at every `poll_ms`."""
        from onward.client.retrying import RetryWindow

        until = None if timeout is None else monotonic() + ms(timeout) / 1000
        window = RetryWindow(self._api)
        while True:
            left = poll_ms if until is None else int((until - monotonic()) * 1000)
            try:
                view = await self._look(id, max(0, min(left, poll_ms)))
            except Exception as error:
                await window.retry_or_raise(error)  # type: ignore[arg-type]
                continue
            window.reset()
            if view.over or enough(view):
                return view
            if left <= 0:
                raise StillRunning(await self._api.call(TaskView, "GET", "tasks", id))

    async def _look(self, id: str, wait_ms: int) -> BatchView:
        return await self._api.call(BatchView, "GET", "batches", id, wait_ms=wait_ms)


class Batch(Generic[ResultT]):
    """Tasks submitted together, and the type of their results.

    `ids` are theirs, in the order of submission; None in the place of one that was refused, whose
    error is in `refused` by its place.
    """

    def __init__(
        self,
        api: ServerApi,
        wait_for: WaitFor,
        id: str,
        answers: Sequence[str | ProblemError],
        read: Callable[[Any], ResultT],
    ) -> None:
        self.id = id
        self.ids: list[str | None] = [one if isinstance(one, str) else None for one in answers]
        self.refused: Mapping[int, ProblemError] = {
            at: one for at, one in enumerate(answers) if isinstance(one, ProblemError)
        }
        self._api = api
        self._batches = Batches(api, wait_for)
        self._wait_for = wait_for
        self._read = read

    async def get(self) -> BatchView:
        """How many of its tasks are in which state."""
        return await self._batches.get(self.id)

    async def wait(self, timeout: timedelta | None = None) -> BatchView:
        """Until all are over, however they end; StillRunning when the time is over first."""
        return await self._batches.wait(self.id, timeout)

    async def results(self, timeout: timedelta | None = None) -> list[ResultT]:
        """The results in the order of submission, once all are there.

        Raises at the first failure: TaskFailed, or the ProblemError of one that was refused.
        """
        if self.refused:
            raise self.refused[min(self.refused)]

        def failed(view: BatchView) -> bool:
            return any(view.states.get(state) for state in FAILED)

        view = await self._batches.until(self.id, failed, timeout, LOOK_MS)
        if failed(view):
            await self._raise_first()
        found = await self._found(view.total)
        return [self._result(found[id]) for id in self._given]

    async def __aiter__(self) -> AsyncGenerator[TaskView, None]:
        """Each task once it is over, in the order of submission; those refused are left out."""
        for at in range(0, len(self._given), READ):
            for task in await self._named(self._given[at : at + READ]):
                yield task if task.over else await self._wait_for(task.id, None)

    @property
    def _given(self) -> list[str]:
        return [id for id in self.ids if id is not None]

    async def _raise_first(self) -> None:
        """At the first of them, in the order of submission, that has failed by now."""
        failed: set[str] = set()
        cursor: str | None = None
        while True:
            page = await self._page(cursor, state=FAILED, brief="true")
            failed.update(task.id for task in page.items)
            cursor = page.next
            if cursor is None:
                break
        first = next((id for id in self._given if id in failed), None)
        if first is not None:
            self._result(await self._api.call(TaskView, "GET", "tasks", first))

    async def _found(self, total: int) -> Mapping[str, TaskView]:
        """All that are ours, by id: page by page of the batch, and by name what is not in it."""
        wanted = set(self._given)
        found: dict[str, TaskView] = {}
        cursor: str | None = None
        while len(found) < len(wanted) and total <= SHARED * len(wanted):
            page = await self._page(cursor)
            found.update((task.id, task) for task in page.items if task.id in wanted)
            cursor = page.next
            if cursor is None:
                break
        # Of another batch, because their keys had come before; or of one that is mostly others'.
        left = [id for id in self._given if id not in found]
        for at in range(0, len(left), READ):
            found.update((task.id, task) for task in await self._named(left[at : at + READ]))
        return found

    async def _page(self, cursor: str | None, **more: Any) -> Page[TaskView]:
        return await self._api.call(
            Page[TaskView], "GET", "tasks", batch=self.id, limit=PAGE, cursor=cursor, **more
        )

    async def _named(self, ids: Sequence[str]) -> Sequence[TaskView]:
        """These, in this order. ProblemError: one of them is not there any more."""
        page = await self._api.call(Page[TaskView], "GET", "tasks", id=list(ids))
        found = {task.id: task for task in page.items}
        for id in ids:
            if id not in found:
                raise ProblemError(
                    status=404,
                    code="not_found",
                    title="Not Found",
                    detail=f"task {id} of this batch is not kept any more",
                    hint="read results before the retention of finished tasks is over",
                )
        return [found[id] for id in ids]

    def _result(self, task: TaskView) -> ResultT:
        from onward.client.submitting import result_of

        return self._read(result_of(task))


async def submitted(
    api: ServerApi,
    wait_for: WaitFor,
    bodies: Iterable[Mapping[str, Any]],
    terms: Mapping[str, Any],
    read: Callable[[Any], Any],
    on_submitted: Callable[[int], None],
) -> Batch:
    """Handed in by as many requests as it takes; all but the last leave the batch open."""
    from onward.client.api import encode

    answers: list[str | ProblemError] = []
    parts = _parts(encode({"idempotency_key": new_key(), **body}) for body in bodies)
    part: list[msgspec.Raw] = next(parts, [])
    id: str | None = None
    while True:
        following = next(parts, None)
        given = {"id": id} if id is not None else terms
        body = {"tasks": part, "batch": {**given, "open": following is not None}}
        found = await api.call(HandedInAll, "POST", "tasks", "batch", body=body, key=new_key())
        id = found.batch
        answers += [
            str(one.id) if isinstance(one.error, msgspec.UnsetType) else problem_of(one.error)
            for one in found.items
        ]
        on_submitted(len(part))
        if following is None:
            return Batch(api, wait_for, str(id), answers, read)
        part = following


def _parts(texts: Iterable[bytes]) -> Iterator[list[msgspec.Raw]]:
    part: list[msgspec.Raw] = []
    size = 0
    for text in texts:
        if part and (len(part) == MOST_TASKS or size + len(text) > MOST_BYTES):
            yield part
            part, size = [], 0
        part.append(msgspec.Raw(text))
        size += len(text)
    if part:
        yield part
