"""OpenAI's Responses on top of chats: a request becomes a chat, its answer a response. Pure.

Nothing is kept between two calls: a request has its whole conversation in `input`. Tools are the
caller's own functions; those that OpenAI itself would run are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from onward.core.errors import Invalid
from onward.core.task import Json, Task
from onward.doors.chat.completions import content_of, delta_of, is_openais
from onward.doors.chat.errors import ChatErrorBody

KEPT = ("previous_response_id", "conversation", "prompt")  # what would have to be kept here
SAME = ("temperature", "top_p", "parallel_tool_calls", "user", "timeout", "top_logprobs", "seed")
TEXT = ("input_text", "output_text", "text")


class ResponsesRequest(msgspec.Struct):
    model: str  # the name of a worker group
    input: str | list[Any]
    instructions: str | None = None
    stream: bool | None = None


class ResponseObject(msgspec.Struct):
    id: str
    object: str
    status: str
    output: list[Any]


def chat_of(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The chat that the worker is given."""
    for name in KEPT:
        if asked.get(name):
            raise Invalid(f"{name} is not supported: send the whole input", pointer=f"/{name}")
    if asked.get("background"):
        hint = "POST /api/v2/tasks takes work that is not waited for"
        raise Invalid("background is not supported", pointer="/background", hint=hint)
    chat: dict[str, Any] = {"model": asked.get("model"), "messages": list(_messages(asked))}
    chat |= {name: asked[name] for name in SAME if asked.get(name) is not None}
    if tools := [_tool(tool) for tool in asked.get("tools") or ()]:
        chat["tools"] = tools
    choice = asked.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "function":
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    chat |= {"tool_choice": choice} if choice is not None else {}
    if asked.get("max_output_tokens") is not None:
        chat["max_tokens"] = asked["max_output_tokens"]
    if isinstance(effort := asked.get("reasoning"), dict) and effort.get("effort"):
        chat["reasoning_effort"] = effort["effort"]
    if shape := _format(asked):
        chat["response_format"] = shape
    if "stream" in asked:
        chat["stream"] = asked["stream"]
    return chat


def response(asked: Mapping[str, Any], task: Task, model: str, result: Json) -> bytes:
    events = Events(asked, task, model)
    for _ in events.end(result):
        pass
    return msgspec.json.encode(events.snapshot("completed"))


class Events:
    """One response as it grows, and the events that tell of it."""

    def __init__(self, asked: Mapping[str, Any], task: Task, model: str) -> None:
        self._asked = asked
        self._task = task
        self._model = model
        self._output: list[dict[str, Any]] = []
        self._by_call: dict[int, dict[str, Any]] = {}  # function calls by their number in the chat
        self._usage: Any = None
        self._sent = 0

    def chunk(self, data: Json) -> Iterator[bytes]:
        if not self._sent:
            yield self._event("response.created", response=self.snapshot("in_progress"))
            yield self._event("response.in_progress", response=self.snapshot("in_progress"))
        value = msgspec.json.decode(data)
        for delta in self._deltas(value, data):
            if delta.get("content"):
                yield from self._text(str(delta["content"]))
            for call in delta.get("tool_calls") or ():
                yield from self._called(call)

    def end(self, result: Json) -> Iterator[bytes]:
        value = msgspec.json.decode(result)
        if self._output and is_openais(value):
            self._usage = value.get("usage") or self._usage
        elif not self._output:
            yield from self.chunk(result)
        for at, item in enumerate(self._output):
            yield from self._done(at, item)
        yield self._event("response.completed", response=self.snapshot("completed"))

    def failure(self, body: ChatErrorBody) -> Iterator[bytes]:
        error = {"code": body.error.code or body.error.type, "message": body.error.message}
        yield self._event("response.failed", response=self.snapshot("failed", error))

    def snapshot(self, status: str, error: Any = None) -> dict[str, Any]:
        asked = self._asked
        usage = self._usage if status == "completed" else None
        return {
            "id": f"resp_{self._task.id}",
            "object": "response",
            "created_at": self._task.created_at // 1000,
            "status": status,
            "error": error,
            "incomplete_details": None,
            "instructions": asked.get("instructions"),
            "metadata": asked.get("metadata") or {},
            "model": self._model,
            "output": self._output if status == "completed" else [],
            "parallel_tool_calls": asked.get("parallel_tool_calls", True),
            "temperature": asked.get("temperature"),
            "tool_choice": asked.get("tool_choice") or "auto",
            "tools": asked.get("tools") or [],
            "top_p": asked.get("top_p"),
            "text": asked.get("text") or {"format": {"type": "text"}},
            "store": False,
            "usage": None if usage is None else _usage(usage),
        }

    def _deltas(self, value: Any, data: Json) -> Iterable[Mapping[str, Any]]:
        if not is_openais(value):
            return [{"content": content_of(value, data)}]
        self._usage = value.get("usage") or self._usage
        first = [choice for choice in value["choices"][:1] if isinstance(choice, dict)]
        return [choice.get("delta") or delta_of(choice.get("message") or {}) for choice in first]

    def _text(self, text: str) -> Iterator[bytes]:
        item = self._output[-1] if self._output else None
        if item is None or item["type"] != "message":
            item = {
                "id": f"msg_{self._task.id}_{len(self._output)}",
                "type": "message",
                "role": "assistant",
                "status": "in_progress",
                "content": [],
            }
            yield from self._added(item)
            part = {"type": "output_text", "text": "", "annotations": []}
            yield self._part("response.content_part.added", item, part=part)
            item["content"] = [part]
        item["content"][0]["text"] += text
        yield self._part("response.output_text.delta", item, delta=text, logprobs=[])

    def _called(self, call: Mapping[str, Any]) -> Iterator[bytes]:
        number, function = call.get("index", len(self._by_call)), call.get("function") or {}
        item = self._by_call.get(number)
        if item is None:
            item = {
                "id": f"fc_{self._task.id}_{len(self._output)}",
                "type": "function_call",
                "status": "in_progress",
                "call_id": call.get("id") or f"call_{self._task.id}_{number}",
                "name": function.get("name") or "",
                "arguments": "",
            }
            self._by_call[number] = item
            yield from self._added(item)
        if text := function.get("arguments"):
            item["arguments"] += text
            yield self._of(item, "response.function_call_arguments.delta", delta=text)

    def _added(self, item: dict[str, Any]) -> Iterator[bytes]:
        self._output.append(item)
        yield self._event("response.output_item.added", output_index=self._at(item), item=item)

    def _done(self, at: int, item: dict[str, Any]) -> Iterator[bytes]:
        item["status"] = "completed"
        if item["type"] == "message":
            (part,) = item["content"]
            yield self._part("response.output_text.done", item, text=part["text"], logprobs=[])
            yield self._part("response.content_part.done", item, part=part)
        else:
            fields = {"arguments": item["arguments"], "name": item["name"]}
            yield self._of(item, "response.function_call_arguments.done", **fields)
        yield self._event("response.output_item.done", output_index=at, item=item)

    def _part(self, type_: str, item: Mapping[str, Any], **data: Any) -> bytes:
        return self._of(item, type_, content_index=0, **data)

    def _of(self, item: Mapping[str, Any], type_: str, **data: Any) -> bytes:
        return self._event(type_, item_id=item["id"], output_index=self._at(item), **data)

    def _at(self, item: Mapping[str, Any]) -> int:
        return next(at for at, one in enumerate(self._output) if one is item)

    def _event(self, type_: str, **data: Any) -> bytes:
        body = {"type": type_, "sequence_number": self._sent, **data}
        self._sent += 1
        return f"event: {type_}\ndata: ".encode() + msgspec.json.encode(body) + b"\n\n"


def _messages(asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if asked.get("instructions"):
        yield {"role": "system", "content": asked["instructions"]}
    given = asked.get("input")
    if isinstance(given, str):
        yield {"role": "user", "content": given}
        return
    if not isinstance(given, list):
        raise Invalid("input must be a text or a list", pointer="/input")
    calls: list[dict[str, Any]] = []  # one after the other, they are one message
    for at, item in enumerate(given):
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind == "function_call":
            named = {"name": item.get("name"), "arguments": item.get("arguments")}
            calls.append({"id": item.get("call_id"), "type": "function", "function": named})
            continue
        if calls:
            yield {"role": "assistant", "content": None, "tool_calls": calls}
            calls = []
        if kind == "message":
            role = "system" if item.get("role") == "developer" else item.get("role")
            yield {"role": role, "content": _content(item.get("content"))}
        elif kind == "function_call_output":
            output = item.get("output")
            content = output if isinstance(output, str) else msgspec.json.encode(output).decode()
            yield {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
        elif kind != "reasoning":
            raise Invalid(f"input items of type {kind!r} are not supported", pointer=f"/input/{at}")
    if calls:
        yield {"role": "assistant", "content": None, "tool_calls": calls}


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    parts = [part if isinstance(part, dict) else {} for part in content]
    if all(part.get("type") in TEXT for part in parts):
        return "".join(str(part.get("text") or "") for part in parts)
    return [_part(part) for part in parts]


def _part(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") in TEXT:
        return {"type": "text", "text": part.get("text")}
    if part.get("type") == "input_image":
        return {"type": "image_url", "image_url": {"url": part.get("image_url")}}
    return part


def _tool(tool: Any) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind != "function":
        raise Invalid(f"tools of type {kind!r} are not supported: only functions", pointer="/tools")
    names = ("name", "description", "parameters", "strict")
    function = {name: tool[name] for name in names if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _format(asked: Mapping[str, Any]) -> dict[str, Any] | None:
    text = asked.get("text")
    wanted = text.get("format") if isinstance(text, dict) else None
    if not isinstance(wanted, dict) or wanted.get("type") == "text":
        return None
    if wanted.get("type") != "json_schema":
        return wanted
    return {
        "type": "json_schema",
        "json_schema": {name: value for name, value in wanted.items() if name != "type"},
    }


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    given, made = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    inside = usage.get("prompt_tokens_details") or {}
    outside = usage.get("completion_tokens_details") or {}
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": inside.get("cached_tokens") or 0},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": outside.get("reasoning_tokens") or 0},
        "total_tokens": usage.get("total_tokens") or given + made,
    }
