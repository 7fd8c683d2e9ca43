"""POST /v1/chat/completions: the same tasks in OpenAI's words, waiting and streaming (N-6)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
from fastapi.routing import APIRoute
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from onward.core import strict_json
from onward.core.errors import Invalid
from onward.core.follow import follow
from onward.core.task import Ending, State, Task
from onward.doors.chat.errors import ONCE, failure
from onward.doors.dispatcher.submission import DispatcherDoor, error_text
from onward.doors.json_reply import answer
from onward.doors.refusal import JSON
from onward.doors.route import route
from onward.doors.streaming import EventStream
from onward.native.caller import Caller, Scope, needs
from onward.native.places import Places

MOST_STREAMS = 1_000  # as many as may follow tasks at /api/v2


class ChatRequest(msgspec.Struct):
    """Other fields go to the worker as they are."""

    model: str  # the name of a worker group
    messages: list[Any]
    stream: bool | None = None
    timeout: float | UnsetType = UNSET  # milliseconds


class Completion(msgspec.Struct):
    """Other fields as the worker gives them, if it speaks OpenAI's words itself."""

    choices: list[Any]


class Chat:
    def __init__(self, door: DispatcherDoor) -> None:
        self._door = door
        self._places = Places(MOST_STREAMS, f"{MOST_STREAMS} answers are being streamed already")

    @needs(Scope.SUBMIT)
    async def complete(self, caller: Caller, raw: bytes) -> Response:
        """A chat completion by the workers of a group; with `stream`, as it comes."""
        door, body = self._door, strict_json.parse_object(raw)
        model, timeout_ms = _checked(door, body)
        task = await door.task(body, model, timeout_ms=timeout_ms, waits=True)
        await door.require_worker(model)
        if body.get("stream"):
            with ExitStack() as place:
                # Before anything is waited for: of many that come at once, none is let in
                # beyond the limit while the tasks of the others are on their way in.
                place.enter_context(self._places.take())
                await door.hand_in(task)
                return EventStream(_stream(door, task, model), place.pop_all())
        ending = await door.hand_in_and_wait(task, timeout_ms)
        if ending is None or ending.state is not State.SUCCEEDED:
            return answer(failure(_words(ending)), 500, ONCE)
        return Response(_completion(task, model, ending.result or "null"), media_type=JSON)


def routes(chat: Chat) -> Sequence[APIRoute]:
    return [
        route(
            "POST", "/v1/chat/completions", chat.complete, accepts=ChatRequest, result=Completion,
            events={}, errors=(500,), prefix="", tag="openai",
        ),
    ]  # fmt: skip


def _checked(door: DispatcherDoor, body: dict[str, Any]) -> tuple[str, int]:
    model = body.get("model")
    if not isinstance(model, str) or not 0 < len(model) <= 128 or not model.isprintable():
        raise Invalid("model must be the name of a worker group", pointer="/model")
    if not isinstance(body.get("messages"), list):
        raise Invalid("messages must be a list", pointer="/messages")
    if not isinstance(body.get("stream", False), bool | None):
        raise Invalid("stream must be true or false", pointer="/stream")
    return model, door.timeout_ms(body)


def _completion(task: Task, model: str, result: str) -> bytes:
    value = msgspec.json.decode(result)
    if isinstance(value, dict) and isinstance(value.get("choices"), list):
        return result.encode()  # the worker speaks OpenAI's words itself
    message = {"role": "assistant", "content": _content(value, result)}
    return _envelope(task, model, "chat.completion", {"message": message}, "stop")


def _content(value: Any, result: str) -> str:
    return value if isinstance(value, str) else result


def _envelope(
    task: Task, model: str, kind: str, choice: dict[str, Any], finish: str | None
) -> bytes:
    envelope = {
        "id": f"chatcmpl-{task.id}",
        "object": kind,
        "created": task.created_at // 1000,
        "model": model,
        "choices": [{"index": 0, **choice, "logprobs": None, "finish_reason": finish}],
    }
    if kind == "chat.completion":
        envelope["usage"] = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    return msgspec.json.encode(envelope)


async def _stream(door: DispatcherDoor, task: Task, model: str) -> AsyncIterator[bytes]:
    def piece(delta: dict[str, Any], finish: str | None = None) -> bytes:
        body = _envelope(task, model, "chat.completion.chunk", {"delta": delta}, finish)
        return b"data: " + body + b"\n\n"

    yield piece({"role": "assistant", "content": ""})
    spoken = False
    async for events in follow(door.dispatcher.backend, task.id):
        for event in events:
            if event.type == "task.chunk" and event.data is not None:
                spoken = True
                yield piece({"content": _content(msgspec.json.decode(event.data), event.data)})
        if not events:
            yield b": still working\n\n"
    found = (await door.dispatcher.backend.tasks.get([task.id]))[0]
    if found is None or found.state is not State.SUCCEEDED:
        message = _words(None if found is None else Ending.of(found))
        yield b"data: " + msgspec.json.encode(failure(message)) + b"\n\n"
        return
    if not spoken:
        result = found.result or "null"
        yield piece({"content": _content(msgspec.json.decode(result), result)})
    yield piece({}, "stop")
    yield b"data: [DONE]\n\n"


def _words(ending: Ending | None) -> str:
    return "Task timeout" if ending is None else error_text(ending.state, ending.error)
