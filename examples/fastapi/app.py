"""A web application whose jobs outlive its requests, and itself."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException
from fastapi.responses import HTMLResponse, StreamingResponse
from jobs import report
from pydantic import BaseModel

from onward import Client, ProblemError

client: Client


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    global client
    async with Client() as client:  # one for the application: it keeps its connections
        yield


app = FastAPI(lifespan=lifespan)


class Wish(BaseModel):
    topic: str
    pages: int = 5


@app.get("/", response_class=HTMLResponse)
async def page() -> str:
    return Path(__file__).with_name("page.html").read_text()


@app.post("/reports", status_code=202)
async def order(wish: Wish) -> dict[str, Any]:
    """The job is safe once this answers, whatever becomes of this process."""
    task = await client.submit(report, topic=wish.topic, pages=wish.pages)
    return {"id": task.id, "state": task.state}


@app.get("/reports/{id}")
async def look(id: str) -> dict[str, Any]:
    try:
        task = await client.get(id)
    except ProblemError as error:
        raise HTTPException(error.status, error.detail) from None
    return {"state": task.state, "progress": task.progress, "report": task.result}


@app.get("/reports/{id}/events")
async def follow(id: str) -> StreamingResponse:
    """For an EventSource of the browser: how far it is, until it is over."""

    async def events() -> AsyncGenerator[str, None]:
        async for event in client.stream(id):
            if event.type == "task.progress":
                yield f"event: progress\ndata: {json.dumps(event.data)}\n\n"
        yield f"event: over\ndata: {json.dumps(await look(id))}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


@app.delete("/reports/{id}")
async def cancel(id: str) -> dict[str, Any]:
    try:
        return {"state": (await client.cancel(id)).state}
    except ProblemError as error:  # 409: it is over already
        raise HTTPException(error.status, error.detail) from None
