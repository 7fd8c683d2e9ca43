"""The official OpenAI client, with its base URL set to ours: waiting, streaming, and its errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from onward.doors.chat import router as chat
from tests.running_app import App, running_app

pytestmark = pytest.mark.contract("N-6")

HELLO: list[Any] = [{"role": "user", "content": "hello"}]


def client(app: App) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url="http://127.0.0.1/v1", api_key="unused", http_client=app.http
    )


async def test_the_model_names_the_group_and_a_text_becomes_the_message(app: App) -> None:
    worker = await app.worker(group="llama")
    call = asyncio.ensure_future(client(app).chat.completions.create(model="llama", messages=HELLO))
    frame = await worker.task()
    assert (frame["group"], frame["payload"]["messages"]) == ("llama", HELLO)
    await worker.answer(frame["taskId"], "hi there")
    completion = await call
    assert completion.object == "chat.completion"
    assert completion.model == "llama"
    assert completion.choices[0].message.content == "hi there"
    assert completion.choices[0].finish_reason == "stop"


async def test_a_worker_that_speaks_openai_is_passed_on_unchanged(app: App) -> None:
    worker = await app.worker(group="llama")
    call = asyncio.ensure_future(client(app).chat.completions.create(model="llama", messages=HELLO))
    message = {"role": "assistant", "content": "mine"}
    body = {
        "id": "x", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "length"}],
    }  # fmt: skip
    await worker.answer((await worker.task())["taskId"], body)
    assert (await call).model_dump(exclude_unset=True) == body


async def test_chunks_stream_as_deltas_and_the_result_is_not_sent_again(app: App) -> None:
    worker = await app.worker(group="llama")

    async def speak() -> None:
        frame = await worker.task()
        assert frame["payload"]["stream"] is True
        for word in ("Hel", "lo", "!"):
            await worker.send({"type": "chunk", "taskId": frame["taskId"], "data": word})
        await worker.answer(frame["taskId"], "Hello!")

    speaking = asyncio.ensure_future(speak())
    stream = await client(app).chat.completions.create(model="llama", messages=HELLO, stream=True)
    pieces = [chunk.choices[0] async for chunk in stream]
    await speaking
    assert [piece.delta.content or "" for piece in pieces] == ["", "Hel", "lo", "!", ""]
    assert pieces[-1].finish_reason == "stop"


async def test_without_chunks_the_result_is_the_stream(app: App) -> None:
    worker = await app.worker(group="llama")
    asked = asyncio.ensure_future(
        client(app).chat.completions.create(model="llama", messages=HELLO, stream=True)
    )
    await worker.answer((await worker.task())["taskId"], "all at once")
    pieces = [chunk.choices[0].delta.content or "" async for chunk in await asked]
    assert "".join(pieces) == "all at once"


async def test_a_stream_that_fails_says_so_in_openais_form(app: App) -> None:
    worker = await app.worker(group="llama")
    asked = asyncio.ensure_future(
        client(app).chat.completions.create(model="llama", messages=HELLO, stream=True)
    )
    await worker.answer((await worker.task())["taskId"], error="out of memory")
    with pytest.raises(openai.APIError, match="out of memory"):
        _ = [chunk async for chunk in await asked]


async def test_a_lost_worker_is_told_once_and_not_sent_again(app: App) -> None:
    worker = await app.worker(group="llama")
    call = asyncio.ensure_future(client(app).chat.completions.create(model="llama", messages=HELLO))
    await worker.task()
    await worker.close()
    with pytest.raises(openai.InternalServerError, match="Worker disconnected"):
        await call
    tasks = (await app.get("/api/v2/tasks")).json()["items"]
    assert len(tasks) == 1, "the client's silent re-send would have run it three times"


async def test_no_worker_is_a_503_with_a_message(app: App) -> None:
    once = client(app).with_options(max_retries=0)
    with pytest.raises(openai.InternalServerError) as refused:
        await once.chat.completions.create(model="nobody", messages=HELLO)
    assert refused.value.status_code == 503
    assert refused.value.body == {
        "message": "No worker available",
        "type": "service_unavailable",
        "param": None,
        "code": None,
    }


@pytest.mark.parametrize(
    "body",
    [b"{", b"{}", b'{"model":"m"}', b'{"model":7,"messages":[]}', b'{"model":"m","messages":"x"}'],
)
async def test_a_bad_request_has_openais_error_object(app: App, body: bytes) -> None:
    response = await app.http.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.contract("N-1")
async def test_the_built_in_worker_answers_a_first_chat() -> None:
    async with running_app(builtin_worker=True) as app:
        completion = await client(app).chat.completions.create(model="default", messages=HELLO)
        assert completion.choices[0].message.content == "You said: hello"
        stream = await client(app).chat.completions.create(
            model="default", messages=HELLO, stream=True
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(pieces) == "You said: hello"
        assert len(pieces) > 3


@pytest.fixture
async def narrow_app(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    monkeypatch.setattr(chat, "MOST_STREAMS", 2)
    async with running_app() as app:
        yield app


async def test_of_those_who_stream_at_once_none_is_let_in_beyond_the_limit(narrow_app: App) -> None:
    app = narrow_app
    worker = await app.worker(group="llama", concurrency=8)
    body = {"model": "llama", "messages": HELLO, "stream": True}
    asking = [asyncio.ensure_future(app.post("/v1/chat/completions", body)) for _ in range(5)]
    for _ in range(2):
        await worker.answer((await worker.task())["taskId"], "hi")
    answers = await asyncio.gather(*asking)
    assert sorted(answer.status_code for answer in answers) == [200, 200, 503, 503, 503]
    assert worker.pending() == 0, "who is refused has handed nothing in"
    # Those are over, and their places free; one that could not be handed in has none.
    lost = await app.post("/v1/chat/completions", {**body, "model": "nobody"})
    assert lost.status_code == 503
    again = asyncio.gather(*[app.post("/v1/chat/completions", body) for _ in range(2)])
    for _ in range(2):
        await worker.answer((await worker.task())["taskId"], "hi")
    assert [answer.status_code for answer in await again] == [200, 200]
