"""Chat workers that speak OpenAI's words, and callers that need them: tool calls, usage, statuses,
models and responses. By the official client.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from tests.doors.test_chat import HELLO, client
from tests.running_app import App, SocketWorker

pytestmark = pytest.mark.contract("N-6")

CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
]
USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    head = {"id": "w", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return {**head, "choices": [choice], **more}


def whole(message: dict[str, Any], finish: str, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    head = {"id": "w", "object": "chat.completion", "created": 1, "model": "m"}
    return {**head, "choices": [choice], **more}


async def speak(worker: SocketWorker, *chunks: Any, result: Any = None) -> dict[str, Any]:
    frame = await worker.task()
    for data in chunks:
        await worker.send({"type": "chunk", "taskId": frame["taskId"], "data": data})
    await worker.answer(frame["taskId"], result)
    return frame


async def streamed(app: App, *chunks: Any, result: Any = None, **body: Any) -> list[Any]:
    worker = await app.worker(group="llama")
    speaking = asyncio.ensure_future(speak(worker, *chunks, result=result))
    stream = await client(app).chat.completions.create(
        model="llama", messages=HELLO, stream=True, **body
    )
    found = [piece async for piece in stream]
    await speaking
    return found


async def test_streamed_tool_calls_are_passed_on(app: App) -> None:
    call = {"index": 0, **CALL, "function": {"name": "add", "arguments": ""}}
    rest = {"index": 0, "function": {"arguments": '{"a":1}'}}
    chunks = [
        chunk({"role": "assistant", "content": None, "tool_calls": [call]}),
        chunk({"tool_calls": [rest]}),
        chunk({}, "tool_calls"),
    ]
    pieces = await streamed(app, *chunks, tools=TOOLS)
    assert [piece.model_dump(exclude_unset=True) for piece in pieces] == chunks


async def test_a_completion_that_comes_at_once_is_streamed_with_its_tool_calls(app: App) -> None:
    result = whole({"content": None, "tool_calls": [CALL]}, "tool_calls")
    first, last = await streamed(app, result=result, tools=TOOLS)
    (call,) = first.choices[0].delta.tool_calls
    assert (call.index, call.id, call.function.arguments) == (0, "call_1", '{"a":1}')
    assert last.choices[0].finish_reason == "tool_calls"


async def test_the_clients_own_stream_helper_puts_tool_calls_together(app: App) -> None:
    worker = await app.worker(group="llama")
    call = {"index": 0, **CALL}
    speaking = asyncio.ensure_future(
        speak(worker, chunk({"tool_calls": [call]}), chunk({}, "tool_calls"))
    )
    async with client(app).chat.completions.stream(
        model="llama", messages=HELLO, tools=TOOLS
    ) as stream:
        final = await stream.get_final_completion()
    await speaking
    made = next(iter(final.choices[0].message.tool_calls or ()))
    assert (made.function.name, made.function.arguments) == ("add", '{"a":1}')


@pytest.mark.parametrize(
    ("chunks", "result", "usage"),
    [
        (["hi"], "hi", None),
        (["hi"], whole({"content": "hi"}, "stop", usage=USAGE), USAGE),
        ([chunk({"content": "hi"}, "stop"), {"choices": [], "usage": USAGE}], None, USAGE),
        ([], whole({"content": "hi"}, "stop", usage=USAGE), USAGE),
    ],
)
async def test_usage_comes_last_to_those_who_ask_for_it(
    app: App, chunks: list[Any], result: Any, usage: Any
) -> None:
    asked = {"stream_options": {"include_usage": True}}
    *pieces, last = await streamed(app, *chunks, result=result, **asked)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == "hi"
    assert pieces[-1].choices[0].finish_reason == "stop"
    assert last.choices == []
    assert (last.usage and last.usage.model_dump(exclude_unset=True)) == usage


async def test_usage_comes_to_nobody_else(app: App) -> None:
    only_usage = {"choices": [], "usage": USAGE}
    pieces = await streamed(app, chunk({"content": "hi"}, "stop"), only_usage)
    assert all(piece.choices for piece in pieces)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("failure", "raised", "status"),
    [
        ({"status": 429, "retryAfterMs": 1500}, openai.RateLimitError, 429),
        ({"errorType": "RateLimitError"}, openai.RateLimitError, 429),
        ({"status": 400}, openai.BadRequestError, 400),
        ({"status": 451}, openai.APIStatusError, 451),
        ({"status": 503}, openai.InternalServerError, 500),
        ({}, openai.InternalServerError, 500),
    ],
)
async def test_a_workers_status_reaches_the_caller(
    app: App,
    failure: dict[str, Any],
    raised: type[openai.APIStatusError],
    status: int,
    stream: bool,
) -> None:
    worker = await app.worker(group="llama")
    once = client(app).with_options(max_retries=0)
    call = asyncio.ensure_future(
        once.chat.completions.create(model="llama", messages=HELLO, stream=stream)
    )
    await worker.answer((await worker.task())["taskId"], error="not now", **failure)
    with pytest.raises(raised, match="not now") as refused:
        await call
    assert refused.value.status_code == status
    if status == 429:
        assert refused.value.code == "rate_limit_exceeded"
        assert "x-should-retry" not in refused.value.response.headers, "the client backs off"
    else:
        assert refused.value.response.headers["x-should-retry"] == "false"


async def test_models_are_the_groups_that_have_workers(app: App) -> None:
    assert (await app.get("/v1/models")).json() == {"object": "list", "data": []}
    for group in ("llama", "llama", "qwen"):
        await app.worker(group=group)
    models = (await client(app).models.list()).data
    assert [(model.id, model.object) for model in models] == [("llama", "model"), ("qwen", "model")]
    assert [model["workers"] for model in (await app.get("/v1/models")).json()["data"]] == [2, 1]
    assert (await client(app).models.retrieve("qwen")).id == "qwen"
    with pytest.raises(openai.NotFoundError):
        await client(app).models.retrieve("gpt")


async def test_a_response_is_a_chat_for_its_worker(app: App) -> None:
    worker = await app.worker(group="llama")
    tool = {"type": "function", "name": "add", "parameters": {"type": "object"}}
    given: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "1 + 1?"}]},
        {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "2"},
    ]
    asked: Any = {"model": "llama", "instructions": "Add.", "input": given, "tools": [tool]}
    call = asyncio.ensure_future(client(app).responses.create(**asked, max_output_tokens=5))
    result = whole({"content": "It is 2."}, "stop", usage=USAGE)
    frame = await speak(worker, result=result)
    called = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    assert frame["payload"] == {
        "model": "llama",
        "messages": [
            {"role": "system", "content": "Add."},
            {"role": "user", "content": "1 + 1?"},
            {"role": "assistant", "content": None, "tool_calls": [called]},
            {"role": "tool", "tool_call_id": "c", "content": "2"},
        ],
        "tools": TOOLS,
        "max_tokens": 5,
    }
    response = await call
    assert (response.status, response.output_text) == ("completed", "It is 2.")
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (3, 4)


async def test_a_response_streams_text_and_function_calls(app: App) -> None:
    worker = await app.worker(group="llama")
    call = {"index": 0, **CALL}
    speaking = asyncio.ensure_future(
        speak(worker, "Let me ", "see.", chunk({"tool_calls": [call]}, "tool_calls"))
    )
    async with client(app).responses.stream(model="llama", input="1 + ?") as stream:
        types = [event.type async for event in stream]
        final = await stream.get_final_response()
    await speaking
    assert final.output_text == "Let me see."
    made = final.output[1]
    assert made.type == "function_call"
    assert (made.name, made.call_id, json.loads(made.arguments)) == ("add", "call_1", {"a": 1})
    assert types[:2] == ["response.created", "response.in_progress"]
    assert types.count("response.output_text.delta") == 2
    assert types[-1] == "response.completed"


async def test_what_a_response_cannot_have_is_refused(app: App) -> None:
    await app.worker(group="llama")
    asked: Any
    for asked in (
        {"input": "hi", "previous_response_id": "resp_1"},
        {"input": "hi", "background": True},
        {"input": "hi", "tools": [{"type": "web_search"}]},
        {"input": [{"type": "item_reference", "id": "x"}]},
    ):
        with pytest.raises(openai.BadRequestError, match="not supported"):
            await client(app).responses.create(model="llama", **asked)
