"""The back end of a chat. It speaks to Onward as if it were OpenAI."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, StreamingResponse
from openai import APIStatusError, AsyncOpenAI
from pydantic import BaseModel

URL = os.environ.get("ONWARD_URL", "http://127.0.0.1:8070")
KEY = os.environ.get("ONWARD_KEY", "unused")
model = AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY)
app = FastAPI()


class Said(BaseModel):
    text: str
    history: list[dict[str, str]] = []


@app.post("/chat", response_model=None)
async def chat(said: Said) -> StreamingResponse | JSONResponse:
    messages: Any = [*said.history, {"role": "user", "content": said.text}]
    try:
        answer = await model.chat.completions.create(model="llama", messages=messages, stream=True)
    except APIStatusError as error:  # 503: no GPU is connected
        return JSONResponse({"error": error.message}, error.status_code)

    async def words() -> AsyncGenerator[str, None]:
        async for chunk in answer:
            yield chunk.choices[0].delta.content or ""

    return StreamingResponse(words(), media_type="text/plain")
