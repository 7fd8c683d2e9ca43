"""A chat completions endpoint on loopback that answers as a test tells it to, well or badly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]

KEY = "sk-do-not-tell-anybody"


class ChatEndpoint:
    def __init__(self) -> None:
        self.answers: list[Answer] = []  # one a request; the last one stays
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
                body = await reader.readexactly(int(headers["content-length"]))
                self.requests.append(json.loads(body))
                self.keys.append(headers["authorization"])
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                await answer(writer)
                await writer.drain()
        writer.close()


def whole(status: int, body: str, *headers: str, kind: str = "application/json") -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        lines = (
            f"HTTP/1.1 {status} Said",
            f"content-type: {kind}",
            f"content-length: {len(body.encode())}",
            *headers,
        )
        writer.write(("\r\n".join(lines) + "\r\n\r\n" + body).encode())

    return answer


def refusal(status: int, *headers: str, message: str = "no") -> Answer:
    return whole(status, json.dumps({"error": {"message": message, "code": status}}), *headers)


def streamed(*events: Any, then: str = "end", every: float = 0) -> Answer:
    """Server-sent events; then the end of the answer, a break ("cut"), or silence ("hang")."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for event in events:
            text = event if isinstance(event, str) else f"data: {json.dumps(event)}\n\n"
            writer.write(f"{len(text.encode()):x}\r\n{text}\r\n".encode())
            await asyncio.sleep(every)
        if then == "end":
            writer.write(b"0\r\n\r\n")
        elif then == "cut":
            writer.close()
        else:
            await asyncio.Event().wait()

    return answer


def chunk(text: str | None = None, *, ended: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": ended}
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "some/model-v2",
        "choices": [choice],
        **more,
    }


def completion(text: str) -> str:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
    }
    body = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "some/model-v2",
        "choices": [choice],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
    }
    return json.dumps(body)


DONE = "data: [DONE]\n\n"
GOOD = streamed(chunk("It is "), chunk("short."), chunk(ended="stop"), DONE)


@asynccontextmanager
async def endpoint(*answers: Answer) -> AsyncIterator[ChatEndpoint]:
    chat = ChatEndpoint()
    chat.answers = list(answers or (GOOD,))
    connections: set[asyncio.Task[Any]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await chat.serve(reader, writer)
        except asyncio.CancelledError:
            writer.close()
        finally:
            connections.discard(task)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    chat.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield chat
    finally:
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await server.wait_closed()
