"""/v1: the same tasks in OpenAI's words, waiting and streaming (N-6).

A caller who hangs up cancels the task, unless the header `x-onward-keep: true` says otherwise:
no reader is left for what the worker goes on to write.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, nullcontext, suppress
from functools import partial
from typing import Any, Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from onward.core import strict_json
from onward.core.errors import Conflict, Invalid, NotFound
from onward.core.follow import follow
from onward.core.task import Ending, Json, State, Task, fault_of
from onward.doors.chat import responses
from onward.doors.chat.attended import Attended
from onward.doors.chat.completions import CompletionChunks, completion
from onward.doors.chat.errors import ChatErrorBody, failed
from onward.doors.dispatcher.submission import DispatcherDoor, error_text
from onward.doors.json_reply import answer
from onward.doors.refusal import JSON
from onward.doors.route import UseCaseRoute, route
from onward.doors.streaming import EventStream
from onward.native.caller import Caller, Scope, needs
from onward.native.places import Places
from onward.workers.roster import Roster, group_of

MOST_STREAMS = 1_000  # as many as may follow tasks at /api/v2
LOOKS = 10  # of about a second: how long a stream's status waits for a first chunk
KEEPS = "true"


class ChatRequest(msgspec.Struct):
    """Other fields go to the worker as they are."""

    model: str  # the name of a worker group
    messages: list[Any]
    stream: bool | None = None
    timeout: float | UnsetType = UNSET  # milliseconds


class Completion(msgspec.Struct):
    """Other fields as the worker gives them, if it speaks OpenAI's words itself."""

    choices: list[Any]


class Model(msgspec.Struct, kw_only=True):
    id: str  # a worker group
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "onward"
    workers: int


class Models(msgspec.Struct):
    data: Sequence[Model]
    object: Literal["list"] = "list"


class Pieces(Protocol):
    """One answer as server-sent events; each method returns those that are to be sent now."""

    def chunk(self, data: Json) -> Iterator[bytes]: ...
    def end(self, result: Json) -> Iterator[bytes]: ...
    def failure(self, body: ChatErrorBody) -> Iterator[bytes]: ...


class Chat:
    def __init__(self, door: DispatcherDoor, roster: Roster) -> None:
        self._door = door
        self._roster = roster
        self._places = Places(MOST_STREAMS, f"{MOST_STREAMS} answers are being streamed already")

    @needs(Scope.SUBMIT)
    async def complete(
        self, caller: Caller, raw: bytes, x_onward_keep: str | None = None
    ) -> Response:
        """A chat completion by the workers of a group; with `stream`, as it comes."""
        body = strict_json.parse_object(raw)
        options = body.get("stream_options")
        usage = isinstance(options, dict) and options.get("include_usage") is True

        def pieces(task: Task, model: str) -> Pieces:
            return CompletionChunks(task, model, include_usage=usage)

        return await self._answer(caller, body, completion, pieces, x_onward_keep)

    @needs(Scope.SUBMIT)
    async def respond(
        self, caller: Caller, raw: bytes, x_onward_keep: str | None = None
    ) -> Response:
        """The same as a response; its worker is given a chat."""
        asked = strict_json.parse_object(raw)
        whole, pieces = partial(responses.response, asked), partial(responses.Events, asked)
        chat = responses.chat_of(asked)
        return await self._answer(caller, chat, whole, pieces, x_onward_keep)

    @needs(Scope.SUBMIT)
    async def models(self, caller: Caller) -> Models:
        """The worker groups that have workers."""
        return Models(self._models())

    @needs(Scope.SUBMIT)
    async def model(self, caller: Caller, model: str) -> Model:
        for found in self._models():
            if found.id == model:
                return found
        raise NotFound(f"no worker of group {model!r} is connected")

    async def _answer(
        self,
        caller: Caller,
        body: dict[str, Any],
        whole: Callable[[Task, str, Json], bytes],
        pieces: Callable[[Task, str], Pieces],
        keep: str | None,
    ) -> Response:
        door = self._door
        model, timeout_ms = _checked(door, body)
        task = await door.task(caller, body, model, timeout_ms=timeout_ms, waits=True)
        await door.require_worker(model)
        abandon = _nothing if keep == KEEPS else partial(self._cancel, task)
        if not body.get("stream"):

            async def wait() -> Response:
                ending = await door.hand_in_and_wait(task, timeout_ms)
                if ending is None or ending.state is not State.SUCCEEDED:
                    status, failure, headers = _failure(ending)
                    return answer(failure, status, headers)
                return Response(whole(task, model, ending.result or "null"), media_type=JSON)

            return Attended(wait, abandon, nullcontext())
        with ExitStack() as place:
            # Before anything is waited for: of many that come at once, none is let in beyond the
            # limit while the tasks of the others are on their way in.
            place.enter_context(self._places.take())
            await door.hand_in(task)
            stream = partial(_stream, door, task, pieces(task, model))
            return Attended(stream, abandon, place.pop_all())

    async def _cancel(self, task: Task) -> None:
        with suppress(Conflict, NotFound):  # it is over, or was never written
            await self._door.dispatcher.cancel(task.id)

    def _models(self) -> list[Model]:
        since: defaultdict[str, list[int]] = defaultdict(list)
        for member in self._roster.members():
            for group in filter(None, map(group_of, member.queues)):
                since[group].append(member.since // 1000)
        return [
            Model(id=group, created=min(begun), workers=len(begun))
            for group, begun in sorted(since.items())
        ]


def routes(chat: Chat) -> Sequence[UseCaseRoute]:
    return [
        _answer("/v1/chat/completions", chat.complete, accepts=ChatRequest, result=Completion),
        _answer(
            "/v1/responses", chat.respond,
            accepts=responses.ResponsesRequest, result=responses.ResponseObject,
        ),
        _route("GET", "/v1/models", chat.models),
        _route("GET", "/v1/models/{model}", chat.model),
    ]  # fmt: skip


_route = partial(route, prefix="", tag="openai")
# "4XX": the status that a worker gives, whichever it is.
_answer = partial(_route, "POST", events={}, errors=("4XX", 500))


async def _stream(door: DispatcherDoor, task: Task, pieces: Pieces) -> Response:
    """A task that fails before its first chunk is answered with a status, later in the stream."""
    chunks = _chunks(door, task)
    looks = 0
    async for chunk in chunks:
        looks += chunk is None
        if chunk is not None or looks == LOOKS:
            return EventStream(_lines(door, task, pieces, chunks, chunk), nullcontext())
    ending = await _ending(door, task)
    if ending is None or ending.state is not State.SUCCEEDED:
        status, body, headers = _failure(ending)
        return answer(body, status, headers)
    return EventStream(_lines(door, task, pieces, chunks), nullcontext())


async def _lines(
    door: DispatcherDoor,
    task: Task,
    pieces: Pieces,
    chunks: AsyncGenerator[Json | None],
    first: Json | None = None,
) -> AsyncIterator[bytes]:
    for line in () if first is None else pieces.chunk(first):
        yield line
    async with aclosing(chunks):
        async for chunk in chunks:
            for line in [b": still working\n\n"] if chunk is None else pieces.chunk(chunk):
                yield line
    ending = await _ending(door, task)
    if ending is None or ending.state is not State.SUCCEEDED:
        last = pieces.failure(_failure(ending)[1])
    else:
        last = pieces.end(ending.result or "null")
    for line in last:
        yield line


async def _chunks(door: DispatcherDoor, task: Task) -> AsyncGenerator[Json | None]:
    """What the worker has sent so far, as it comes; None about once a second without news."""
    async with aclosing(follow(door.dispatcher.backend, task.id)) as batches:
        async for events in batches:
            for event in events:
                if event.type == "task.chunk" and event.data is not None:
                    yield event.data
            if not events:
                yield None


async def _ending(door: DispatcherDoor, task: Task) -> Ending | None:
    (found,) = await door.dispatcher.backend.tasks.get([task.id])
    return None if found is None else Ending.of(found)


def _failure(ending: Ending | None) -> tuple[int, ChatErrorBody, Any]:
    if ending is None:
        return failed("Task timeout", None)
    return failed(error_text(ending.state, ending.error), fault_of(ending.error))


async def _nothing() -> None:
    pass


def _checked(door: DispatcherDoor, body: dict[str, Any]) -> tuple[str, int]:
    model = body.get("model")
    if not isinstance(model, str) or not 0 < len(model) <= 128 or not model.isprintable():
        raise Invalid("model must be the name of a worker group", pointer="/model")
    if not isinstance(body.get("messages"), list):
        raise Invalid("messages must be a list", pointer="/messages")
    if not isinstance(body.get("stream", False), bool | None):
        raise Invalid("stream must be true or false", pointer="/stream")
    return model, door.timeout_ms(body)
