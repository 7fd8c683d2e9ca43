"""The limit of the framework: FastAPI that takes a typed body and gives it back."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()


class Body(BaseModel):
    model: str
    messages: list[dict[str, Any]]


@app.post("/api/openai")
async def echo(body: Body) -> dict[str, Any]:
    return body.model_dump()
