"""The official OpenAI client, with its base URL set to ours: waiting, streaming, and its errors."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from onward.doors.chat import router as chat
from tests.processes import HTTP, Process, serving
from tests.running_app import App, running_app
from tests.support import poll_until, wait_until

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


class Caller:
    """One call, over an ASGI connection that can be hung up."""

    def __init__(self, app: App, *, stream: bool, **headers: str) -> None:
        body = json.dumps({"model": "llama", "messages": HELLO, "stream": stream}).encode()
        self._messages: asyncio.Queue[Any] = asyncio.Queue()
        self._messages.put_nowait({"type": "http.request", "body": body, "more_body": False})
        self.sent: list[Any] = []
        given = {"host": "127.0.0.1", **headers}
        scope = {
            "type": "http", "method": "POST", "path": "/v1/chat/completions", "query_string": b"",
            "raw_path": b"/v1/chat/completions", "root_path": "", "scheme": "http", "state": {},
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8070),
            "http_version": "1.1", "asgi": {"version": "3.0", "spec_version": "2.3"},
        }  # fmt: skip
        self.call = asyncio.ensure_future(app.asgi(scope, self._messages.get, self._send))

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    async def hang_up(self) -> None:
        self._messages.put_nowait({"type": "http.disconnect"})
        async with asyncio.timeout(30):
            await self.call


@pytest.mark.parametrize("stream", [False, True])
async def test_a_caller_who_hangs_up_cancels_the_task(app: App, stream: bool) -> None:
    worker = await app.worker(group="llama")
    caller = Caller(app, stream=stream)
    task = (await worker.task())["taskId"]
    if stream:
        await worker.send({"type": "chunk", "taskId": task, "data": "Hel"})
        await wait_until(lambda: len(caller.sent) > 1)
    await caller.hang_up()
    assert await worker.receive() == {"type": "cancel", "taskId": task}
    await worker.answer(task, error="stopped")
    await wait_until(lambda: is_over(app, task))
    assert (await app.task(task))["state"] == "canceled"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_task_that_is_to_be_kept_goes_on_without_its_caller(app: App, stream: bool) -> None:
    worker = await app.worker(group="llama")
    caller = Caller(app, stream=stream, **{"x-onward-keep": "true"})
    task = (await worker.task())["taskId"]
    await caller.hang_up()
    await worker.answer(task, "for later")
    await wait_until(lambda: is_over(app, task))
    found = await app.task(task)
    assert (found["state"], found["result"]) == ("succeeded", "for later")


async def is_over(app: App, task: str) -> bool:
    return (await app.task(task))["finished_at"] is not None


SLOW = """
import asyncio
from typing import Any
from onward import Worker

worker = Worker()

@worker.group("slow")
async def answer(payload: Any) -> str:
    await asyncio.sleep(600)
    return "too late"
"""


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_times_out_cancels_its_task_on_a_real_server(
    tmp_path: Path, stream: bool
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    with serving(tmp_path) as server:
        command = (sys.executable, "-m", "onward.cli", "worker", f"{tmp_path}/slow.py:worker")
        worker = Process(*command, "--server", server.url, log=tmp_path / "worker.log")
        try:
            models = f"{server.url}/v1/models"
            poll_until(lambda: HTTP.get(models).json()["data"])
            impatient = openai.OpenAI(
                base_url=f"{server.url}/v1", api_key="unused", timeout=1, max_retries=0
            )
            with pytest.raises(openai.APITimeoutError):
                impatient.chat.completions.create(model="slow", messages=HELLO, stream=stream)
            tasks = f"{server.url}/api/v2/tasks"
            poll_until(lambda: HTTP.get(tasks).json()["items"][0]["state"] == "canceled")
        finally:
            worker.kill()
