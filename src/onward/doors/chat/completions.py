"""A worker's chunks and result as chat completions (N-6). Pure.

What already is a chunk or a completion of OpenAI's is passed on as such, tool calls included; any
other text becomes the assistant's content, and any other value its JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from onward.core.task import Json, Task
from onward.doors.chat.errors import ChatErrorBody

DONE = b"data: [DONE]\n\n"
NO_USAGE = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


def is_openais(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("choices"), list)


def content_of(value: Any, text: Json) -> str:
    return value if isinstance(value, str) else text


def completion(task: Task, model: str, result: Json) -> bytes:
    value = msgspec.json.decode(result)
    if is_openais(value):
        return result.encode()
    message = {"role": "assistant", "content": content_of(value, result)}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    whole = envelope(task, model, "chat.completion") | {"choices": [choice], "usage": NO_USAGE}
    return msgspec.json.encode(whole)


def envelope(task: Task, model: str, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{task.id}",
        "object": kind,
        "created": task.created_at // 1000,
        "model": model,
    }


def delta_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """A whole message as one delta: the tool calls of a delta are numbered."""
    calls = message.get("tool_calls") or ()
    numbered = [{"index": index, **call} for index, call in enumerate(calls)]
    return {**message, "tool_calls": numbered} if numbered else dict(message)


class CompletionChunks:
    """One answer in chunks."""

    def __init__(self, task: Task, model: str, *, include_usage: bool) -> None:
        self._head = envelope(task, model, "chat.completion.chunk")
        self._include_usage = include_usage
        self._usage: Any = None
        self._begun = False
        self._over = False  # a reason to finish has been sent
        self._tools = False

    def chunk(self, data: Json) -> Iterator[bytes]:
        value = msgspec.json.decode(data)
        if is_openais(value):
            yield from self._passed_on(value)
            return
        if not self._begun:
            yield self._piece({"role": "assistant", "content": ""})
        self._begun = True
        yield self._piece({"content": content_of(value, data)})

    def end(self, result: Json) -> Iterator[bytes]:
        value = msgspec.json.decode(result)
        if is_openais(value):
            self._usage = value.get("usage") or self._usage
        if not self._begun:
            yield from self.chunk(result)
        if not self._over:
            yield self._piece({}, "tool_calls" if self._tools else "stop")
        if self._include_usage:
            yield _line({**self._head, "choices": [], "usage": self._usage})
        yield DONE

    def failure(self, body: ChatErrorBody) -> Iterator[bytes]:
        yield _line(body)

    def _passed_on(self, value: dict[str, Any]) -> Iterator[bytes]:
        self._usage = value.get("usage") or self._usage
        choices = [choice for choice in value["choices"] if isinstance(choice, dict)]
        if not choices:
            return  # usage alone, which goes last, to those who asked for it
        self._begun = True
        reasons = [_bare(choice) for choice in choices]
        if any("message" in choice for choice in choices):
            deltas = [_begun(choice) for choice in choices]
            head = {**value, "object": "chat.completion.chunk", "usage": None}
            yield _line({**head, "choices": deltas})
            value, choices = {**head, "choices": reasons}, [*deltas, *reasons]
        self._over |= any(choice.get("finish_reason") for choice in choices)
        self._tools |= any((choice.get("delta") or {}).get("tool_calls") for choice in choices)
        yield _line(value)

    def _piece(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _line({**self._head, "choices": [choice]})


def _begun(choice: Mapping[str, Any]) -> dict[str, Any]:
    delta = delta_of(choice.get("message") or {})
    return {"index": choice.get("index", 0), "delta": delta, "finish_reason": None}


def _bare(choice: Mapping[str, Any]) -> dict[str, Any]:
    reason = choice.get("finish_reason") or "stop"
    return {"index": choice.get("index", 0), "delta": {}, "finish_reason": reason}


def _line(body: Any) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"
